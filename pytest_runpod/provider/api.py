"""What we need of a provider: a dozen calls, and the values they speak. RunPod and the emulator's account implement it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pytest_runpod.core.money import MicroUsd


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """Everything an endpoint is asked to be. Sent in full, read back in full. Times in seconds, disk in GB."""

    name: str
    image: str
    args: str
    env: Mapping[str, str]
    pool: str
    excluded_types: tuple[str, ...]
    min_cuda: str | None
    disk_gb: int
    workers_min: int
    workers_max: int
    idle_timeout_s: int
    execution_timeout_s: int
    queue_delay_s: float
    gpu_count: int = 1
    flashboot: str = "OFF"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint as the provider describes it; *settings* is its own answer, undigested (it may hold secrets: never stored)."""

    id: str
    name: str
    workers_max: int
    request_urls: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card of the catalog. *price*: one GPU hour on Serverless; None where it is in no pool."""

    id: str
    pool: str | None
    memory_gb: int
    price: MicroUsd | None


@dataclass(frozen=True, slots=True)
class Health:
    """Counters of one endpoint, over its lifetime (jobs) and now (workers)."""

    jobs: Mapping[str, int]
    workers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Job:
    """A job as `/status` tells it. *status* is the provider's own word: unknown ones mean: still going. Times in ms."""

    id: str
    status: str
    output: Any = None
    error: str | None = None
    delay_ms: int | None = None
    execution_ms: int | None = None
    worker_id: str | None = None
    retries: int = 0

    @property
    def final(self) -> bool:
        return self.status in FINAL


FINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"})


@dataclass(frozen=True, slots=True)
class Policy:
    """Execution policy of one job, in seconds."""

    execution_timeout_s: int
    ttl_s: int


@dataclass(frozen=True, slots=True)
class Bill:
    """What the provider billed for one endpoint so far; zero soon after a run proves nothing (billing lags)."""

    amount: MicroUsd
    records: int


class Provider(Protocol):
    """The provider's calls. Reads and deletes may be retried inside; creating and submitting never are.

    Raises (all of them): `errors.ProviderError` and its branches; for a create or submit whose answer was lost,
    `errors.FateUnknown`.
    """

    def list_endpoints(self) -> tuple[Endpoint, ...]: ...

    def create_endpoint(self, spec: EndpointSpec) -> Endpoint: ...

    def get_endpoint(self, endpoint_id: str) -> Endpoint | None:
        """None: the provider says that there is none (404)."""
        ...

    def scale_to_zero(self, endpoint_id: str) -> None: ...

    def delete_endpoint(self, endpoint_id: str) -> None:
        """Already gone is success."""
        ...

    def gpus(self) -> tuple[Gpu, ...]: ...

    def bill(self, endpoint_id: str) -> Bill: ...

    def check_job_access(self) -> None:
        """Ask the job API about an endpoint that does not exist: 404 is the good answer, 401 and 403 raise."""
        ...

    def health(self, endpoint: Endpoint) -> Health | None:
        """None: not there yet (404)."""
        ...

    def submit(self, endpoint: Endpoint, job_input: Mapping[str, Any], policy: Policy) -> Job: ...

    def job(self, endpoint: Endpoint, job_id: str) -> Job | None:
        """None: not known any more (404): expired, or lost."""
        ...

    def cancel(self, endpoint: Endpoint, job_id: str) -> None: ...
