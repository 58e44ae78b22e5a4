"""RunPod's hosts, spellings and quirks. Management: REST v2 on one host; jobs: another host, URLs taken from the endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pytest_runpod.core.money import MicroUsd, parse_usd
from pytest_runpod.errors import FateUnknown, ProviderError
from pytest_runpod.provider.api import Bill, Endpoint, EndpointSpec, Gpu, Health, Job, Policy
from pytest_runpod.provider.transport import Answer, Transport, refused

MANAGEMENT_URL: Final = "https://api.runpod.io"
JOBS_URL: Final = "https://api.runpod.ai"
LOGGED_WORKERS: Final = 3
LOGGED_LINES: Final = 500
NOBODY: Final = "pytest-runpod-nobody"  # an endpoint id that nobody has


class RunPod:
    """Client of one account. Implements `provider.api.Provider`. Source: the provider's OpenAPI document, version 2."""

    def __init__(self, transport: Transport, management_url: str = MANAGEMENT_URL, jobs_url: str = JOBS_URL) -> None:
        self._http = transport
        self._management = f"{management_url.rstrip('/')}/v2"
        self._jobs = f"{jobs_url.rstrip('/')}/v2"

    # --- management

    def list_endpoints(self) -> tuple[Endpoint, ...]:
        body = self._read(f"{self._management}/serverless", "The endpoints of the account cannot be listed.")
        return tuple(endpoint_of(value) for value in _list(body, "endpoints"))

    def create_endpoint(self, spec: EndpointSpec) -> Endpoint:
        url = f"{self._management}/serverless"
        answer = self._http.post(url, create_body(spec))
        if _says_no(answer):
            raise refused("POST", url, answer, "The provider refused to create the endpoint. No job was submitted.")
        try:
            return endpoint_of(answer.body)
        except ProviderError as odd:
            raise FateUnknown(
                "The provider answered the create in a way that tells nothing. The endpoint may exist all the same.",
                looked_at=f"POST {url} answered {answer.status}",
            ) from odd

    def get_endpoint(self, endpoint_id: str) -> Endpoint | None:
        url = f"{self._management}/serverless/{endpoint_id}"
        answer = self._http.get(url)
        if answer.status == 404:
            return None
        return endpoint_of(self._good("GET", url, answer, "The endpoint cannot be read."))

    def scale_to_zero(self, endpoint_id: str) -> None:
        url = f"{self._management}/serverless/{endpoint_id}"
        answer = self._http.patch(url, {"workers": {"min": 0, "max": 0}})
        if answer.status != 404:
            self._good("PATCH", url, answer, "The endpoint could not be scaled to zero.")

    def delete_endpoint(self, endpoint_id: str) -> None:
        url = f"{self._management}/serverless/{endpoint_id}"
        answer = self._http.delete(url)
        if answer.status not in (204, 200, 404):
            raise refused("DELETE", url, answer, "The endpoint could not be deleted.")

    def gpus(self) -> tuple[Gpu, ...]:
        body = self._read(f"{self._management}/catalog/gpus", "The GPU catalog cannot be read.")
        return tuple(gpu_of(value) for value in _list(body, "gpus"))

    def bill(self, endpoint_id: str) -> Bill:
        url = f"{self._management}/billing/serverless"
        params = {"serverlessId": endpoint_id, "bucketSize": "hour"}
        answer = self._http.get(url, params)
        body = self._good("GET", url, answer, "The bill cannot be read.")
        records = _list(body, "records")
        with _understood("a bill"):
            return Bill(MicroUsd(sum(parse_usd(record.get("totalAmount", 0)) for record in records)), len(records))

    # --- jobs

    def check_job_access(self) -> None:
        url = f"{self._jobs}/{NOBODY}/health"
        answer = self._http.get(url)
        if answer.status in (401, 403):
            raise refused(
                "GET",
                url,
                answer,
                "The key works for management, but not for jobs. Nothing was created, nothing was billed.",
            )

    def health(self, endpoint: Endpoint) -> Health | None:
        url = _url(endpoint, "health")
        answer = self._http.get(url)
        if answer.status == 404:
            return None
        body = self._good("GET", url, answer, "The health of the endpoint cannot be read.")
        return Health(jobs=_counters(body, "jobs"), workers=_counters(body, "workers"))

    def submit(self, endpoint: Endpoint, job_input: Mapping[str, Any], policy: Policy) -> Job:
        url = _url(endpoint, "run")
        answer = self._http.post(url, run_body(job_input, policy))
        if _says_no(answer):
            raise refused("POST", url, answer, "The provider refused the job. Nothing was executed.")
        try:
            return job_of(answer.body)
        except ProviderError as odd:
            raise FateUnknown(
                "The provider answered the submission in a way that tells nothing. The job may have been queued all the same.",
                looked_at=f"POST {url} answered {answer.status}",
            ) from odd

    def job(self, endpoint: Endpoint, job_id: str) -> Job | None:
        url = _job_url(_url(endpoint, "status"), job_id)
        answer = self._http.get(url)
        if answer.status == 404:
            return None
        return job_of(self._good("GET", url, answer, "The state of the job cannot be read."))

    def requests(self, endpoint: Endpoint) -> tuple[Job, ...] | None:
        """The route is documented, the form of its answer is not: a list of jobs, bare or under `requests` or `jobs`."""
        answer = self._http.get(f"{_url(endpoint, 'health').removesuffix('/health')}/requests")
        if answer.status == 404:
            return None
        body = self._good("GET", "requests", answer, "The jobs of the endpoint cannot be listed.")
        if isinstance(body, Mapping):
            body = next((body[key] for key in ("requests", "jobs") if key in body), None)
        if not isinstance(body, list) or not all(isinstance(one, Mapping) and one.get("id") for one in body):
            return None
        return tuple(job_of({"status": "IN_QUEUE", **one}) for one in body)

    def worker_log(self, endpoint_id: str) -> str:
        """Read what is there of each worker's two logs; they are streams without an end, so this stops at the first pause."""
        workers = f"{self._management}/serverless/{endpoint_id}/workers"
        body = self._read(workers, "The workers of the endpoint cannot be listed.")
        pieces = []
        for worker in [one for one in _list(body, "workers") if isinstance(one, Mapping)][:LOGGED_WORKERS]:
            for source in ("system", "container"):
                url = f"{workers}/{worker.get('id')}/logs"
                events = self._http.first_events(url, {"source": source, "tail": str(LOGGED_LINES)})
                lines = [str(event.get("line", "")) for event in events]
                pieces += [f"--- {worker.get('id')} ({worker.get('status')}), {source}", *lines]
        return "\n".join(pieces)

    def cancel(self, endpoint: Endpoint, job_id: str) -> None:
        url = _job_url(_url(endpoint, "cancel"), job_id)
        answer = self._http.post(url)
        if answer.status != 404:
            self._good("POST", url, answer, "The job could not be cancelled.")

    # --- shared

    def _read(self, url: str, trouble: str) -> Any:
        return self._good("GET", url, self._http.get(url), trouble)

    @staticmethod
    def _good(method: str, url: str, answer: Answer, trouble: str) -> Any:
        if not 200 <= answer.status < 300:
            raise refused(method, url, answer, trouble)
        return answer.body


