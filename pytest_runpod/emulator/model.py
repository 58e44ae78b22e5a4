"""A RunPod account in memory: endpoints, queues, jobs, workers, bills. No sockets, no processes; time is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from pytest_runpod.emulator.catalog import PRICES, gpu_types
from pytest_runpod.emulator.faults import Faults
from pytest_runpod.emulator.validation import ApiError, checked_create, checked_gpu, checked_policy, checked_workers

PING_LOST_S: Final = 40.0  # a job that no ping names for so long is dispatched again, once
RETENTION_S: Final = 1800.0  # results of /run. Source: the provider's job states page
SYNC_RETENTION_S: Final = 60.0
MAX_RESULT: Final = 10_000_000  # what job-done takes; larger ones were seen to be refused with 400
RETRIES: Final = 1
WORKER_STATES: Final = ("running", "idle", "initializing", "throttled", "unhealthy")
FINAL: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"})


@dataclass
class JobRecord:
    """One job. Times are seconds of the account's clock."""

    id: str
    input: Any
    timeout_s: float
    ttl_s: float
    created: float
    status: str = "IN_QUEUE"
    queued: float = 0.0
    started: float | None = None
    finished: float | None = None
    seen: float | None = None  # when a ping last named it
    worker: str | None = None
    output: Any = None
    has_output: bool = False
    error: str | None = None
    retries: int = 0
    retention_s: float = RETENTION_S

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"id": self.id, "status": self.status}
        if self.started is not None:
            value["delayTime"] = int((self.started - self.created) * 1000)
            value["workerId"] = self.worker
        if self.started is not None and self.finished is not None and self.status != "CANCELLED":
            value["executionTime"] = int((self.finished - self.started) * 1000)
        if self.has_output:
            value["output"] = self.output
        if self.error is not None:
            value["error"] = self.error
        if self.retries:
            value["retries"] = self.retries
        return value


@dataclass
class WorkerRecord:
    """One worker as the account sees it. *state* as in the workers list."""

    id: str
    started: float
    state: str = "INITIALIZING"
    job: str | None = None
    idle_since: float | None = None
    stopping: bool = False
    ended: float | None = None


@dataclass
class EndpointRecord:
    """One endpoint: its settings, its queue, its workers, and counters over its lifetime."""

    id: str
    settings: dict[str, Any]
    created: float
    worker_key: str
    foreign: bool = False
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    queue: list[str] = field(default_factory=list)
    workers: dict[str, WorkerRecord] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    to_stop: dict[str, set[str]] = field(default_factory=dict)  # worker -> job ids it shall stop
    unhealthy: int = 0
    dispatched: int = 0

    @property
    def max_workers(self) -> int:
        return int(self.settings["workers"]["max"])

    def live(self) -> list[WorkerRecord]:
        return [worker for worker in self.workers.values() if worker.ended is None]


