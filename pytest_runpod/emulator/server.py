"""The account over loopback HTTP: management on one port, jobs and workers on another, so that a wrong host shows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import uvicorn

from pytest_runpod.emulator.faults import Faults
from pytest_runpod.emulator.processes import Guardian
from pytest_runpod.emulator.service import Service

LIFETIME_S: Final = 3600.0  # after the lifeline has ended


@dataclass(frozen=True)
class Serving:
    """How long one account is served, and where. Times in seconds; port 0: the system chooses."""

    host: str
    port: int
    jobs_port: int
    lifeline: TextIO | None
    max_lifetime_s: float
    out: TextIO


def serve(
    *, host: str = "127.0.0.1", port: int = 0, jobs_port: int = 0, key: str, faults: Faults | None = None,
    lifeline: TextIO | None = None, max_lifetime_s: float = LIFETIME_S, out: TextIO | None = None,
) -> None:  # fmt: skip
    """Serve one account until SIGTERM or SIGINT, or until its *lifeline* has ended and no endpoint of ours is left.

    Prints one JSON line with `management_url`, `jobs_url` and `pid` to *out* (standard output) once both ports answer.
    However this process ends, its workers end with it, and its folder is removed: the guardian sees to that.
    """
    folder = Path(tempfile.mkdtemp(prefix="runpod-emulator-")).resolve()
    guardian = Guardian(folder)
    serving = Serving(host, port, jobs_port, lifeline, max_lifetime_s, out or sys.stdout)
    try:
        asyncio.run(_serve(Service(key, faults or Faults(), folder, guardian), serving))
    finally:
        guardian.close()
        shutil.rmtree(folder, ignore_errors=True)


async def _serve(service: Service, serving: Serving) -> None:
    sockets = [_listen(serving.host, port) for port in (serving.port, serving.jobs_port)]
    management_url, jobs_url = (f"http://{serving.host}:{one.getsockname()[1]}" for one in sockets)
    service.account.jobs_url = jobs_url
    servers = [_Server(_config(app)) for app in (service.management(), service.jobs())]
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tasks = [asyncio.create_task(server.serve([one])) for server, one in zip(servers, sockets, strict=True)]
    supervisor = asyncio.create_task(service.supervisor.run())
    while not all(server.started for server in servers):
        await asyncio.sleep(0.01)
    ready = {"management_url": management_url, "jobs_url": jobs_url, "pid": os.getpid()}
    serving.out.write(json.dumps(ready) + "\n")
    serving.out.flush()
    ended = asyncio.create_task(_until_ended(service, stop, serving))
    await asyncio.wait({ended, supervisor}, return_when=asyncio.FIRST_COMPLETED)
    failed = supervisor.exception() if supervisor.done() else None
    ended.cancel()
    supervisor.cancel()
    await asyncio.gather(supervisor, ended, return_exceptions=True)
    for server in servers:
        server.should_exit = server.force_exit = True
    await asyncio.gather(*tasks, return_exceptions=True)
    if failed is not None:
        raise failed  # our own slip: an emulator that starts no workers any more must not look as if it had ended well


async def _until_ended(service: Service, stop: asyncio.Event, serving: Serving) -> None:
    lifeline = serving.lifeline
    if lifeline is None:
        await stop.wait()
        return
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()

    def read_to_the_end() -> None:
        while lifeline.buffer.raw.read(4096):  # type: ignore[attr-defined]
            continue
        with contextlib.suppress(RuntimeError):  # the loop has ended first
            loop.call_soon_threadsafe(gone.set)

    threading.Thread(target=read_to_the_end, daemon=True).start()
    waits = [asyncio.create_task(event.wait()) for event in (gone, stop)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    until = time.monotonic() + serving.max_lifetime_s
    while not stop.is_set() and time.monotonic() < until:
        if all(endpoint.foreign for endpoint in service.account.endpoints.values()):
            return
        await asyncio.sleep(0.1)


class _Server(uvicorn.Server):
    """Leaves the process's signals alone: two servers share it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=1)


def _listen(host: str, port: int) -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind((host, port))
    one.listen(128)
    return one
