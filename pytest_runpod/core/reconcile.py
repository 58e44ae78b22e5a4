"""What became of a submission whose answer was lost: told by counters and lists, never by sending it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_runpod.core.cloud import Health, Job


@dataclass(frozen=True, slots=True)
class Arrived:
    """The job is there, under this id. Whether it is ours, its nonce will prove."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Unnamed:
    """Counters show work, and no list says which."""

    counters: str


@dataclass(frozen=True, slots=True)
class NoTrace:
    """Nothing shows the job: it never came, or is on its way."""


Fate = Arrived | Unnamed | NoTrace


def fate_of_submission(health: Health | None, jobs: Sequence[Job] | None) -> Fate:
    """Judge one look at an endpoint which had never had a job when the submission left.

    Args:
        health: its counters; None: not to be had. jobs: what `/requests` lists; None: not to be had.
    """
    if jobs:
        return Arrived(jobs[0].id) if len(jobs) == 1 else Unnamed(f"{len(jobs)} jobs are listed")
    busy = {name: count for name, count in health.jobs.items() if count} if health else {}
    return Unnamed(f"/health shows {busy}") if busy else NoTrace()
