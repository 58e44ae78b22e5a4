"""Waiting for a provider: how often is looked, for how long, and what is told meanwhile. What it means is `core.diagnosis`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pytest_runpod.core.clock import Clock
from pytest_runpod.core.cloud import Endpoint, Health, Job
from pytest_runpod.core.diagnosis import CRASHING, Diagnosis, why_queued
from pytest_runpod.core.limits import CRASHING_S, HEALTH_POLL_S, HEALTH_WAIT_S, OUTAGE_S, POLL_S, QUEUE_TIMEOUT_S
from pytest_runpod.errors import ProviderError, ProviderRefused, WorkerFailed
from pytest_runpod.options import RunSettings
from pytest_runpod.provider.api import Provider

EMULATOR_POLL_S: Final = 0.25
EMULATOR_HEALTH_POLL_S: Final = 1.0
EMULATOR_CRASHING_S: Final = 15.0
PASSING: Final = frozenset({408, 429})  # refusals that say: later


@dataclass(frozen=True, slots=True)
class Pace:
    """How often is looked, and how long is waited. Seconds.

    *poll_s*, *health_poll_s*: between two looks at a job, and at why it waits. *queue_s*: a job may wait so long for a worker.
    *crashing_s*: every look in so long a time shows crashed workers: that is a loop, and no mishap. *answer_s*: a new endpoint
    may take so long to answer. *outage_s*: so long the provider may give no answer at all.
    """

    poll_s: float = POLL_S
    health_poll_s: float = HEALTH_POLL_S
    queue_s: float = QUEUE_TIMEOUT_S
    crashing_s: float = CRASHING_S
    answer_s: float = HEALTH_WAIT_S
    outage_s: float = OUTAGE_S

    @classmethod
    def of(cls, settings: RunSettings) -> Pace:
        queue_s = float(settings.queue_timeout)
        if settings.provider == "emulator":
            return cls(
                EMULATOR_POLL_S, EMULATOR_HEALTH_POLL_S, queue_s, EMULATOR_CRASHING_S, min(HEALTH_WAIT_S, queue_s)
            )
        return cls(queue_s=queue_s, answer_s=min(HEALTH_WAIT_S, queue_s))


class QueueWatch:
    """Reads `/health` now and then while a job waits, and tells a crash loop from a queue."""

    def __init__(
        self, provider: Provider, endpoint: Endpoint, clock: Clock, pace: Pace, say: Callable[[str], None]
    ) -> None:
        self.provider, self.endpoint, self.clock, self.pace, self.say = provider, endpoint, clock, pace, say
        self.began = self.looked = clock.now()
        self.crashing_since: float | None = None

    def look(self, state: Job) -> None:
        """Raises: WorkerFailed: workers crash again and again, or the queue does not move."""
        now = self.clock.now()
        if state.status != "IN_QUEUE" or now - self.looked < self.pace.health_poll_s:
            return
        self.looked, waited = now, now - self.began
        health: Health | None = None
        with suppress(ProviderError):  # a diagnosis that fails is no failure of the run
            health = self.provider.health(self.endpoint)
        if health is None:
            if waited > self.pace.queue_s:
                raise self._given_up(Diagnosis("its /health does not answer", "run again"), waited, None)
            return
        found = why_queued(health)
        self.say(f"waiting for {waited:.0f} s: {found.cause}")
        if found is not CRASHING:
            self.crashing_since = None
        elif self.crashing_since is None:
            self.crashing_since = now
        crashing = self.crashing_since is not None and now - self.crashing_since >= self.pace.crashing_s
        if crashing or waited > self.pace.queue_s:
            raise self._given_up(found, waited, health)

    @staticmethod
    def _given_up(found: Diagnosis, waited: float, health: Health | None) -> WorkerFailed:
        return WorkerFailed(
            f"No worker takes the job: {found.cause}. It is cancelled and the endpoint deleted now; "
            "start-up may have been billed.",
            looked_at=f"/health after {waited:.0f} s: workers {dict(health.workers) if health else '-'}",
            todo=found.todo,
        )


class Outage:
    """Bridges a provider that gives no usable answer for a while. Told once, and given up after `Pace.outage_s`."""

    def __init__(self, clock: Clock, pace: Pace, say: Callable[[str], None]) -> None:
        self.clock, self.pace, self.say = clock, pace, say
        self.since: float | None = None

    def over(self) -> None:
        if self.since is not None:
            self.say(f"the provider answers again, after {self.clock.now() - self.since:.0f} s")
        self.since = None

    def bear(self, trouble: ProviderError) -> None:
        """Raises: ProviderError: *trouble*, if it is no outage, or has lasted too long."""
        if isinstance(trouble, ProviderRefused) and trouble.status < 500 and trouble.status not in PASSING:
            raise trouble
        now = self.clock.now()
        if self.since is None:
            self.since = now
            self.say(f"{trouble.happened} The job goes on; asking again for {self.pace.outage_s:.0f} s")
        if now - self.since >= self.pace.outage_s:
            raise trouble