@dataclass
class Account:
    """Everything that one key owns. *now* and *token* come from outside; *changed* is called when a waiter should look again."""

    now: Callable[[], float]
    token: Callable[[], str]
    jobs_url: str = "http://127.0.0.1"
    faults: Faults = field(default_factory=Faults)
    standby: bool = True  # a fresh endpoint shows one idle worker, although workers.min is 0
    changed: Callable[[], None] = lambda: None
    endpoints: dict[str, EndpointRecord] = field(default_factory=dict)
    templates: dict[str, dict[str, Any]] = field(default_factory=dict)
    spans: list[tuple[str, float, float, float]] = field(default_factory=list)  # endpoint, begin, end, dollars per hour

    def __post_init__(self) -> None:
        for number in range(self.faults.foreign_endpoints):
            body = {
                "name": f"somebody-else-{number}",
                "type": "QUEUE",
                "image": "img:tag",
                "workers": {"max": 0},
                "scaling": {"type": "QUEUE_DELAY", "queueDelay": 4},
                "gpu": {"pools": ["AMPERE_24"]},
            }
            self.endpoints[self.create(body)["id"]].foreign = True

    # --- management

    def create(self, body: Any) -> dict[str, Any]:
        used = self.faults.quota_used + sum(endpoint.max_workers for endpoint in self.endpoints.values())
        settings = checked_create(body, used)
        if self.faults.stored_workers_max is not None:
            settings["workers"]["max"] = self.faults.stored_workers_max
        endpoint = EndpointRecord(self.token()[:14], settings, self.now(), self.token())
        self.endpoints[endpoint.id] = endpoint
        self.templates[endpoint.id] = {"id": f"t{endpoint.id}", "image": settings["image"]}
        self.changed()
        return self.described(endpoint)

    def listed(self) -> dict[str, Any]:
        return {"endpoints": [self.described(endpoint) for endpoint in self.endpoints.values()]}

    def get(self, endpoint_id: str) -> dict[str, Any]:
        return self.described(self.endpoint(endpoint_id))

    def patch(self, endpoint_id: str, body: Any) -> dict[str, Any]:
        endpoint = self.endpoint(endpoint_id)
        if not isinstance(body, dict):
            raise ApiError(422, "request body must be an object")
        settings = dict(endpoint.settings)
        for name, value in body.items():
            if name == "workers":
                settings["workers"] = checked_workers(value, settings["scaling"], settings["workers"])
            elif name == "gpu":
                settings["gpu"] = checked_gpu({**value, "pools": value.get("pools", settings["gpu"]["pools"])})
            elif name in ("env", "image", "args", "disk", "timeout", "flashboot", "name", "scaling"):
                settings[name] = value
            else:
                raise ApiError(
                    422, "request body has an error", [{"location": f"body.{name}", "message": "cannot be changed"}]
                )
        endpoint.settings = settings
        self.changed()
        return self.described(endpoint)

    def delete(self, endpoint_id: str) -> None:
        """Remove the endpoint, its bound template, its jobs; its workers are stopped by whoever runs them."""
        endpoint = self.endpoint(endpoint_id)
        for job in endpoint.jobs.values():
            if job.status not in FINAL:
                self._finish(endpoint, job, "CANCELLED")
        for worker in endpoint.live():
            self.worker_ended(endpoint, worker.id)
        del self.endpoints[endpoint_id]
        del self.templates[endpoint_id]
        self.changed()

    def endpoint(self, endpoint_id: str) -> EndpointRecord:
        if endpoint_id not in self.endpoints:
            raise ApiError(404, "resource not found")
        return self.endpoints[endpoint_id]

    def described(self, endpoint: EndpointRecord) -> dict[str, Any]:
        base = f"{self.jobs_url}/v2/{endpoint.id}"
        with_job = {name: f"{base}/{name}/{{job_id}}" for name in ("status", "stream", "cancel", "retry")}
        plain = {
            "run": f"{base}/run",
            "runSync": f"{base}/runsync",
            "purgeQueue": f"{base}/purge-queue",
            "health": f"{base}/health",
        }
        created = datetime.fromtimestamp(endpoint.created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"id": endpoint.id, **endpoint.settings, "requestUrls": {**plain, **with_job}, "createdAt": created}

    def workers_list(self, endpoint_id: str) -> dict[str, Any]:
        endpoint = self.endpoint(endpoint_id)
        states = Counter(worker.state.lower() for worker in endpoint.live())
        now = self.now()
        return {
            "workers": [
                {
                    "id": worker.id, "status": worker.state, "isStale": False, "version": 1, "gpuCount": 1,
                    "image": endpoint.settings["image"], "uptimeSeconds": int(now - worker.started), "gpuTypeId": None,
                    "dataCenterId": "EMU-1", "startedAt": None,
                }
                for worker in endpoint.live()
            ],
            "summary": {**{name: states[name] for name in WORKER_STATES}, "total": sum(states.values())},
            "endpointVersion": 1,
        }  # fmt: skip

    def catalog(self) -> dict[str, Any]:
        return {"gpus": gpu_types(self.faults.price_factor)}

    def rate(self, endpoint: EndpointRecord) -> float:
        pool = endpoint.settings.get("gpu", {}).get("pools", ["AMPERE_16"])[0]
        return PRICES[pool] * self.faults.price_factor

    def bill(self, endpoint_id: str | None) -> dict[str, Any]:
        """Hour buckets of what workers have cost, as far as the lag lets them be seen. Deleted endpoints stay in."""
        visible = self.now() - self.faults.billing_lag_s
        running = [
            (endpoint.id, worker.started, self.now(), self.rate(endpoint))
            for endpoint in self.endpoints.values()
            for worker in endpoint.live()
        ]
        buckets: dict[tuple[str, int], float] = {}
        for name, begin, end, rate in [*self.spans, *running]:
            if endpoint_id in (None, name) and end <= visible:
                hour = int(begin // 3600)
                buckets[name, hour] = buckets.get((name, hour), 0.0) + (end - begin) * rate / 3600
        records = [
            {
                "startTime": _iso(hour * 3600), "endTime": _iso((hour + 1) * 3600), "serverlessId": name,
                "totalAmount": round(amount, 6), "gpuAmount": round(amount, 6), "cpuAmount": 0, "diskAmount": 0, "feeAmount": 0,
            }
            for (name, hour), amount in sorted(buckets.items())
        ]  # fmt: skip
        total = round(sum(buckets.values()), 6)
        totals = {"totalAmount": total, "gpuAmount": total, "cpuAmount": 0, "diskAmount": 0, "feeAmount": 0}
        query = {
            "startTime": _iso(self.now() - 30 * 86400),
            "endTime": _iso(self.now()),
            "bucketSize": "hour",
            "serverlessId": endpoint_id,
        }
        names = {record["serverlessId"] for record in records}
        return {
            "records": records,
            "metadata": {
                "query": query,
                "recordCount": len(records),
                "uniqueServerlessCount": len(names),
                "totals": totals,
            },
        }

    # --- jobs, as their owner sees them

    def run(self, endpoint_id: str, body: Any, *, sync: bool = False) -> JobRecord:
        endpoint = self.job_endpoint(endpoint_id)
        if not isinstance(body, dict) or not isinstance(body.get("input"), dict):
            raise ApiError(400, "input must be an object")
        if endpoint.max_workers == 0 or self.now() < endpoint.created + self.faults.paused_s:
            raise ApiError(409, "ENDPOINT_PAUSED")
        timeout_s, ttl_s = checked_policy(body.get("policy"))
        if (body.get("policy") or {}).get("executionTimeout") is None and endpoint.settings["timeout"]:
            timeout_s = endpoint.settings["timeout"] / 1000
        now = self.now()
        name = f"{'sync-' if sync else ''}{self.token()}-e1"
        job = JobRecord(name, body["input"], timeout_s, ttl_s, now, queued=now)
        job.retention_s = SYNC_RETENTION_S if sync else RETENTION_S
        endpoint.jobs[job.id] = job
        endpoint.queue.append(job.id)
        self.changed()
        return job

    def status(self, endpoint_id: str, job_id: str) -> JobRecord:
        job = self.job_endpoint(endpoint_id).jobs.get(job_id)
        if job is None:
            raise ApiError(404, "job not found")
        return job

    def cancel(self, endpoint_id: str, job_id: str) -> JobRecord:
        endpoint, job = self.endpoint(endpoint_id), self.status(endpoint_id, job_id)
        if job.status not in FINAL:
            self._stop_on_worker(endpoint, job)
            self._finish(endpoint, job, "CANCELLED")
        return job

    def retry(self, endpoint_id: str, job_id: str) -> JobRecord:
        endpoint, job = self.endpoint(endpoint_id), self.status(endpoint_id, job_id)
        if job.status not in ("FAILED", "TIMED_OUT"):
            raise ApiError(400, "only failed or timed out jobs can be retried")
        job.output, job.has_output, job.error, job.finished, job.started = None, False, None, None, None
        job.retries = 0
        self._requeue(endpoint, job)
        return job

    def purge(self, endpoint_id: str) -> dict[str, Any]:
        endpoint = self.job_endpoint(endpoint_id)
        removed = [endpoint.jobs[name] for name in endpoint.queue]
        for job in removed:
            self._finish(endpoint, job, "CANCELLED")
        return {"removed": len(removed), "status": "completed"}

    def requests(self, endpoint_id: str) -> list[dict[str, Any]]:
        return [job.to_json() for job in self.job_endpoint(endpoint_id).jobs.values()]

    def health(self, endpoint_id: str) -> dict[str, Any]:
        endpoint = self.job_endpoint(endpoint_id)
        states = Counter(worker.state for worker in endpoint.live())
        waiting = Counter(job.status for job in endpoint.jobs.values())
        fresh = not endpoint.dispatched and not states and endpoint.max_workers > 0
        standby = int(self.standby and fresh and not self.faults.throttled)
        idle = states["IDLE"] + standby
        throttled = int(self.faults.throttled and bool(endpoint.queue))
        return {
            "jobs": {
                "completed": endpoint.counts["completed"],
                "failed": endpoint.counts["failed"],
                "inProgress": waiting["IN_PROGRESS"],
                "inQueue": waiting["IN_QUEUE"],
                "retried": endpoint.counts["retried"],
            },
            "workers": {
                "idle": idle,
                "initializing": states["INITIALIZING"],
                "ready": idle,
                "running": states["RUNNING"],
                "throttled": throttled,
                "unhealthy": endpoint.unhealthy,
            },
        }

    def job_endpoint(self, endpoint_id: str) -> EndpointRecord:
        endpoint = self.endpoint(endpoint_id)
        if self.now() < endpoint.created + self.faults.propagation_s:
            raise ApiError(404, "resource not found")
        return endpoint

    # --- jobs, as workers see them

    def worker_started(self, endpoint: EndpointRecord) -> WorkerRecord:
        worker = WorkerRecord(f"w{self.token()[:13]}", self.now())
        endpoint.workers[worker.id] = worker
        return worker

    def worker_ended(self, endpoint: EndpointRecord, worker_id: str) -> None:
        worker = endpoint.workers[worker_id]
        if worker.ended is None:
            worker.ended = self.now()
            self.spans.append((endpoint.id, worker.started, worker.ended, self.rate(endpoint)))
            self.changed()

    def take(self, endpoint: EndpointRecord, worker_id: str) -> dict[str, Any] | None:
        """Hand the next job to a worker that asks; None if there is none, or the worker is being stopped."""
        worker = endpoint.workers.get(worker_id)
        if worker is None or worker.stopping or worker.ended is not None or self.faults.never_ready:
            return None
        if worker.state == "INITIALIZING":
            worker.state, worker.idle_since = "IDLE", self.now()
        if not endpoint.queue or worker.job is not None:
            return None
        job = endpoint.jobs[endpoint.queue.pop(0)]
        now = self.now()
        job.status, job.worker, job.started, job.seen = "IN_PROGRESS", worker_id, now, now
        worker.state, worker.job, worker.idle_since = "RUNNING", job.id, None
        endpoint.dispatched += 1
        endpoint.unhealthy = 0
        value = {"id": job.id, "input": job.input}
        if not job.input:
            del value["input"]  # the platform drops an empty input on the way
        return value

    def ping(self, endpoint: EndpointRecord, worker_id: str, job_ids: list[str], *, unhealthy: bool) -> None:
        if unhealthy:
            endpoint.unhealthy += 1
        now = self.now()
        for name in job_ids:
            job = endpoint.jobs.get(name)
            if job is not None and job.worker == worker_id:
                job.seen = now

    def stop_signals(self, endpoint: EndpointRecord, worker_id: str) -> list[str]:
        """Job ids that the worker shall stop; repeated until it is rid of them (an early signal is lost in the SDK)."""
        return sorted(endpoint.to_stop.get(worker_id, ()))

    def done(self, endpoint: EndpointRecord, worker_id: str, job_id: str, body: Any, size: int) -> None:
        """Take a result or a progress update. Raises: ApiError: 404 for a job that is gone, 400 for one that is too large."""
        job = endpoint.jobs.get(job_id)
        if job is None:
            raise ApiError(404, "job not found")
        if isinstance(body, dict) and body.get("status") == "IN_PROGRESS":
            if job.status == "IN_PROGRESS" and job.worker == worker_id:
                job.output, job.has_output = body.get("output"), True
            return
        self.released(endpoint, worker_id, job_id)
        if job.status in FINAL or job.worker != worker_id:
            return
        job.output, job.has_output = None, False
        if size > MAX_RESULT:
            self._finish(endpoint, job, "COMPLETED")
            raise ApiError(400, "result too large")
        if "output" in body and not self.faults.lose_result:
            job.output, job.has_output = body["output"], True
        if body.get("error") is not None:
            job.error = str(body["error"])
        self._finish(endpoint, job, "FAILED" if job.error is not None else "COMPLETED")
        if self.faults.late_progress:
            job.status = "IN_PROGRESS"

    def released(self, endpoint: EndpointRecord, worker_id: str, job_id: str) -> None:
        """The worker is rid of the job and may take another one."""
        worker = endpoint.workers.get(worker_id)
        endpoint.to_stop.get(worker_id, set()).discard(job_id)
        if worker is not None and worker.job == job_id:
            worker.job, worker.state, worker.idle_since = None, "IDLE", self.now()
        self.changed()

    # --- time

    def tick(self) -> list[tuple[EndpointRecord, str]]:
        """Let time pass: TTL, execution timeouts, lost workers, retention. Returns workers that must be killed."""
        doomed: list[tuple[EndpointRecord, str]] = []
        now = self.now()
        for endpoint in self.endpoints.values():
            for job in list(endpoint.jobs.values()):
                if now > job.created + job.ttl_s or (job.finished is not None and now > job.finished + job.retention_s):
                    doomed += self._forget(endpoint, job)
                elif job.status == "IN_PROGRESS" and job.started is not None and now > job.started + job.timeout_s:
                    doomed.append((endpoint, str(job.worker)))
                    self._stop_on_worker(endpoint, job)
                    self._finish(
                        endpoint, job, "FAILED" if self.faults.timeout_is_failed else "TIMED_OUT", "job timed out"
                    )
                elif job.status == "IN_PROGRESS" and job.seen is not None and now > job.seen + PING_LOST_S:
                    self._lost(endpoint, job)
        return doomed

    def _forget(self, endpoint: EndpointRecord, job: JobRecord) -> list[tuple[EndpointRecord, str]]:
        running = job.status == "IN_PROGRESS" and job.worker is not None
        if running:
            self._stop_on_worker(endpoint, job)
        if job.id in endpoint.queue:
            endpoint.queue.remove(job.id)
        del endpoint.jobs[job.id]
        return [(endpoint, str(job.worker))] if running else []

    def _lost(self, endpoint: EndpointRecord, job: JobRecord) -> None:
        if job.retries >= RETRIES:
            self._finish(endpoint, job, "FAILED", f"job timed out after {RETRIES} retries")
            return
        job.retries += 1
        endpoint.counts["retried"] += 1
        self._requeue(endpoint, job)

    def _requeue(self, endpoint: EndpointRecord, job: JobRecord) -> None:
        job.status, job.worker, job.seen, job.queued = "IN_QUEUE", None, None, self.now()
        job.output, job.has_output = None, False
        endpoint.queue.append(job.id)
        self.changed()

    def _stop_on_worker(self, endpoint: EndpointRecord, job: JobRecord) -> None:
        if job.worker is not None:
            endpoint.to_stop.setdefault(job.worker, set()).add(job.id)

    def _finish(self, endpoint: EndpointRecord, job: JobRecord, status: str, error: str | None = None) -> None:
        job.status, job.finished = status, self.now()
        if error is not None:
            job.error = error
        if job.id in endpoint.queue:
            endpoint.queue.remove(job.id)
        endpoint.counts["completed"] += status == "COMPLETED"
        endpoint.counts["failed"] += status in ("FAILED", "TIMED_OUT")
        self.changed()


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
