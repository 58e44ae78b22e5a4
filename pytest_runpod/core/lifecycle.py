"""The life of one endpoint, as a table. Nothing else decides what may follow what."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Phase(str, Enum):
    """Where a run stands. What is on disk is true at every moment, also after a crash."""

    RESERVED = "reserved"
    CREATING = "creating"
    READY = "ready"
    SUBMITTING = "submitting"
    RUNNING = "running"
    FINISHED = "finished"
    CLEANING = "cleaning"
    CLEAN = "clean"
    UNRESOLVED = "unresolved"


class Event(str, Enum):
    """What happens to a run."""

    CREATE_SENT = "create_sent"
    CREATE_SEEN = "create_seen"
    CREATE_REFUSED = "create_refused"
    SUBMIT_SENT = "submit_sent"
    SUBMIT_SEEN = "submit_seen"
    SUBMIT_REFUSED = "submit_refused"
    JOB_FINAL = "job_final"
    JOB_LOST = "job_lost"
    RESULT_SAVED = "result_saved"
    CLEANUP_STARTED = "cleanup_started"
    CLEANUP_CONFIRMED = "cleanup_confirmed"
    CLEANUP_DOUBTED = "cleanup_doubted"
    ABSENCE_STATED = "absence_stated"


_LIVE: Final = (
    Phase.RESERVED,
    Phase.CREATING,
    Phase.READY,
    Phase.SUBMITTING,
    Phase.RUNNING,
    Phase.FINISHED,
    Phase.CLEANING,
    Phase.UNRESOLVED,
)

TRANSITIONS: Final[dict[tuple[Phase, Event], Phase]] = {
    (Phase.RESERVED, Event.CREATE_SENT): Phase.CREATING,  # on disk before the POST leaves
    (Phase.CREATING, Event.CREATE_SEEN): Phase.READY,  # a lost answer stays CREATING: reconcile by name
    (Phase.CREATING, Event.CREATE_REFUSED): Phase.CLEANING,  # refused by the provider: still confirmed by a list
    (Phase.READY, Event.SUBMIT_SENT): Phase.SUBMITTING,  # never sent twice: it may be billed
    (Phase.SUBMITTING, Event.SUBMIT_SEEN): Phase.RUNNING,  # a lost answer stays SUBMITTING: reconcile by counters
    (Phase.SUBMITTING, Event.SUBMIT_REFUSED): Phase.FINISHED,
    (Phase.RUNNING, Event.JOB_FINAL): Phase.FINISHED,
    (Phase.RUNNING, Event.JOB_LOST): Phase.FINISHED,
    (Phase.FINISHED, Event.JOB_LOST): Phase.FINISHED,  # it had ended, and its result is not held any more
    (Phase.RUNNING, Event.RESULT_SAVED): Phase.FINISHED,  # a late update had turned the state of the job back
    (Phase.FINISHED, Event.RESULT_SAVED): Phase.FINISHED,  # on disk before its endpoint goes
    (Phase.CLEANING, Event.RESULT_SAVED): Phase.CLEANING,  # by who cleans up, as long as the endpoint is there
    (Phase.UNRESOLVED, Event.RESULT_SAVED): Phase.UNRESOLVED,
    **{(phase, Event.CLEANUP_STARTED): Phase.CLEANING for phase in _LIVE},
    (Phase.CLEANING, Event.CLEANUP_CONFIRMED): Phase.CLEAN,
    (Phase.CLEANING, Event.CLEANUP_DOUBTED): Phase.UNRESOLVED,
    (Phase.UNRESOLVED, Event.CREATE_SEEN): Phase.UNRESOLVED,  # the answer came after all: now its id is known
    (Phase.UNRESOLVED, Event.CREATE_REFUSED): Phase.UNRESOLVED,
    (Phase.UNRESOLVED, Event.ABSENCE_STATED): Phase.UNRESOLVED,  # by a person, with a reason; a list must agree
}


def advance(phase: Phase, event: Event) -> Phase:
    """Look up what *event* makes of *phase*.

    Raises: ValueError: the table does not know it: a slip of ours, never of the user.
    """
    try:
        return TRANSITIONS[phase, event]
    except KeyError:
        raise ValueError(f"a run that is {phase.value} cannot have {event.value}") from None


def diagram() -> str:
    """Draw the table for the documentation, in Mermaid's language. Clean-up, which may start anywhere, is drawn once."""
    arrows = [
        f"    {before.value} --> {after.value}: {event.value}"
        for (before, event), after in TRANSITIONS.items()
        if event is not Event.CLEANUP_STARTED
    ]
    inside = [f"        {arrow.strip()}" for arrow in arrows if not _leaves_the_way(arrow)]
    outside = [arrow for arrow in arrows if _leaves_the_way(arrow)]
    return "\n".join([
        "stateDiagram-v2",
        f"    [*] --> {Phase.RESERVED.value}",
        "    state run {",
        *inside,
        "    }",
        f"    run --> {Phase.CLEANING.value}: {Event.CLEANUP_STARTED.value}",
        f"    {Phase.UNRESOLVED.value} --> {Phase.CLEANING.value}: {Event.CLEANUP_STARTED.value}",
        *outside,
        f"    {Phase.CLEAN.value} --> [*]",
    ])  # fmt: skip


def _leaves_the_way(arrow: str) -> bool:
    """Whether *arrow* touches clean-up; the others are the way of a run."""
    return any(phase.value in arrow.split(": ")[0] for phase in (Phase.CLEANING, Phase.CLEAN, Phase.UNRESOLVED))
