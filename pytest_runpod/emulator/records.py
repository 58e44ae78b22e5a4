"""What an account remembers: endpoints, their workers, their jobs. Times are seconds of the account's clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

RETENTION_S: Final = 1800.0  # results of /run. Source: the provider's job states page
SYNC_RETENTION_S: Final = 60.0


@dataclass
class JobRecord:
    """One job."""

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
    extra: dict[str, Any] = field(default_factory=dict)  # handed to the worker as it came: webhook, s3Config
    chunks: list[Any] = field(default_factory=list)  # streamed, and not yet fetched

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

    def for_worker(self) -> dict[str, Any]:
        """What job-take hands out. The platform drops an empty input on the way."""
        return {"id": self.id, **({"input": self.input} if self.input else {}), **self.extra}


@dataclass
class WorkerRecord:
    """One worker as the account sees it. *state* as in the workers list; *stopping*: it gets no more jobs."""

    id: str
    started: float
    version: int = 1
    state: str = "INITIALIZING"
    job: str | None = None
    dispatched: int = 0
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
    raised: float = 0.0  # when workers.max last rose from 0
    releases: list[float] = field(default_factory=list)  # when what runs was changed
    doomed_at: float | None = None  # its deletion was answered; it goes then

    @property
    def max_workers(self) -> int:
        return int(self.settings["workers"]["max"])

    @property
    def min_workers(self) -> int:
        return int(self.settings["workers"]["min"])

    @property
    def idle_timeout_s(self) -> float:
        return float(self.settings["workers"]["idleTimeout"])

    @property
    def version(self) -> int:
        return len(self.releases)

    def live(self) -> list[WorkerRecord]:
        return [worker for worker in self.workers.values() if worker.ended is None]
