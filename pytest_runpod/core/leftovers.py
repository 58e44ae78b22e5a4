"""What an earlier run's receipt means to everybody else."""

from __future__ import annotations

from enum import Enum

from pytest_runpod.core.lifecycle import Phase
from pytest_runpod.core.receipt import Receipt


class Standing(Enum):
    """CLEAN: nothing is left. WATCHED: a run, or what `setup` made; its watchdog lives. The others may cost."""

    CLEAN = "clean"
    WATCHED = "watched"
    UNRESOLVED = "unresolved"
    ABANDONED = "abandoned"


def standing(receipt: Receipt, now: float, *, watched: bool) -> Standing:
    """Judge a receipt from outside. *watched*: a living watchdog holds it; *now*: seconds since the epoch."""
    if receipt.cleanup_confirmed:
        return Standing.CLEAN
    if receipt.phase is Phase.UNRESOLVED:
        return Standing.UNRESOLVED
    return Standing.WATCHED if watched and now < receipt.deadline_at else Standing.ABANDONED
