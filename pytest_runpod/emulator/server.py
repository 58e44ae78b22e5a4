"""The account over loopback HTTP: management on one port, jobs and workers on another, so that a wrong host shows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, TextIO

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pytest_runpod.emulator.faults import Faults
from pytest_runpod.emulator.jobs import Supervisor
from pytest_runpod.emulator.model import FINAL, Account, EndpointRecord
from pytest_runpod.emulator.validation import ApiError
from pytest_runpod.emulator.wire_faults import WireFaults

HOLD_S: Final = 25.0  # long polls of workers
LOOK_S: Final = 0.5  # how soon a held poll notices that its client has gone
MAX_RUN: Final = 10_000_000
MAX_RUNSYNC: Final = 20_000_000
LIFETIME_S: Final = 3600.0  # after the lifeline has ended
Handler = Callable[[Request], Awaitable[Response]]


class Service:
    """Routes of one account. Handlers are thin: the account decides."""

    def __init__(self, key: str, faults: Faults, folder: Path) -> None:
        self.key = key
        self.account = Account(time.time, lambda: secrets.token_hex(16), faults=faults)
        self.account.changed = self._wake
        self.supervisor = Supervisor(self.account, folder)
        self.wake = asyncio.Event()
        self.seen: list[dict[str, Any]] = []

    def _wake(self) -> None:
        self.wake.set()
        self.wake = asyncio.Event()

    # --- applications

    def management(self) -> WireFaults:
        routes = [
            Route("/v2/serverless", self.guarded(self.list_endpoints), methods=["GET"]),
            Route("/v2/serverless", self.guarded(self.create_endpoint), methods=["POST"]),
            Route("/v2/serverless/{endpoint}", self.guarded(self.get_endpoint), methods=["GET"]),
            Route("/v2/serverless/{endpoint}", self.guarded(self.patch_endpoint), methods=["PATCH"]),
            Route("/v2/serverless/{endpoint}", self.guarded(self.delete_endpoint), methods=["DELETE"]),
            Route("/v2/serverless/{endpoint}/workers", self.guarded(self.list_workers), methods=["GET"]),
            Route("/v2/serverless/{endpoint}/workers/{worker}/logs", self.guarded(self.worker_logs), methods=["GET"]),
            Route("/v2/templates", self.guarded(self.list_templates), methods=["GET"]),
            Route("/v2/catalog/gpus", self.guarded(self.list_gpus), methods=["GET"]),
            Route("/v2/billing/serverless", self.guarded(self.billing), methods=["GET"]),
            Route("/_emulator/alive", self.guarded(self.alive), methods=["GET"]),
            Route("/_emulator/log", self.guarded(self.log), methods=["GET"]),
            Route("/_emulator/faults", self.guarded(self.set_faults), methods=["POST"]),
        ]
        return WireFaults(Starlette(routes=routes, exception_handlers={404: _problem, 405: _problem}), self)

    def jobs(self) -> WireFaults:
        owner, worker = self.owned, self.from_worker
        routes = [
            Route("/v2/{endpoint}/run", owner(self.run), methods=["POST"]),
            Route("/v2/{endpoint}/runsync", owner(self.runsync), methods=["POST"]),
            Route("/v2/{endpoint}/status/{job}", owner(self.status), methods=["GET", "POST"]),
            Route("/v2/{endpoint}/cancel/{job}", owner(self.cancel), methods=["POST"]),
            Route("/v2/{endpoint}/retry/{job}", owner(self.retry), methods=["POST"]),
            Route("/v2/{endpoint}/purge-queue", owner(self.purge), methods=["POST"]),
            Route("/v2/{endpoint}/health", owner(self.health), methods=["GET"]),
            Route("/v2/{endpoint}/requests", owner(self.requests), methods=["GET"]),
            Route("/v2/{endpoint}/job-take/{worker}", worker(self.job_take), methods=["GET"]),
            Route("/v2/{endpoint}/job-take-batch/{worker}", worker(self.job_take_batch), methods=["GET"]),
            Route("/v2/{endpoint}/job-stop/{worker}", worker(self.job_stop), methods=["GET"]),
            Route("/v2/{endpoint}/job-done/{worker}/{job}", worker(self.job_done), methods=["POST"]),
            Route("/v2/{endpoint}/job-stream/{worker}/{job}", worker(self.job_stream), methods=["POST"]),
            Route("/v2/{endpoint}/ping/{worker}", worker(self.ping), methods=["GET"]),
        ]
        return WireFaults(Starlette(routes=routes), self)

    def guarded(self, handler: Handler) -> Handler:
        """Management: a bearer token, and errors as problems (RFC 9457)."""

        async def inner(request: Request) -> Response:
            header = request.headers.get("authorization", "")
            if not header.startswith("Bearer "):
                return problem(ApiError(401, "missing bearer token"))
            if not secrets.compare_digest(header.removeprefix("Bearer "), self.key):
                return problem(ApiError(401, "invalid api key"))
            try:
                return await handler(request)
            except ApiError as error:
                return problem(error)

        return inner

    def owned(self, handler: Handler) -> Handler:
        """Jobs: the same key, with or without `Bearer`."""

        async def inner(request: Request) -> Response:
            header = request.headers.get("authorization", "").removeprefix("Bearer ")
            if self.account.faults.jobs_unauthorized or not secrets.compare_digest(header, self.key):
                return JSONResponse({"error": "invalid api key", "status": 401}, 401)
            try:
                return await handler(request)
            except ApiError as error:
                return JSONResponse({"error": error.detail, "status": error.status}, error.status)

        return inner

    def from_worker(self, handler: Callable[[Request, EndpointRecord, str], Awaitable[Response]]) -> Handler:
        """Workers: the endpoint's own key, raw."""

        async def inner(request: Request) -> Response:
            endpoint = self.account.endpoints.get(request.path_params["endpoint"])
            if endpoint is None:
                return JSONResponse({"error": "endpoint not found", "status": 404}, 404)
            if not secrets.compare_digest(request.headers.get("authorization", ""), endpoint.worker_key):
                return JSONResponse({"error": "unauthorized", "status": 401}, 401)
            try:
                return await handler(request, endpoint, request.path_params["worker"])
            except ApiError as error:
                return JSONResponse({"error": error.detail, "status": error.status}, error.status)

        return inner

    # --- management

    async def list_endpoints(self, _: Request) -> Response:
        return JSONResponse(self.account.listed())

    async def create_endpoint(self, request: Request) -> Response:
        return JSONResponse(self.account.create(await _body(request, 2_000_000)), 201)

    async def get_endpoint(self, request: Request) -> Response:
        return JSONResponse(self.account.get(request.path_params["endpoint"]))

    async def patch_endpoint(self, request: Request) -> Response:
        return JSONResponse(self.account.patch(request.path_params["endpoint"], await _body(request, 2_000_000)))

    async def delete_endpoint(self, request: Request) -> Response:
        self.account.delete(request.path_params["endpoint"])
        await self.supervisor.look()
        return Response(status_code=204)

    async def list_workers(self, request: Request) -> Response:
        return JSONResponse(self.account.workers_list(request.path_params["endpoint"]))

    async def worker_logs(self, request: Request) -> Response:
        self.account.endpoint(request.path_params["endpoint"])
        lines = self.supervisor.log_lines(request.path_params["worker"], int(request.query_params.get("tail", 100)))

        async def events() -> AsyncIterator[str]:
            for line in lines:
                yield f"data: {json.dumps({'source': 'container', 'line': line, 'ts': ''})}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def list_templates(self, _: Request) -> Response:
        return JSONResponse({"templates": []})  # bound ones are hidden; this account has no others

    async def list_gpus(self, _: Request) -> Response:
        return JSONResponse(self.account.catalog())

    async def billing(self, request: Request) -> Response:
        return JSONResponse(self.account.bill(request.query_params.get("serverlessId")))

    # --- for tests

    async def alive(self, _: Request) -> Response:
        """What is alive now: endpoints, bound templates, processes of workers, jobs that are not final."""
        endpoints = self.account.endpoints.values()
        return JSONResponse({
            "endpoints": [{"id": one.id, "name": one.settings["name"], "foreign": one.foreign} for one in endpoints],
            "templates": list(self.account.templates),
            "pids": self.supervisor.pids(),
            "jobs": [job.to_json()["id"] for one in endpoints for job in one.jobs.values() if job.status not in FINAL],
        })  # fmt: skip

    async def log(self, _: Request) -> Response:
        return JSONResponse({"requests": self.seen})

    async def set_faults(self, request: Request) -> Response:
        self.account.faults = Faults.from_value(await _body(request, 100_000))
        return Response(status_code=204)

    # --- jobs

    async def run(self, request: Request) -> Response:
        job = self.account.run(request.path_params["endpoint"], await _body(request, MAX_RUN))
        return JSONResponse({"id": job.id, "status": job.status})

    async def runsync(self, request: Request) -> Response:
        job = self.account.run(request.path_params["endpoint"], await _body(request, MAX_RUNSYNC), sync=True)
        until = time.monotonic() + min(max(int(request.query_params.get("wait", 90_000)), 1000), 300_000) / 1000
        while job.status not in FINAL and time.monotonic() < until and not await request.is_disconnected():
            await self._wait_for_change()
        return JSONResponse(job.to_json())

    async def status(self, request: Request) -> Response:
        return JSONResponse(self.account.status(request.path_params["endpoint"], request.path_params["job"]).to_json())

    async def cancel(self, request: Request) -> Response:
        job = self.account.cancel(request.path_params["endpoint"], request.path_params["job"])
        return JSONResponse({"id": job.id, "status": job.status})

    async def retry(self, request: Request) -> Response:
        job = self.account.retry(request.path_params["endpoint"], request.path_params["job"])
        return JSONResponse({"id": job.id, "status": job.status})

    async def purge(self, request: Request) -> Response:
        return JSONResponse(self.account.purge(request.path_params["endpoint"]))

    async def health(self, request: Request) -> Response:
        return JSONResponse(self.account.health(request.path_params["endpoint"]))

    async def requests(self, request: Request) -> Response:
        return JSONResponse({"requests": self.account.requests(request.path_params["endpoint"])})

    # --- workers

    async def job_take(self, request: Request, endpoint: EndpointRecord, worker: str) -> Response:
        job = await self._held(request, endpoint, lambda: self.account.take(endpoint, worker), worker)
        return JSONResponse(job) if job else Response(status_code=204)

    async def job_take_batch(self, request: Request, endpoint: EndpointRecord, worker: str) -> Response:
        job = await self._held(request, endpoint, lambda: self.account.take(endpoint, worker), worker)
        return JSONResponse([job]) if job else Response(status_code=204)

    async def job_stop(self, request: Request, endpoint: EndpointRecord, worker: str) -> Response:
        jobs = await self._held(request, endpoint, lambda: self.account.stop_signals(endpoint, worker), worker)
        if not jobs:
            return Response(status_code=204)
        asyncio.get_running_loop().call_later(LOOK_S, self._let_go, endpoint, worker, list(jobs))
        return JSONResponse({"jobsToStop": jobs})

    def _let_go(self, endpoint: EndpointRecord, worker: str, jobs: list[str]) -> None:
        """A stopped job posts nothing; the worker asks for the next one. The signal goes on until it does."""
        record = endpoint.workers.get(worker)
        for name in jobs:
            if record is not None and record.job != name:
                endpoint.to_stop.get(worker, set()).discard(name)

    async def job_done(self, request: Request, endpoint: EndpointRecord, worker: str) -> Response:
        raw = await request.body()
        try:
            body = json.loads(raw, parse_constant=_no_constant)
        except ValueError as slip:
            raise ApiError(400, f"not JSON: {slip}") from slip
        self.account.done(endpoint, worker, request.path_params["job"], body, len(raw))
        return JSONResponse({"ok": True})

    async def job_stream(self, request: Request, endpoint: EndpointRecord, worker: str) -> Response:
        await request.body()
        return JSONResponse({"ok": True})

    async def ping(self, request: Request, endpoint: EndpointRecord, worker: str) -> Response:
        query = request.query_params
        jobs = [name for name in query.get("job_id", "").split(",") if name]
        self.account.ping(endpoint, worker, jobs, unhealthy=query.get("status") == "unhealthy")
        return JSONResponse({"ok": True})

    async def _held(self, request: Request, endpoint: EndpointRecord, look: Callable[[], Any], worker: str) -> Any:
        """Hold a poll until *look* gives something; a client that has gone gets nothing, so that no job is lost to it."""
        until = time.monotonic() + HOLD_S
        record = endpoint.workers.get(worker)
        if "job-take" in request.url.path and record is not None and record.job is not None:
            self.account.released(endpoint, worker, record.job)  # it asks again: it is rid of a job that was stopped
        while time.monotonic() < until and not await request.is_disconnected():
            found = look()
            if found or record is None or record.stopping or record.ended is not None:
                return found
            await self._wait_for_change()
        return None

    async def _wait_for_change(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.wake.wait(), LOOK_S)


