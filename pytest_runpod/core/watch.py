"""What a watchdog does next: pure, so that every moment of its life can be looked at."""

from __future__ import annotations

from enum import Enum
from typing import Final

from pytest_runpod.core.receipt import Receipt

RETRY_S: Final = 15.0  # after a clean-up that could not be confirmed
GIVE_UP_S: Final = 6 * 3600.0  # past the deadline: by then a person has to look


class Step(Enum):
    WAIT = "wait"
    CLEAN = "clean"
    END = "end"
    GIVE_UP = "give up"


def steady(wall: float, began: float, passed: float) -> float:
    """The time by which a deadline is judged: a clock that is set back must not make an endpoint live longer.

    Args:
        wall: seconds since the epoch, as the clock says now. began: the same when watching began. passed: seconds since then,
            by a counter that nobody can set.

    >>> steady(1000.0, began=1000.0, passed=90.0), steady(5000.0, began=1000.0, passed=90.0)
    (1090.0, 5000.0)
    """
    return max(wall, began + passed)


def next_step(receipt: Receipt, now: float, *, run_ended: bool, tried_at: float | None) -> Step:
    """Choose: clean up once the run has ended or the deadline has come, again and again, until it is confirmed.

    Args:
        now: seconds since the epoch, as the receipt's deadline. tried_at: when it was last tried in vain.
    """
    if receipt.cleanup_confirmed:
        return Step.END
    if tried_at is not None and now > receipt.deadline_at + GIVE_UP_S:  # a machine may have slept until now
        return Step.GIVE_UP
    due = run_ended or now >= receipt.deadline_at
    rested = tried_at is None or now >= tried_at + RETRY_S
    return Step.CLEAN if due and rested else Step.WAIT
