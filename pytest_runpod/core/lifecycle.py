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
    JOB_FINAL = "job_final"
    CLEANUP_STARTED = "cleanup_started"
    CLEANUP_CONFIRMED = "cleanup_confirmed"
    CLEANUP_DOUBTED = "cleanup_doubted"


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
    (Phase.SUBMITTING, Event.SUBMIT_SEEN): Phase.RUNNING,
    (Phase.RUNNING, Event.JOB_FINAL): Phase.FINISHED,
    **{(phase, Event.CLEANUP_STARTED): Phase.CLEANING for phase in _LIVE},
    (Phase.CLEANING, Event.CLEANUP_CONFIRMED): Phase.CLEAN,
    (Phase.CLEANING, Event.CLEANUP_DOUBTED): Phase.UNRESOLVED,
}


def advance(phase: Phase, event: Event) -> Phase:
    """Look up what *event* makes of *phase*.

    Raises: ValueError: the table does not know it: a slip of ours, never of the user.
    """
    try:
        return TRANSITIONS[phase, event]
    except KeyError:
        raise ValueError(f"a run that is {phase.value} cannot have {event.value}") from None
