"""A RunPod account in memory: endpoints, queues, jobs, workers, bills. No sockets, no processes; time is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_runpod.emulator.billing import Query, Span, bill, iso
from pytest_runpod.emulator.catalog import PRICES, gpu_types
from pytest_runpod.emulator.faults import Faults
from pytest_runpod.emulator.records import RETENTION_S, SYNC_RETENTION_S, EndpointRecord, JobRecord, WorkerRecord
from pytest_runpod.emulator.validation import ApiError, checked_create, checked_patch, checked_policy, checked_quota

PING_LOST_S: Final = 40.0  # a job that no ping names for so long is dispatched again, once
MAX_RESULT: Final = 10_000_000  # what job-done takes; larger ones were seen to be refused with 400
RETRIES: Final = 1
WORKER_STATES: Final = ("running", "idle", "initializing", "throttled", "unhealthy")
FINAL: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"})
PROMPT: Final = frozenset({"workers", "scaling", "timeout", "name"})  # every other change makes a release
PASSED_ON: Final = ("webhook", "s3Config")  # of a job's body; the worker sees them
__all__ = ["FINAL", "MAX_RESULT", "PING_LOST_S", "RETENTION_S", "Account", "ApiError"]


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
    templates: dict[str, dict[str, Any]] = field(default_factory=dict)  # bound ones, by endpoint: hidden from the list
    spans: list[Span] = field(default_factory=list)
    killed: list[tuple[EndpointRecord, str]] = field(default_factory=list)  # workers that die now, by a fault

    def __post_init__(self) -> None:
        for number in range(self.faults.foreign_endpoints):
            body = {
                "name": f"{'pytest-runpod-of-' if number % 2 else ''}somebody-else-{number}",
                "type": "QUEUE",
                "image": "img:tag",
                "workers": {"max": 0},
                "scaling": {"type": "QUEUE_DELAY", "queueDelay": 4},
                "gpu": {"pools": ["AMPERE_24"]},
            }
            self.endpoints[self.create(body)["id"]].foreign = True

    # --- management

    def create(self, body: Any) -> dict[str, Any]:
        settings = checked_create(body, self._quota_used())
        if self.faults.stored_workers_max is not None:
            settings["workers"]["max"] = self.faults.stored_workers_max
        settings["name"] = self.faults.stored_name or settings["name"]
        now = self.now()
        endpoint = EndpointRecord(self.token()[:14], settings, now, self.token(), raised=now, releases=[now])
        self.endpoints[endpoint.id] = endpoint
        self.templates[endpoint.id] = {"id": f"t{endpoint.id}", "image": settings["image"]}
        self.changed()
        return self.described(endpoint)

    def listed(self) -> dict[str, Any]:
        shown = self.now() - self.faults.unlisted_s
        seen = (endpoint for endpoint in self.endpoints.values() if endpoint.foreign or endpoint.created <= shown)
        return {"endpoints": [self.described(endpoint) for endpoint in seen]}

    def get(self, endpoint_id: str) -> dict[str, Any]:
        return self.described(self.endpoint(endpoint_id))

    def patch(self, endpoint_id: str, body: Any) -> dict[str, Any]:
        """Change what *body* names. Workers, scaling, timeout and name act at once; the rest as workers are replaced."""
        endpoint = self.endpoint(endpoint_id)
        settings = checked_patch(endpoint.settings, body)
        before, after = endpoint.max_workers, settings["workers"]["max"]
        if after > before:
            checked_quota(self._quota_used() - before, after)
            if before == 0:
                endpoint.raised = self.now()
        if {name for name in settings if settings[name] != endpoint.settings.get(name)} - PROMPT:
            endpoint.releases.append(self.now())
        endpoint.settings = settings
        self.changed()
        return self.described(endpoint)

    def delete(self, endpoint_id: str) -> None:
        """Remove the endpoint, its bound template, its jobs; its workers are stopped by whoever runs them."""
        endpoint = self.endpoint(endpoint_id)
        if self.faults.undeletable:
            return
        now = self.now()
        if endpoint.doomed_at is None:
            endpoint.doomed_at = now + self.faults.delete_lag_s
        if now >= endpoint.doomed_at:
            self._remove(endpoint)

    def _remove(self, endpoint: EndpointRecord) -> None:
        for job in endpoint.jobs.values():
            if job.status not in FINAL:
                self._finish(endpoint, job, "CANCELLED")
        for worker in endpoint.live():
            self.worker_ended(endpoint, worker.id)
        del self.endpoints[endpoint.id]
        del self.templates[endpoint.id]
        self.changed()

    def delete_template(self, template_id: str) -> None:
        """Refuse: this account has no templates but bound ones, and those go with their endpoint."""
        if template_id in {template["id"] for template in self.templates.values()}:
            raise ApiError(400, "template is bound to an endpoint")
        raise ApiError(404, "resource not found")

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
        urls = {**plain, **with_job}
        return {"id": endpoint.id, **endpoint.settings, "requestUrls": urls, "createdAt": iso(endpoint.created)}

    def workers_list(self, endpoint_id: str) -> dict[str, Any]:
        endpoint = self.endpoint(endpoint_id)
        states = Counter(worker.state.lower() for worker in endpoint.live())
        now = self.now()
        return {
            "workers": [
                {
                    "id": worker.id, "status": worker.state, "isStale": worker.version < endpoint.version,
                    "version": worker.version, "gpuCount": 1, "image": endpoint.settings["image"],
                    "uptimeSeconds": int(now - worker.started), "gpuTypeId": None, "dataCenterId": "EMU-1",
                    "startedAt": iso(worker.started),
                }
                for worker in endpoint.live()
            ],
            "summary": {**{name: states[name] for name in WORKER_STATES}, "total": sum(states.values())},
            "endpointVersion": endpoint.version,
        }  # fmt: skip

    def releases(self, endpoint_id: str) -> dict[str, Any]:
        endpoint = self.endpoint(endpoint_id)
        live = Counter(worker.version for worker in endpoint.live())
        total, latest = sum(live.values()), live[endpoint.version]
        rollout = {
            "inProgress": latest < total,
            "workersOnLatest": latest,
            "workersTotal": total,
            "percentOnLatest": 100 * latest // total if total else 100,
        }
        releases: list[dict[str, Any]] = [
            {
                "id": f"{endpoint.id}-{number}", "version": number, "source": "MANUAL", "buildId": None, "createdByUserId": None,
                "workerCount": live[number], "createdAt": iso(at), "diff": [],
            }
            for number, at in enumerate(endpoint.releases, 1)
        ]  # fmt: skip
        return {"endpointVersion": endpoint.version, "rollout": rollout, "releases": releases[::-1]}

    def catalog(self) -> dict[str, Any]:
        return {"gpus": gpu_types(self.faults.price_factor)}

    def catalog_entry(self, gpu_id: str) -> dict[str, Any]:
        for one in gpu_types(self.faults.price_factor):
            if one["id"] == gpu_id:
                return one
        raise ApiError(404, "resource not found")

    def rate(self, endpoint: EndpointRecord) -> float:
        """US dollars per hour of one worker."""
        gpu = endpoint.settings.get("gpu", {"pools": ["AMPERE_16"]})
        return PRICES[gpu["pools"][0]] * int(gpu.get("count", 1)) * self.faults.price_factor

    def bill(self, endpoint_id: str | None, query: Query | None = None) -> dict[str, Any]:
        """Buckets of what workers have cost, as far as the lag lets them be seen. Deleted endpoints stay in."""
        running = [
            Span(endpoint.id, worker.started, self.now(), self.rate(endpoint))
            for endpoint in self.endpoints.values()
            for worker in endpoint.live()
        ]
        asked = query or Query(endpoint_id)
        return bill([*self.spans, *running], asked, self.now(), self.faults.billing_lag_s)

    def _quota_used(self) -> int:
        return self.faults.quota_used + sum(endpoint.max_workers for endpoint in self.endpoints.values())

    # --- jobs, as their owner sees them

    def run(self, endpoint_id: str, body: Any, *, sync: bool = False) -> JobRecord:
        endpoint = self.job_endpoint(endpoint_id)
        if not isinstance(body, dict) or not isinstance(body.get("input"), dict):
            raise ApiError(400, "input must be an object")
        timeout_s, ttl_s = checked_policy(body.get("policy"))
        if endpoint.max_workers == 0 or self.now() < endpoint.raised + self.faults.paused_s:
            raise ApiError(409, "ENDPOINT_PAUSED")
        if (body.get("policy") or {}).get("executionTimeout") is None and endpoint.settings["timeout"]:
            timeout_s = endpoint.settings["timeout"] / 1000
        timeout_s = self.faults.execution_timeout_s or timeout_s
        ttl_s = self.faults.ttl_s or ttl_s
        now = self.now()
        name = f"{'sync-' if sync else ''}{self.token()}-e1"
        job = JobRecord(name, body["input"], timeout_s, ttl_s, now, queued=now)
        job.retention_s = SYNC_RETENTION_S if sync else RETENTION_S
        job.extra = {key: body[key] for key in PASSED_ON if key in body}
        endpoint.jobs[job.id] = job
        endpoint.queue.append(job.id)
        self.changed()
        return job

    def status(self, endpoint_id: str, job_id: str) -> JobRecord:
        job = self.job_endpoint(endpoint_id).jobs.get(job_id)
        if job is None:
            raise ApiError(404, "job not found")
        return job

    def stream(self, endpoint_id: str, job_id: str) -> dict[str, Any]:
        """Drain what a generator handler has streamed since the last call."""
        job = self.status(endpoint_id, job_id)
        chunks, job.chunks = job.chunks, []
        return {"status": job.status, "stream": [{"output": chunk} for chunk in chunks]}

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
        job.error, job.finished, job.started, job.retries = None, None, None, 0
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
        worker = WorkerRecord(f"w{self.token()[:13]}", self.now(), endpoint.version)
        endpoint.workers[worker.id] = worker
        return worker

    def worker_ended(self, endpoint: EndpointRecord, worker_id: str) -> None:
        worker = endpoint.workers[worker_id]
        if worker.ended is None:
            worker.ended = self.now()
            endpoint.to_stop.pop(worker_id, None)
            self.spans.append(Span(endpoint.id, worker.started, worker.ended, self.rate(endpoint)))
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
        worker.dispatched += 1
        endpoint.dispatched += 1
        endpoint.unhealthy = 0
        return self._mishap(endpoint, job)

    def _mishap(self, endpoint: EndpointRecord, job: JobRecord) -> dict[str, Any]:
        """What befalls a job that was just taken, as the faults have it."""
        given = job.for_worker()
        if self.faults.cancel_jobs:
            self._stop_on_worker(endpoint, job)
            self._finish(endpoint, job, "CANCELLED")
        if self.faults.forget_jobs:
            self._forget(endpoint, job)
        if endpoint.dispatched <= self.faults.kill_workers:
            self.killed.append((endpoint, job.worker or ""))
        return given

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

    def done(
        self, endpoint: EndpointRecord, worker_id: str, job_id: str, body: Any, size: int, *, valid: bool = True
    ) -> None:
        """Take a result or a progress update of *size* bytes. *valid*: it was JSON as RFC 8259 has it, without NaN.

        Raises: ApiError: 404 for a job that is gone; 400 for what is not taken: the SDK then drops the result, and the job is
            COMPLETED without output, as it was seen on the live service.
        """
        job = endpoint.jobs.get(job_id)
        if job is None:
            raise ApiError(404, "job not found")
        refused = not valid or not isinstance(body, dict) or size > MAX_RESULT
        if isinstance(body, dict) and body.get("status") == "IN_PROGRESS":
            if not refused and job.status == "IN_PROGRESS" and job.worker == worker_id:
                job.output, job.has_output = body.get("output"), True
        else:
            self.released(endpoint, worker_id, job_id)
            if job.status not in FINAL and job.worker == worker_id:
                self._take_result(endpoint, job, {} if refused else body)
            if not refused and body.get("stopPod"):
                endpoint.workers[worker_id].stopping = True
        if refused:
            raise ApiError(400, "the result is too large, or not a JSON object")

    def _take_result(self, endpoint: EndpointRecord, job: JobRecord, body: dict[str, Any]) -> None:
        if self.faults.double_execution and not job.retries:
            self._lost(endpoint, job)
            return
        job.output, job.has_output = None, False
        if "output" in body and not self.faults.lose_result:
            job.output, job.has_output = body["output"], True
        if body.get("error") is not None:
            job.error = str(body["error"])
        self._finish(endpoint, job, "FAILED" if job.error is not None else "COMPLETED")
        if self.faults.late_progress:
            job.status = "IN_PROGRESS"

    def chunk(self, endpoint: EndpointRecord, worker_id: str, job_id: str, body: Any) -> None:
        """Take one chunk of a generator handler's stream."""
        job = endpoint.jobs.get(job_id)
        if job is None:
            raise ApiError(404, "job not found")
        if job.worker == worker_id and job.status == "IN_PROGRESS" and isinstance(body, dict):
            job.chunks.append(body.get("output"))
            self.changed()

    def released(self, endpoint: EndpointRecord, worker_id: str, job_id: str) -> None:
        """The worker is rid of the job and may take another one."""
        worker = endpoint.workers.get(worker_id)
        endpoint.to_stop.get(worker_id, set()).discard(job_id)
        if worker is not None and worker.job == job_id:
            worker.job, worker.state, worker.idle_since = None, "IDLE", self.now()
        self.changed()

    # --- time

    def tick(self) -> list[tuple[EndpointRecord, str]]:
        """Let time pass: TTL, execution timeouts, lost workers, retention. Returns workers whose job has ended without them."""
        doomed: list[tuple[EndpointRecord, str]] = []
        now = self.now()
        for endpoint in [one for one in self.endpoints.values() if one.doomed_at is not None and now >= one.doomed_at]:
            self._remove(endpoint)
        for endpoint in self.endpoints.values():
            for job in list(endpoint.jobs.values()):
                running = job.status == "IN_PROGRESS"
                if now > job.created + job.ttl_s or (job.finished is not None and now > job.finished + job.retention_s):
                    doomed += self._forget(endpoint, job)
                elif running and job.started is not None and now > job.started + job.timeout_s:
                    self._stop_on_worker(endpoint, job)
                    doomed += self._holder(endpoint, job)
                    status = "FAILED" if self.faults.timeout_is_failed else "TIMED_OUT"
                    self._finish(endpoint, job, status, "job timed out")
                elif running and job.seen is not None and now > job.seen + (self.faults.ping_lost_s or PING_LOST_S):
                    doomed += self._lost(endpoint, job)
        return doomed

    def _forget(self, endpoint: EndpointRecord, job: JobRecord) -> list[tuple[EndpointRecord, str]]:
        doomed = []
        if job.status == "IN_PROGRESS":
            self._stop_on_worker(endpoint, job)
            doomed = self._holder(endpoint, job)
        if job.id in endpoint.queue:
            endpoint.queue.remove(job.id)
        del endpoint.jobs[job.id]
        return doomed

    def _lost(self, endpoint: EndpointRecord, job: JobRecord) -> list[tuple[EndpointRecord, str]]:
        """Its worker is silent about it: dispatch the job again, once. A worker that still claims to run it must end."""
        doomed = self._holder(endpoint, job)
        if job.retries >= RETRIES:
            self._finish(endpoint, job, "FAILED", f"job timed out after {RETRIES} retries")
            return doomed
        job.retries += 1
        endpoint.counts["retried"] += 1
        self._requeue(endpoint, job)
        return doomed

    def _requeue(self, endpoint: EndpointRecord, job: JobRecord) -> None:
        job.status, job.worker, job.seen, job.queued = "IN_QUEUE", None, None, self.now()
        job.output, job.has_output = None, False
        endpoint.queue.append(job.id)
        self.changed()

    def _holder(self, endpoint: EndpointRecord, job: JobRecord) -> list[tuple[EndpointRecord, str]]:
        """The worker that has taken the job and not let go of it, if it is still there."""
        worker = endpoint.workers.get(job.worker or "")
        if worker is None or worker.ended is not None or worker.job != job.id:
            return []
        return [(endpoint, worker.id)]

    def _stop_on_worker(self, endpoint: EndpointRecord, job: JobRecord) -> None:
        for _, worker_id in self._holder(endpoint, job):
            endpoint.to_stop.setdefault(worker_id, set()).add(job.id)

    def _finish(self, endpoint: EndpointRecord, job: JobRecord, status: str, error: str | None = None) -> None:
        job.status, job.finished = status, self.now()
        if error is not None:
            job.error, job.output, job.has_output = error, None, False  # failures of the platform have no output
        if job.id in endpoint.queue:
            endpoint.queue.remove(job.id)
        endpoint.counts["completed"] += status == "COMPLETED"
        endpoint.counts["failed"] += status in ("FAILED", "TIMED_OUT")
        self.changed()
