"""The routes of one account: management, and jobs. Handlers are thin: the account decides."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from pytest_runpod.emulator.answers import answer, body_of, job_error, no_route, problem, whole
from pytest_runpod.emulator.billing import Query, iso, moment
from pytest_runpod.emulator.faults import Faults
from pytest_runpod.emulator.jobs import Supervisor
from pytest_runpod.emulator.model import FINAL, Account
from pytest_runpod.emulator.processes import Guardian
from pytest_runpod.emulator.records import EndpointRecord
from pytest_runpod.emulator.validation import ApiError
from pytest_runpod.emulator.wire_faults import WireFaults
from pytest_runpod.emulator.worker_routes import LOOK_S, Waiters, WorkerRoutes

MAX_RUN: Final = 10_000_000
MAX_RUNSYNC: Final = 20_000_000
MAX_MANAGEMENT: Final = 2_000_000
WAIT_MS: Final = (1000, 300_000)  # bounds of `wait`. Source: the provider's send requests page
Handler = Callable[[Request], Awaitable[Response]]
WorkerHandler = Callable[[Request, EndpointRecord, str], Awaitable[Response]]


class Service:
    """One account behind its two applications."""

    def __init__(self, key: str, faults: Faults, folder: Path, guardian: Guardian | None = None) -> None:
        self.key = key.encode()
        self.account = Account(time.time, lambda: secrets.token_hex(16), faults=faults)
        self.waiters = Waiters()
        self.account.changed = self.waiters.wake
        self.supervisor = Supervisor(self.account, folder, guardian)
        self.workers = WorkerRoutes(self.account, self.waiters)
        self.seen: list[dict[str, Any]] = []
        self.wires: list[WireFaults] = []

    # --- applications

    def management(self) -> WireFaults:
        one = "/v2/serverless/{endpoint}"
        routes = [
            self.managed("/v2/serverless", GET=self.list_endpoints, POST=self.create_endpoint),
            self.managed(one, GET=self.get_endpoint, PATCH=self.patch_endpoint, DELETE=self.delete_endpoint),
            self.managed(f"{one}/workers", GET=self.list_workers),
            self.managed(f"{one}/releases", GET=self.list_releases),
            self.managed(f"{one}/workers/{{worker}}/logs", GET=self.worker_logs),
            self.managed("/v2/templates", GET=self.list_templates),
            self.managed("/v2/templates/{template}", DELETE=self.delete_template),
            self.managed("/v2/catalog/gpus", GET=self.list_gpus),
            self.managed("/v2/catalog/gpus/{gpu}", GET=self.get_gpu),
            self.managed("/v2/billing/serverless", GET=self.billing),
            self.managed("/v2/billing/endpoints", GET=self.other_billing),
            self.managed("/_emulator/alive", GET=self.alive),
            self.managed("/_emulator/log", GET=self.log),
            self.managed("/_emulator/faults", POST=self.set_faults),
            self.managed("/_emulator/release", POST=self.release),
        ]
        return self.watched(Starlette(routes=routes, exception_handlers={404: no_route, 405: no_route}))

    def jobs(self) -> WireFaults:
        owner, worker, desk = self.owned, self.from_worker, self.workers
        routes = [
            Route("/v2/{endpoint}/run", owner(self.run), methods=["POST"]),
            Route("/v2/{endpoint}/runsync", owner(self.runsync), methods=["POST"]),
            Route("/v2/{endpoint}/status/{job}", owner(self.status), methods=["GET", "POST"]),
            Route("/v2/{endpoint}/status-sync/{job}", owner(self.status_sync), methods=["GET", "POST"]),
            Route("/v2/{endpoint}/stream/{job}", owner(self.stream), methods=["GET", "POST"]),
            Route("/v2/{endpoint}/cancel/{job}", owner(self.cancel), methods=["POST"]),
            Route("/v2/{endpoint}/retry/{job}", owner(self.retry), methods=["POST"]),
            Route("/v2/{endpoint}/purge-queue", owner(self.purge), methods=["POST"]),
            Route("/v2/{endpoint}/health", owner(self.health), methods=["GET"]),
            Route("/v2/{endpoint}/requests", owner(self.requests), methods=["GET"]),
            Route("/v2/{endpoint}/job-take/{worker}", worker(desk.job_take), methods=["GET"]),
            Route("/v2/{endpoint}/job-take-batch/{worker}", worker(desk.job_take_batch), methods=["GET"]),
            Route("/v2/{endpoint}/job-stop/{worker}", worker(desk.job_stop), methods=["GET"]),
            Route("/v2/{endpoint}/job-done/{worker}/{job}", worker(desk.job_done), methods=["POST"]),
            Route("/v2/{endpoint}/job-stream/{worker}/{job}", worker(desk.job_stream), methods=["POST"]),
            Route("/v2/{endpoint}/ping/{worker}", worker(desk.ping), methods=["GET"]),
        ]
        return self.watched(Starlette(routes=routes))

    def watched(self, app: Starlette) -> WireFaults:
        self.wires.append(WireFaults(app, self))
        return self.wires[-1]

    def managed(self, path: str, **handlers: Handler) -> Route:
        """One path of management with all its methods (`Allow` names them): a bearer token, errors as problems."""

        async def inner(request: Request) -> Response:
            header = request.headers.get("authorization", "")
            if not header.startswith("Bearer "):
                return problem(ApiError(401, "missing bearer token"))
            refused = self.account.faults.management_unauthorized and not path.startswith("/_emulator/")
            if refused or not same(header.removeprefix("Bearer "), self.key):
                return problem(ApiError(401, "invalid api key"))
            try:
                return await handlers["GET" if request.method == "HEAD" else request.method](request)
            except ApiError as error:
                return problem(error)

        return Route(path, inner, methods=list(handlers))

    def owned(self, handler: Handler) -> Handler:
        """Jobs: the same key, with or without `Bearer`."""

        async def inner(request: Request) -> Response:
            header = request.headers.get("authorization", "").removeprefix("Bearer ")
            if self.account.faults.jobs_unauthorized or not same(header, self.key):
                return job_error(ApiError(401, "invalid api key"))
            try:
                return await handler(request)
            except ApiError as error:
                return job_error(error)

        return inner

    def from_worker(self, handler: WorkerHandler) -> Handler:
        """Workers: the endpoint's own key, raw."""

        async def inner(request: Request) -> Response:
            endpoint = self.account.endpoints.get(request.path_params["endpoint"])
            if endpoint is None:
                return job_error(ApiError(404, "endpoint not found"))
            if not same(request.headers.get("authorization", ""), endpoint.worker_key.encode()):
                return job_error(ApiError(401, "unauthorized"))
            try:
                return await handler(request, endpoint, request.path_params["worker"])
            except ApiError as error:
                return job_error(error)

        return inner

    # --- management

    async def list_endpoints(self, _: Request) -> Response:
        return answer(self.account.listed())

    async def create_endpoint(self, request: Request) -> Response:
        return answer(self.account.create(await body_of(request, MAX_MANAGEMENT)), 201)

    async def get_endpoint(self, request: Request) -> Response:
        return answer(self.account.get(request.path_params["endpoint"]))

    async def patch_endpoint(self, request: Request) -> Response:
        return answer(self.account.patch(request.path_params["endpoint"], await body_of(request, MAX_MANAGEMENT)))

    async def delete_endpoint(self, request: Request) -> Response:
        self.account.delete(request.path_params["endpoint"])
        await self.supervisor.look()
        return Response(status_code=204)

    async def list_workers(self, request: Request) -> Response:
        return answer(self.account.workers_list(request.path_params["endpoint"]))

    async def list_releases(self, request: Request) -> Response:
        return answer(self.account.releases(request.path_params["endpoint"]))

    async def worker_logs(self, request: Request) -> Response:
        """Lines as server-sent events; the stream goes on until its reader has enough, or the endpoint is gone."""
        endpoint, worker = request.path_params["endpoint"], request.path_params["worker"]
        if worker not in self.account.endpoint(endpoint).workers:
            raise ApiError(404, "resource not found")
        source = request.query_params.get("source", "container")
        tail = whole(request, "tail", 100, 0, 5000)

        async def events() -> AsyncIterator[str]:
            at = max(0, len(self.supervisor.log_lines(worker, source)) - tail)
            while endpoint in self.account.endpoints and not await request.is_disconnected():
                lines = self.supervisor.log_lines(worker, source)
                for line in lines[at:]:
                    now = iso(self.account.now())
                    yield f"id: {now}\ndata: {json.dumps({'source': source, 'line': line, 'ts': now})}\n\n"
                at = max(at, len(lines))
                await asyncio.sleep(LOOK_S)

        return StreamingResponse(events(), media_type="text/event-stream")

    async def list_templates(self, _: Request) -> Response:
        return answer({"templates": []})  # bound ones are hidden; this account has no others

    async def delete_template(self, request: Request) -> Response:
        self.account.delete_template(request.path_params["template"])
        return Response(status_code=204)

    async def list_gpus(self, _: Request) -> Response:
        return answer(self.account.catalog())

    async def get_gpu(self, request: Request) -> Response:
        return answer(self.account.catalog_entry(request.path_params["gpu"]))

    async def billing(self, request: Request) -> Response:
        asked = request.query_params
        start, end = moment(asked.get("startTime"), "startTime"), moment(asked.get("endTime"), "endTime")
        query = Query(asked.get("serverlessId"), start, end, asked.get("bucketSize", "hour"))
        return answer(self.account.bill(query.endpoint_id, query))

    async def other_billing(self, _: Request) -> Response:
        """Another product of the provider: looks right to who asks the wrong route, and says nothing was spent."""
        totals = {"totalAmount": 0}
        query = self.account.bill(None)["metadata"]["query"]
        del query["serverlessId"]
        return answer({"records": [], "metadata": {"query": query, "recordCount": 0, "totals": totals}})

    # --- for tests

    async def alive(self, _: Request) -> Response:
        """What is alive now: endpoints, bound templates, processes of workers, jobs that are not final."""
        endpoints = self.account.endpoints.values()
        return answer({
            "endpoints": [{"id": one.id, "name": one.settings["name"], "foreign": one.foreign} for one in endpoints],
            "templates": list(self.account.templates),
            "pids": await asyncio.to_thread(self.supervisor.pids),
            "jobs": [job.id for one in endpoints for job in one.jobs.values() if job.status not in FINAL],
        })  # fmt: skip

    async def log(self, _: Request) -> Response:
        return answer({"requests": self.seen})

    async def set_faults(self, request: Request) -> Response:
        try:
            self.account.faults = Faults.from_value(await body_of(request, 100_000))
        except ValueError as slip:
            raise ApiError(422, str(slip)) from slip
        self.account.changed()
        return Response(status_code=204)

    async def release(self, _: Request) -> Response:
        """Let every request go on that a rule of kind `hold` or `hold_answer` holds."""
        for wire in self.wires:
            wire.release()
        return Response(status_code=204)

    # --- jobs

    async def run(self, request: Request) -> Response:
        job = self.account.run(request.path_params["endpoint"], await body_of(request, MAX_RUN))
        return answer({"id": job.id, "status": job.status})

    async def runsync(self, request: Request) -> Response:
        endpoint = request.path_params["endpoint"]
        wait_s = whole(request, "wait", 90_000, *WAIT_MS) / 1000
        job = self.account.run(endpoint, await body_of(request, MAX_RUNSYNC), sync=True)
        await self._until(request, wait_s, lambda: job.status in FINAL)
        return answer(job.to_json())

    async def status(self, request: Request) -> Response:
        return answer(self.account.status(request.path_params["endpoint"], request.path_params["job"]).to_json())

    async def status_sync(self, request: Request) -> Response:
        job = self.account.status(request.path_params["endpoint"], request.path_params["job"])
        await self._until(request, whole(request, "wait", 90_000, *WAIT_MS) / 1000, lambda: job.status in FINAL)
        return answer(job.to_json())

    async def stream(self, request: Request) -> Response:
        endpoint, name = request.path_params["endpoint"], request.path_params["job"]
        job = self.account.status(endpoint, name)
        wait_s = whole(request, "wait", 10_000, *WAIT_MS) / 1000
        await self._until(request, wait_s, lambda: bool(job.chunks) or job.status in FINAL)
        return answer(self.account.stream(endpoint, name))

    async def _until(self, request: Request, wait_s: float, reached: Callable[[], bool]) -> None:
        until = time.monotonic() + wait_s
        while not reached() and time.monotonic() < until and not await request.is_disconnected():
            await self.waiters.wait()

    async def cancel(self, request: Request) -> Response:
        job = self.account.cancel(request.path_params["endpoint"], request.path_params["job"])
        return answer({"id": job.id, "status": job.status})

    async def retry(self, request: Request) -> Response:
        job = self.account.retry(request.path_params["endpoint"], request.path_params["job"])
        return answer({"id": job.id, "status": job.status})

    async def purge(self, request: Request) -> Response:
        return answer(self.account.purge(request.path_params["endpoint"]))

    async def health(self, request: Request) -> Response:
        return answer(self.account.health(request.path_params["endpoint"]))

    async def requests(self, request: Request) -> Response:
        return answer({"requests": self.account.requests(request.path_params["endpoint"])})


def same(shown: str, key: bytes) -> bool:
    """Compare a header with a key, in constant time. Headers may hold any byte."""
    return secrets.compare_digest(shown.encode("latin-1", "replace"), key)
