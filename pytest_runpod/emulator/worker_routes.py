"""What workers call: they take jobs, ask what to stop, post results and say that they live. The SDK's own protocol."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from pytest_runpod.emulator.answers import answer, decoded
from pytest_runpod.emulator.model import Account
from pytest_runpod.emulator.records import EndpointRecord

HOLD_S: Final = 25.0  # long polls of workers; the SDK gives up after 90 s and asks again at once where it is not held
LOOK_S: Final = 0.5  # how soon a held poll notices that its client has gone
STOP_AGAIN_S: Final = 1.0  # a stop signal is repeated so often: the SDK asks again at once, and cancels again each time


class Waiters:
    """Lets held requests wait for a change of the account."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Until something has changed, or `LOOK_S` has passed."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._event.wait(), LOOK_S)


class WorkerRoutes:
    """Handlers take the endpoint whose key was shown, and the worker's id."""

    def __init__(self, account: Account, waiters: Waiters) -> None:
        self.account, self.waiters = account, waiters
        self.told: dict[tuple[str, tuple[str, ...]], float] = {}  # which worker was told last to stop what, and when

    async def job_take(self, request: Request, endpoint: EndpointRecord, worker: str) -> Response:
        job = await self._take(request, endpoint, worker)
        return answer(job) if job else Response(status_code=204)

    async def job_take_batch(self, request: Request, endpoint: EndpointRecord, worker: str) -> Response:
        job = await self._take(request, endpoint, worker)
        return answer([job]) if job else Response(status_code=204)

    async def _take(self, request: Request, endpoint: EndpointRecord, worker: str) -> Any:
        record = endpoint.workers.get(worker)
        if record is not None and record.job is not None and request.query_params.get("job_in_progress") != "1":
            self.account.released(
                endpoint, worker, record.job
            )  # a stopped job posts nothing; its worker asks for the next
        return await self._held(request, endpoint, worker, lambda: self.account.take(endpoint, worker))

    async def job_stop(self, request: Request, endpoint: EndpointRecord, worker: str) -> Response:
        jobs = await self._held(request, endpoint, worker, lambda: self._to_tell(endpoint, worker))
        return answer({"jobsToStop": jobs}) if jobs else Response(status_code=204)

    def _to_tell(self, endpoint: EndpointRecord, worker: str) -> list[str]:
        jobs = self.account.stop_signals(endpoint, worker)
        key, now = (worker, tuple(jobs)), time.monotonic()
        if not jobs or now < self.told.get(key, -STOP_AGAIN_S) + STOP_AGAIN_S:
            return []
        self.told[key] = now
        return jobs

    async def job_done(self, request: Request, endpoint: EndpointRecord, worker: str) -> Response:
        """The body is JSON, whatever its content type says."""
        raw = await request.body()
        body, valid = decoded(raw)
        self.account.done(endpoint, worker, request.path_params["job"], body, len(raw), valid=valid)
        return answer({"ok": True})

    async def job_stream(self, request: Request, endpoint: EndpointRecord, worker: str) -> Response:
        body, _ = decoded(await request.body())
        self.account.chunk(endpoint, worker, request.path_params["job"], body)
        return answer({"ok": True})

    async def ping(self, request: Request, endpoint: EndpointRecord, worker: str) -> Response:
        query = request.query_params
        jobs = [name for name in query.get("job_id", "").split(",") if name]
        self.account.ping(endpoint, worker, jobs, unhealthy=query.get("status") == "unhealthy")
        return answer({"ok": True})

    async def _held(self, request: Request, endpoint: EndpointRecord, worker: str, look: Callable[[], Any]) -> Any:
        """Hold a poll until *look* gives something; a client that has gone gets nothing, so that no job is lost to it."""
        until = time.monotonic() + HOLD_S
        record = endpoint.workers.get(worker)
        while time.monotonic() < until and not await request.is_disconnected():
            found = look()
            if found or (record is not None and (record.stopping or record.ended is not None)):
                return found
            await self.waiters.wait()
        return None
