"""Runs the workers of an account as processes: starts one when jobs wait, ends it when it idles, crashes, or its endpoint goes.

A worker gets what the platform sets, what its endpoint sets and what the image sets; nothing else of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pytest_runpod.emulator import processes
from pytest_runpod.emulator.image import build_image, image_environment
from pytest_runpod.emulator.model import Account
from pytest_runpod.emulator.records import EndpointRecord, WorkerRecord

TICK_S: Final = 0.1
STOP_GRACE_S: Final = (
    3.0  # after SIGTERM, and after the stop signal of a job that ran out of time. Not documented: a choice
)
BACKOFF_S: Final = (0.0, 1.0, 2.0, 5.0, 10.0)
IMAGE_COMMAND: Final = ("sleep", "2147483647")  # what the image does without a start command: nothing, for ever
PR_SET_PDEATHSIG: Final = 1


@dataclass
class Running:
    """One worker's process, with its HOME and its log. Times of the machine's monotonic clock."""

    endpoint_id: str
    worker: WorkerRecord
    process: asyncio.subprocess.Process
    home: Path
    log: Path
    stop_at: float | None = None  # when it was asked to end
    kill_at: float | None = None  # when it is ended, if it has not let go of its job by then


@dataclass
class Supervisor:
    """All workers of one account."""

    account: Account
    folder: Path
    guardian: processes.Guardian | None = None
    ping_ms: int = 2000
    running: dict[str, Running] = field(default_factory=dict)
    crashes: dict[str, int] = field(default_factory=dict)  # by endpoint, in a row
    not_before: dict[str, float] = field(default_factory=dict)
    dying: dict[str, Running] = field(default_factory=dict)
    ending: set[asyncio.Task[None]] = field(default_factory=set)
    system: dict[str, list[str]] = field(default_factory=dict)  # by worker: what the platform says about it
    _programs: Path | None = None

    async def run(self) -> None:
        """Look at the account again and again, until cancelled; then every worker is gone."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(TICK_S)
        finally:
            await self.end_all()

    async def look(self) -> None:
        """One look: let time pass in the account, then start and end what the new state asks for."""
        for endpoint, worker_id in self.account.tick():
            self._kill_soon(worker_id, endpoint)
        while self.account.killed:
            self._kill_now(self.account.killed.pop()[1])
        for running in list(self.running.values()):
            self._judge(running)
        for endpoint in list(self.account.endpoints.values()):
            await self._scale_up(endpoint)

    async def end_all(self) -> None:
        for running in list(self.running.values()):
            self._end(running)
        if self.ending:
            await asyncio.gather(*self.ending, return_exceptions=True)

    def pids(self) -> list[int]:
        """Every process of every worker, their descendants included."""
        workers = [*self.running.values(), *self.dying.values()]
        return sorted({pid for one in workers for pid in processes.belonging(one.home, {one.process.pid})})

    def log_lines(self, worker_id: str, source: str = "container") -> list[str]:
        """What a worker has written (*source* `container`), or what the platform says about it (`system`)."""
        if source == "system":
            return self.system.get(worker_id, [])
        path = self.folder / "logs" / f"{worker_id}.txt"
        return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []

    # --- inside

    def _judge(self, running: Running) -> None:
        endpoint = self.account.endpoints.get(running.endpoint_id)
        now = time.monotonic()
        if running.process.returncode is not None:
            self._ended_by_itself(running, endpoint)
        elif endpoint is None or _overdue(running, now):
            self._end(running)
        elif running.stop_at is None and running.kill_at is None and self._may_go(running, endpoint):
            running.worker.stopping = True
            running.stop_at = now
            self.account.changed()  # held polls are answered at once, so that no job is lost to the last one
            with contextlib.suppress(ProcessLookupError):
                running.process.terminate()

    def _may_go(self, running: Running, endpoint: EndpointRecord) -> bool:
        worker = running.worker
        if worker.stopping:
            return True
        if worker.job is None and (endpoint.max_workers == 0 or worker.version < endpoint.version):
            return True
        waits = worker.idle_since is not None and not endpoint.queue
        spare = len(endpoint.live()) > endpoint.min_workers
        return waits and spare and self.account.now() > (worker.idle_since or 0.0) + endpoint.idle_timeout_s

    def _ended_by_itself(self, running: Running, endpoint: EndpointRecord | None) -> None:
        code = running.process.returncode
        self._say(running.worker.id, f"container ended with {code}")
        if endpoint is not None and not running.worker.stopping:
            if running.worker.dispatched:
                self.crashes[endpoint.id] = 0  # it has worked: this is no loop
            self._crashed(endpoint)
        self._end(running)

    def _crashed(self, endpoint: EndpointRecord) -> None:
        self.crashes[endpoint.id] = self.crashes.get(endpoint.id, 0) + 1
        pause = BACKOFF_S[min(self.crashes[endpoint.id], len(BACKOFF_S) - 1)]
        self.not_before[endpoint.id] = time.monotonic() + pause
        endpoint.unhealthy += 1

    def _kill_soon(self, worker_id: str, endpoint: EndpointRecord) -> None:
        """A worker whose job ran out of time: it is told to stop, takes no other job, and is ended after a grace."""
        running = self.running.get(worker_id)
        if running is not None and running.endpoint_id == endpoint.id and running.kill_at is None:
            running.worker.stopping = True
            running.kill_at = time.monotonic() + STOP_GRACE_S
            self.account.changed()

    def _kill_now(self, worker_id: str) -> None:
        """The worker dies with all that it has started, as if its host had run out of memory."""
        running = self.running.get(worker_id)
        if running is not None:
            for pid in processes.belonging(running.home, {running.process.pid}):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _end(self, running: Running) -> None:
        """Kill the worker, everything it has started, and its HOME; the account learns that it is gone."""
        self.running.pop(running.worker.id, None)
        self.dying[running.worker.id] = running
        endpoint = self.account.endpoints.get(running.endpoint_id)
        if endpoint is not None:
            self.account.worker_ended(endpoint, running.worker.id)
        task = asyncio.get_running_loop().create_task(self._bury(running))
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    async def _bury(self, running: Running) -> None:
        await asyncio.to_thread(processes.end, running.home, {running.process.pid})
        await running.process.wait()
        await asyncio.to_thread(shutil.rmtree, running.home, ignore_errors=True)
        if self.guardian is not None:
            self.guardian.forget(running.process.pid)
        self.dying.pop(running.worker.id, None)

    async def _scale_up(self, endpoint: EndpointRecord) -> None:
        """Start at most one worker. A choice: at once, `queueDelay` is not waited for, so that runs are quick."""
        live = [one for one in self.running.values() if one.endpoint_id == endpoint.id]
        free = [one for one in live if one.worker.job is None and not one.worker.stopping]
        wanted = len(free) < len(endpoint.queue) or len(live) < endpoint.min_workers
        if not wanted or len(live) >= endpoint.max_workers or self.account.faults.throttled:
            return
        if time.monotonic() >= self.not_before.get(endpoint.id, 0.0):
            await self._start(endpoint)

    async def _start(self, endpoint: EndpointRecord) -> None:
        if self._programs is None:
            self._programs = await asyncio.to_thread(build_image, self.folder / "image")
        worker = self.account.worker_started(endpoint)
        home = self.folder / "workers" / worker.id
        home.mkdir(parents=True)
        log = self.folder / "logs" / f"{worker.id}.txt"
        log.parent.mkdir(exist_ok=True)
        self._say(worker.id, "start container")
        try:
            process = await self._spawn(endpoint, worker, home, log)
        except (OSError, ValueError) as no:  # no such program, or words and variables that no process can have
            self._say(worker.id, f"container cannot start: {no}")
            shutil.rmtree(home, ignore_errors=True)
            self._crashed(endpoint)
            self.account.worker_ended(endpoint, worker.id)
            return
        self.running[worker.id] = Running(endpoint.id, worker, process, home, log)
        if self.guardian is not None:
            self.guardian.note(process.pid)

    async def _spawn(
        self, endpoint: EndpointRecord, worker: WorkerRecord, home: Path, log: Path
    ) -> asyncio.subprocess.Process:
        faults = self.account.faults
        command = ["false"] if faults.crash_loop else shlex.split(endpoint.settings["args"]) or list(IMAGE_COMMAND)
        if faults.cold_start_s:
            command = ["sh", "-c", f'sleep {float(faults.cold_start_s)}; exec "$@"', "sh", *command]
        with log.open("wb") as sink:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd=home,
                env=self._environment(endpoint, worker, home),
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )

    def _say(self, worker_id: str, text: str) -> None:
        self.system.setdefault(worker_id, []).append(text)

    def _environment(self, endpoint: EndpointRecord, worker: WorkerRecord, home: Path) -> dict[str, str]:
        assert self._programs is not None
        base = f"{self.account.jobs_url}/v2/{endpoint.id}"
        gpu = "gpu=NVIDIA+RTX+A4000"
        return {
            **image_environment(self._programs),
            "HOME": str(home),
            **endpoint.settings["env"],
            "RUNPOD_POD_ID": worker.id,
            "RUNPOD_POD_HOSTNAME": f"{worker.id}-emulator",
            "RUNPOD_ENDPOINT_ID": endpoint.id,
            "RUNPOD_ENDPOINT_SECRET": "emulator-endpoint-secret",
            "RUNPOD_API_KEY": "emulator-pod-scoped-key",
            "RUNPOD_AI_API_KEY": endpoint.worker_key,
            "RUNPOD_GPU_COUNT": "1",
            "RUNPOD_CPU_COUNT": str(os.cpu_count() or 1),
            "RUNPOD_DC_ID": "EMU-1",
            "RUNPOD_PING_INTERVAL": str(self.ping_ms),
            "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
            "RUNPOD_SKIP_GPU_CHECK": "true",
            "RUNPOD_SKIP_FITNESS_CHECKS": "true",
            "RUNPOD_WEBHOOK_GET_JOB": f"{base}/job-take/$ID?{gpu}",
            "RUNPOD_WEBHOOK_POST_OUTPUT": f"{base}/job-done/$RUNPOD_POD_ID/$ID?{gpu}",
            "RUNPOD_WEBHOOK_POST_STREAM": f"{base}/job-stream/$RUNPOD_POD_ID/$ID?{gpu}",
            "RUNPOD_WEBHOOK_PING": f"{base}/ping/$RUNPOD_POD_ID?{gpu}",
        }


def _overdue(running: Running, now: float) -> bool:
    """Whether the grace is over: it did not end after SIGTERM, or it must end and has let go of its job already."""
    if running.kill_at is not None:
        return running.worker.job is None or now > running.kill_at
    return running.stop_at is not None and now > running.stop_at + STOP_GRACE_S


def _die_with_parent() -> None:
    """Linux: if the emulator is killed, its workers get SIGKILL too; what they have started is for the guardian."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