def serve(
    *, host: str = "127.0.0.1", port: int = 0, jobs_port: int = 0, key: str, faults: Faults | None = None,
    lifeline: TextIO | None = None, max_lifetime_s: float = LIFETIME_S, out: TextIO | None = None,
) -> None:  # fmt: skip
    """Serve one account until SIGTERM or SIGINT, or until its *lifeline* has ended and no endpoint of ours is left.

    Prints one JSON line with `management_url`, `jobs_url` and `pid` to *out* (standard output) once both ports answer.
    """
    folder = Path(tempfile.mkdtemp(prefix="runpod-emulator-"))
    try:
        asyncio.run(
            _serve(folder, host, port, jobs_port, key, faults or Faults(), lifeline, max_lifetime_s, out or sys.stdout)
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _serve(
    folder: Path, host: str, port: int, jobs_port: int, key: str, faults: Faults, lifeline: TextIO | None, max_lifetime_s: float,
    out: TextIO,
) -> None:  # fmt: skip
    service = Service(key, faults, folder)
    sockets = [_listen(host, port), _listen(host, jobs_port)]
    management_url, jobs_url = (f"http://{host}:{one.getsockname()[1]}" for one in sockets)
    service.account.jobs_url = jobs_url
    servers = [_Server(_config(app)) for app in (service.management(), service.jobs())]
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    tasks = [asyncio.create_task(server.serve([one])) for server, one in zip(servers, sockets, strict=True)]
    supervisor = asyncio.create_task(service.supervisor.run())
    while not all(server.started for server in servers):
        await asyncio.sleep(0.01)
    out.write(json.dumps({"management_url": management_url, "jobs_url": jobs_url, "pid": os.getpid()}) + "\n")
    out.flush()
    ended = asyncio.create_task(_until_ended(service, stop, lifeline, max_lifetime_s))
    await asyncio.wait({ended, supervisor}, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    supervisor.cancel()
    await asyncio.gather(supervisor, ended, return_exceptions=True)
    for server in servers:
        server.should_exit = server.force_exit = True
    await asyncio.gather(*tasks, return_exceptions=True)


async def _until_ended(service: Service, stop: asyncio.Event, lifeline: TextIO | None, max_lifetime_s: float) -> None:
    if lifeline is None:
        await stop.wait()
        return
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()

    def read_to_the_end() -> None:
        while lifeline.buffer.raw.read(4096):  # type: ignore[attr-defined]
            continue
        loop.call_soon_threadsafe(gone.set)

    threading.Thread(target=read_to_the_end, daemon=True).start()
    await asyncio.wait(
        [asyncio.create_task(gone.wait()), asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED
    )
    until = time.monotonic() + max_lifetime_s
    while not stop.is_set() and time.monotonic() < until:
        if not any(not endpoint.foreign for endpoint in service.account.endpoints.values()):
            return
        await asyncio.sleep(0.1)


class _Server(uvicorn.Server):
    """Leaves the process's signals alone: two servers share it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def problem(error: ApiError) -> Response:
    titles = {
        400: "Bad Request",
        401: "Unauthorized",
        404: "Not Found",
        405: "Method Not Allowed",
        422: "Unprocessable Entity",
    }
    body: dict[str, Any] = {"title": titles.get(error.status, "Error"), "status": error.status, "detail": error.detail}
    if error.errors:
        body["errors"] = error.errors
    return JSONResponse(body, error.status, media_type="application/problem+json")


async def _problem(_: Request, error: Exception) -> Response:
    status = int(getattr(error, "status_code", 404))
    answer = problem(ApiError(status, "method not allowed" if status == 405 else "resource not found"))
    answer.headers.update(getattr(error, "headers", None) or {})
    return answer


async def _body(request: Request, limit: int) -> Any:
    raw = await request.body()
    if len(raw) > limit:
        raise ApiError(400, f"request body is larger than {limit} bytes")
    try:
        return json.loads(raw)
    except ValueError as slip:
        raise ApiError(400, f"request body is not JSON: {slip}") from slip


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=1)


def _listen(host: str, port: int) -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind((host, port))
    one.listen(128)
    return one