def _says_no(answer: Answer) -> bool:
    """Whether an answer is a plain refusal, which had no effect. 408 and errors of the provider's own say nothing."""
    return 400 <= answer.status < 500 and answer.status not in (408, 499)


def run_body(job_input: Mapping[str, Any], policy: Policy) -> dict[str, Any]:
    """Make the body of `/run`. Times travel in milliseconds there."""
    return {
        "input": dict(job_input),
        "policy": {"executionTimeout": policy.execution_timeout_s * 1000, "ttl": policy.ttl_s * 1000},
    }


def settings_of(spec: EndpointSpec) -> dict[str, Any]:
    """What the provider must say of an endpoint made from *spec*, in its own spelling: compared after the create."""
    return {
        "name": spec.name,
        "type": "QUEUE",
        "image": spec.image,
        "args": spec.args,
        "disk": spec.disk_gb,
        "gpu.pools": [spec.pool],
        "gpu.count": spec.gpu_count,
        "gpu.excludedTypes": sorted(spec.excluded_types),
        "gpu.minCudaVersion": spec.min_cuda,
        "workers.min": spec.workers_min,
        "workers.max": spec.workers_max,
        "workers.idleTimeout": spec.idle_timeout_s,
        "scaling.type": "QUEUE_DELAY",
        "scaling.queueDelay": spec.queue_delay_s,
        "timeout": spec.execution_timeout_s * 1000,
        "flashboot": spec.flashboot,
        "networkVolumes": [],
        "env": dict(spec.env),
    }


