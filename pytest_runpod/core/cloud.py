"""The values that a provider speaks: endpoints, cards, jobs, bills. No call is made here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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


FINAL: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"})


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
