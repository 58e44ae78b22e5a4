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