def differing_settings(spec: EndpointSpec, endpoint: Endpoint) -> tuple[str, ...]:
    """Name every setting that came back other than it was asked for, with both values (values of `env` are not shown)."""
    lines = []
    for key, wanted in settings_of(spec).items():
        value: Any = endpoint.settings
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if key in ("gpu.excludedTypes", "networkVolumes"):
            value = sorted(value or [])
        if value != wanted:
            lines.append("env" if key == "env" else f"{key}: asked for {wanted!r}, got {value!r}")
    return tuple(lines)


def create_body(spec: EndpointSpec) -> dict[str, Any]:
    """Make the body of `POST /v2/serverless`. Times travel in seconds there, but for `timeout`: milliseconds."""
    gpu: dict[str, Any] = {"pools": [spec.pool], "count": spec.gpu_count}
    if spec.excluded_types:
        gpu["excludedTypes"] = list(spec.excluded_types)
    if spec.min_cuda:
        gpu["minCudaVersion"] = spec.min_cuda
    return {
        "name": spec.name,
        "type": "QUEUE",
        "scaling": {"type": "QUEUE_DELAY", "queueDelay": spec.queue_delay_s},
        "gpu": gpu,
        "image": spec.image,
        "args": spec.args,
        "disk": spec.disk_gb,
        "env": dict(spec.env),
        "workers": {"min": spec.workers_min, "max": spec.workers_max, "idleTimeout": spec.idle_timeout_s},
        "timeout": spec.execution_timeout_s * 1000,
        "flashboot": spec.flashboot,
    }


def _job_url(template: str, job_id: str) -> str:
    for placeholder in ("{job_id}", "{jobId}", "{id}", "%7Bjob_id%7D"):
        if placeholder in template:
            return template.replace(placeholder, job_id)
    return f"{template.rstrip('/')}/{job_id}"


def endpoint_of(value: Any) -> Endpoint:
    """Read an endpoint. Raises: ProviderError: it is described in a way that we do not know."""
    with _understood("an endpoint"):
        return Endpoint(
            id=str(value["id"]),
            name=str(value["name"]),
            workers_max=int(value["workers"]["max"]),
            request_urls={str(key): str(url) for key, url in (value.get("requestUrls") or {}).items()},
            settings=value,
        )


def gpu_of(value: Any) -> Gpu:
    """Read a card of the catalog. Raises: ProviderError: it is described in a way that we do not know."""
    with _understood("a card"):
        price = (value.get("price") or {}).get("serverless")
        return Gpu(
            id=str(value["id"]),
            pool=value.get("pool"),
            memory_gb=int(value.get("memory", 0)),
            price=None if price is None else parse_usd(price),
        )


def job_of(value: Any) -> Job:
    """Read a job. Raises: ProviderError: it is described in a way that we do not know."""
    with _understood("a job"):
        return Job(
            id=str(value["id"]),
            status=str(value["status"]),
            output=value.get("output"),
            error=None if value.get("error") is None else str(value["error"]),
            delay_ms=value.get("delayTime"),
            execution_ms=value.get("executionTime"),
            worker_id=value.get("workerId"),
            retries=int(value.get("retries") or 0),
        )


def _list(body: Any, key: str) -> list[Any]:
    if not isinstance(body, Mapping) or not isinstance(body.get(key), list):
        raise ProviderError("The provider gave a list in a way that we do not know.", looked_at=f"no list {key!r}")
    return list(body[key])


def _counters(body: Any, key: str) -> dict[str, int]:
    group = body.get(key) if isinstance(body, Mapping) else None
    with _understood("its health"):
        return {str(name): int(value) for name, value in (group or {}).items()}


def _url(endpoint: Endpoint, name: str) -> str:
    with _understood("where an endpoint takes jobs"):
        return endpoint.request_urls[name]


@contextmanager
def _understood(what: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as slip:
        raise ProviderError(
            f"The provider described {what} in a way that we do not know.", looked_at=repr(slip)[:200]
        ) from slip
