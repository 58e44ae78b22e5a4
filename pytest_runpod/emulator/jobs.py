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

from pytest_runpod.emulator.image import build_image, image_environment
from pytest_runpod.emulator.model import Account, EndpointRecord, WorkerRecord

TICK_S: Final = 0.1
STOP_GRACE_S: Final = 3.0
CANCEL_GRACE_S: Final = 10.0  # a worker that does not let go of a stopped job is killed
BACKOFF_S: Final = (0.0, 1.0, 2.0, 5.0, 10.0)
MARK: Final = "RUNPOD_POD_ID"
PR_SET_PDEATHSIG: Final = 1


@dataclass
class Running:
    """One worker's process, with its HOME and its log."""

    endpoint_id: str
    worker: WorkerRecord
    process: asyncio.subprocess.Process
    home: Path
    log: Path
    stop_at: float | None = None


@dataclass
class Supervisor:
    """All workers of one account."""

    account: Account
    folder: Path
    ping_ms: int = 2000
    running: dict[str, Running] = field(default_factory=dict)
    crashes: dict[str, int] = field(default_factory=dict)  # by endpoint, in a row
    not_before: dict[str, float] = field(default_factory=dict)
    dying: set[str] = field(default_factory=set)
    ending: set[asyncio.Task[None]] = field(default_factory=set)
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
            self._kill(worker_id, endpoint)
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
        return sorted({pid for worker_id in (*self.running, *self.dying) for pid in marked(worker_id)})

    def log_lines(self, worker_id: str, tail: int) -> list[str]:
        path = self.folder / "logs" / f"{worker_id}.txt"
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-tail:] if path.exists() else []

    # --- inside

    def _judge(self, running: Running) -> None:
        endpoint = self.account.endpoints.get(running.endpoint_id)
        now = time.monotonic()
        if running.process.returncode is not None:
            self._ended_by_itself(running, endpoint)
        elif endpoint is None or (running.stop_at is not None and now > running.stop_at + STOP_GRACE_S):
            self._end(running)
        elif self._is_idle(running, endpoint):
            running.worker.stopping = True
            running.stop_at = now
            self.account.changed()  # held polls are answered at once
            with contextlib.suppress(ProcessLookupError):
                running.process.terminate()

    def _is_idle(self, running: Running, endpoint: EndpointRecord) -> bool:
        since = running.worker.idle_since
        if running.stop_at is not None:
            return False
        if endpoint.max_workers == 0 and running.worker.job is None:
            return True
        idle_s = endpoint.settings["workers"]["idleTimeout"]
        return since is not None and not endpoint.queue and self.account.now() > since + idle_s

    def _ended_by_itself(self, running: Running, endpoint: EndpointRecord | None) -> None:
        if endpoint is not None and running.stop_at is None:
            self.crashes[endpoint.id] = self.crashes.get(endpoint.id, 0) + 1
            pause = BACKOFF_S[min(self.crashes[endpoint.id], len(BACKOFF_S) - 1)]
            self.not_before[endpoint.id] = time.monotonic() + pause
            endpoint.unhealthy += 1
        self._end(running)

    def _kill(self, worker_id: str, endpoint: EndpointRecord) -> None:
        """A worker whose job ran out of time: it was told to stop; now it is ended, as the platform does."""
        running = self.running.get(worker_id)
        if running is not None and running.endpoint_id == endpoint.id:
            self._end(running)

    def _end(self, running: Running) -> None:
        """Kill the worker, everything it has started, and its HOME; the account learns that it is gone."""
        self.running.pop(running.worker.id, None)
        self.dying.add(running.worker.id)
        endpoint = self.account.endpoints.get(running.endpoint_id)
        if endpoint is not None:
            self.account.worker_ended(endpoint, running.worker.id)
        task = asyncio.get_running_loop().create_task(self._bury(running))
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    async def _bury(self, running: Running) -> None:
        for _ in range(50):
            alive = [pid for pid in marked(running.worker.id) if pid != os.getpid()]
            for pid in alive:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(running.process.pid, signal.SIGKILL)
            await running.process.wait()
            if not alive:
                break
            await asyncio.sleep(0.05)
        await asyncio.to_thread(shutil.rmtree, running.home, ignore_errors=True)
        self.dying.discard(running.worker.id)

    async def _scale_up(self, endpoint: EndpointRecord) -> None:
        faults = self.account.faults
        live = [one for one in self.running.values() if one.endpoint_id == endpoint.id]
        free = [one for one in live if one.worker.job is None and one.stop_at is None]
        if (
            not endpoint.queue
            or len(free) >= len(endpoint.queue)
            or len(live) >= endpoint.max_workers
            or faults.throttled
        ):
            return
        if time.monotonic() < self.not_before.get(endpoint.id, 0.0):
            return
        await self._start(endpoint)

    async def _start(self, endpoint: EndpointRecord) -> None:
        if self._programs is None:
            self._programs = await asyncio.to_thread(build_image, self.folder / "image")
        worker = self.account.worker_started(endpoint)
        home = self.folder / "workers" / worker.id
        home.mkdir(parents=True)
        log = self.folder / "logs" / f"{worker.id}.txt"
        log.parent.mkdir(exist_ok=True)
        command = ["false"] if self.account.faults.crash_loop else shlex.split(endpoint.settings["args"])
        with log.open("wb") as sink:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=sink,
                    stderr=sink,
                    cwd=home,
                    env=self._environment(endpoint, worker, home),
                    start_new_session=True,
                    preexec_fn=_die_with_parent if sys.platform == "linux" else None,
                )
            except OSError as no:
                log.write_text(f"start container: {no}\n", encoding="utf-8")
                endpoint.unhealthy += 1
                self.not_before[endpoint.id] = time.monotonic() + BACKOFF_S[-1]
                self.account.worker_ended(endpoint, worker.id)
                return
        self.running[worker.id] = Running(endpoint.id, worker, process, home, log)

    def _environment(self, endpoint: EndpointRecord, worker: WorkerRecord, home: Path) -> dict[str, str]:
        assert self._programs is not None
        base = f"{self.account.jobs_url}/v2/{endpoint.id}"
        gpu = "gpu=NVIDIA+RTX+A4000"
        return {
            **image_environment(self._programs),
            "HOME": str(home),
            **endpoint.settings["env"],
            MARK: worker.id,
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


def marked(worker_id: str) -> list[int]:
    """Processes of a worker: those that carry its id in their environment, and all that these have started."""
    needle = f"{MARK}={worker_id}".encode()
    parents: dict[int, int] = {}
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] == "Z":
                continue
            parents[pid] = int(fields[1])
            if needle in (folder / "environ").read_bytes().split(b"\0"):
                found.add(pid)
    grown = True
    while grown:
        below = {pid for pid, parent in parents.items() if parent in found} - found
        found |= below
        grown = bool(below)
    return sorted(found)


def _die_with_parent() -> None:
    """Linux: if the emulator is killed, its workers get SIGKILL too."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
