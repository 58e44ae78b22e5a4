"""Why nothing comes: what a queue, a job without a result, or a refusal means, in words that say what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pytest_runpod.core.cloud import Endpoint, Health, Job
from pytest_runpod.core.limits import EXECUTION_TIMEOUT_S, JOB_TTL_S

BILLED: Final = "It may have been billed."


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What it is, and what to do about it."""

    cause: str
    todo: str


CRASHING: Final = Diagnosis(
    "workers crash as they start",
    "read the worker's log in the results folder; look at runpod_requirements and the image",
)
STARTING: Final = Diagnosis(
    "a worker is starting (image, bootstrap)",
    "run again: the image may be on the host by then; or wait longer with --runpod-queue-timeout",
)
BUSY: Final = Diagnosis(
    "a worker is running and has not taken the job yet", "run again; if it stays so, look at the worker's log"
)
NOT_TAKING: Final = Diagnosis(
    "a worker stands by and has not taken the job yet",
    "run again; a worker that never takes a job has an image whose own entrypoint hides the start command: "
    "use the default --runpod-image",
)
THROTTLED: Final = Diagnosis(
    "the hosts of this card are full (throttled)",
    "try another card with --runpod-gpu, or later; --runpod-queue-timeout waits longer",
)
NO_CAPACITY: Final = Diagnosis(
    "no worker: no capacity for this card now",
    "try another card with --runpod-gpu, or later; a low balance also lets no worker start",
)


def why_queued(health: Health) -> Diagnosis:
    """Say why a queued job waits, in the order of what is most often the cause."""
    workers = {name: count for name, count in health.workers.items() if count}
    if workers.get("unhealthy"):
        return CRASHING
    if workers.get("initializing"):
        return STARTING
    if workers.get("running"):
        return BUSY
    if workers.get("ready") or workers.get("idle"):
        return NOT_TAKING
    if workers.get("throttled"):
        return THROTTLED
    return NO_CAPACITY


def why_without_result(job: Job) -> Diagnosis:
    """Say what it means that a job has ended and nothing of ours came with it."""
    if job.status == "COMPLETED":
        return Diagnosis(
            f"The job ended as COMPLETED without a result: it was lost between the worker and the provider. {BILLED}",
            "run again; a result that the provider finds too large is dropped like this: write smaller artifacts",
        )
    if job.status == "CANCELLED":
        return Diagnosis(
            f"The job was cancelled, and not by this run. {BILLED}",
            "somebody cancelled it or deleted its endpoint, in the console or with another tool; run again",
        )
    if job.status == "TIMED_OUT" or ("timed out after" not in str(job.error) and "timed out" in str(job.error)):
        return Diagnosis(
            f"The job ran out of time at the provider, without a result. {BILLED}",
            f"its worker gets {EXECUTION_TIMEOUT_S} s and must report in time; run fewer tests at once, or use -n",
        )
    if job.retries:
        return Diagnosis(
            f"The worker was lost while it ran the job, and so was the one that ran it again. {BILLED}",
            "its host may have ended it for its memory: run fewer tests at once, or another card with --runpod-gpu",
        )
    return Diagnosis(
        f"The job ended as {job.status} without a result. {BILLED}", "read the worker's log in the results folder"
    )


def why_unknown(age_s: float) -> Diagnosis:
    """Say what it means that the provider does not know a job any more, so long after it was submitted."""
    if age_s >= JOB_TTL_S:
        return Diagnosis(
            f"The job has expired: {JOB_TTL_S} s after its submission the provider forgets it. {BILLED}",
            "run again, with fewer tests at once; a long wait for a worker counts too",
        )
    return Diagnosis(
        f"The provider has lost the job: it does not know it any more. {BILLED}",
        "run again; nothing was reported that is not certain",
    )


def quota_use(listed: tuple[Endpoint, ...]) -> str:
    """Show whose endpoints take the account's quota of workers: it is the sum of what all of them may have."""
    takers = sorted((one for one in listed if one.workers_max), key=lambda one: -one.workers_max)
    total = sum(one.workers_max for one in takers)
    names = ", ".join(f"{one.name} {one.workers_max}" for one in takers[:10])
    return f"{total} workers are taken by {len(takers)} endpoints" + (f": {names}" if names else "")
