"""Whether a reservation may be made: pure arithmetic over the ledger's entries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from pytest_runpod.core.limits import (
    DISK_ALLOWANCE,
    JOB_MARGIN,
    JOB_TTL_S,
    PRICE_CEILING,
    RESERVE_FLOOR,
    SETUP_DEADLINE_S,
    SETUP_RESERVE,
    SHUTDOWN_RESERVE_S,
    STAGE_BUDGET,
    TOTAL_BUDGET,
)
from pytest_runpod.core.money import CENT, MicroUsd, cost_ceiling, format_usd
from pytest_runpod.errors import BudgetRefused

LEDGER_SCHEMA: Final = 1


class Stage(str, Enum):
    """What a reservation pays for. The budget of a stage bounds each of them on its own."""

    SETUP = "setup"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger, in micro-dollars. *actual* stays None until the bill is known; nothing is refunded silently."""

    id: str
    run: str
    stage: Stage
    reserved: MicroUsd
    at: str
    note: str = ""
    actual: MicroUsd | None = None
    endpoint_id: str | None = None

    @property
    def counted(self) -> MicroUsd:
        """What this entry uses of the budget: the settled amount once it is known, the reservation until then."""
        return self.reserved if self.actual is None else self.actual

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "run": self.run,
            "stage": self.stage.value,
            "reserved_micro_usd": self.reserved,
            "actual_micro_usd": self.actual,
            "endpoint_id": self.endpoint_id,
            "at": self.at,
            "note": self.note,
        }

    @classmethod
    def from_json(cls, value: Any) -> Entry:
        """Raises: ValueError: a key is missing, unknown, or of another kind."""
        if not isinstance(value, dict):
            raise ValueError("an entry must be an object")
        known = {"id", "run", "stage", "reserved_micro_usd", "actual_micro_usd", "endpoint_id", "at", "note"}
        if set(value) != known:
            raise ValueError(f"keys that do not fit: {', '.join(sorted(set(value) ^ known))}")
        for key in ("reserved_micro_usd", "actual_micro_usd"):
            amount = value[key]
            optional = key == "actual_micro_usd" and amount is None
            if not optional and (not isinstance(amount, int) or isinstance(amount, bool) or amount < 0):
                raise ValueError(f"{key} must be whole micro-dollars, zero or more, not {amount!r}")
        texts = ("id", "run", "at", "note", "stage")
        if not all(isinstance(value[key], str) for key in texts):
            raise ValueError(f"{', '.join(texts)} must be text")
        if value["endpoint_id"] is not None and not isinstance(value["endpoint_id"], str):
            raise ValueError("endpoint_id must be text or null")
        return cls(
            id=value["id"],
            run=value["run"],
            stage=Stage(value["stage"]),
            reserved=MicroUsd(value["reserved_micro_usd"]),
            actual=None if value["actual_micro_usd"] is None else MicroUsd(value["actual_micro_usd"]),
            endpoint_id=value["endpoint_id"],
            at=value["at"],
            note=value["note"],
        )


@dataclass(frozen=True, slots=True)
class Caps:
    """Upper bounds in micro-dollars: of one stage, of one run, of everything in the ledger."""

    stage: MicroUsd = STAGE_BUDGET
    run: MicroUsd = STAGE_BUDGET
    total: MicroUsd = TOTAL_BUDGET


def estimate_job(rate: MicroUsd, workers: int = 1) -> MicroUsd:
    """Bound what one job can cost: its whole life and the shutdown after it, at *rate* per GPU hour, and its disk.

    Args:
        workers: so many may run at once, each with one GPU.
    """
    return MicroUsd(workers * (cost_ceiling(JOB_TTL_S + SHUTDOWN_RESERVE_S, rate) + DISK_ALLOWANCE))


def reservation_for(stage: Stage, workers: int = 1) -> MicroUsd:
    """Choose what *stage* reserves, in whole cents, at the price ceiling.

    For setup what *workers* can cost until the deadline, for a job its estimate and a dollar; never less than a dollar.

    >>> format_usd(reservation_for(Stage.JOB))
    '$1.36'
    """
    if stage is Stage.SETUP:
        wanted = max(SETUP_RESERVE, workers * cost_ceiling(SETUP_DEADLINE_S, PRICE_CEILING))
    else:
        wanted = estimate_job(PRICE_CEILING, workers) + JOB_MARGIN
    return MicroUsd(max(RESERVE_FLOOR, -(-wanted // CENT) * CENT))


def check_reservation(entries: Iterable[Entry], new: Entry, caps: Caps) -> None:
    """Allow *new*, or say which bound it would pass.

    Raises: BudgetRefused: more than one stage, this run or the whole ledger may use; or less than a dollar.
    """
    kept = tuple(entries)
    if new.reserved < RESERVE_FLOOR:
        raise BudgetRefused(
            f"A reservation of {format_usd(new.reserved)} is too small to be safe. Nothing was created.",
            looked_at=f"every reservation is {format_usd(RESERVE_FLOOR)} at least",
        )
    of_run = sum(entry.counted for entry in kept if entry.run == new.run) + new.reserved
    in_all = sum(entry.counted for entry in kept) + new.reserved
    for amount, cap, of, option in (
        (new.reserved, caps.stage, f"the {new.stage.value} stage", "--runpod-budget"),
        (of_run, caps.run, "this run", "--runpod-budget"),
        (in_all, caps.total, "all runs in this ledger", "--runpod-budget-total"),
    ):
        if amount > cap:
            raise BudgetRefused(
                f"The budget does not allow {format_usd(new.reserved)} for {new.stage.value}. Nothing was created.",
                looked_at=f"{of} would reserve {format_usd(amount)} of {format_usd(cap)}",
                todo="settle earlier runs against the bill (`pytest-runpod ledger settle`), "
                f"or allow more with {option}",
            )


def settled(entry: Entry, actual: MicroUsd, note: str) -> Entry:
    """Replace what *entry* counts for by the billed amount, and say why."""
    return replace(entry, actual=actual, note=f"{entry.note}; {note}" if entry.note else note)


def share(entries: tuple[Entry, ...], actual: MicroUsd, note: str) -> tuple[Entry, ...]:
    """Let the *entries* of one run count for *actual* together: the first for all of it, the others for nothing.

    What they counted for, if they were settled before, stays readable in the note.
    """
    before = [entry.actual for entry in entries if entry.actual is not None]
    if before:
        note = f"{note} (before: {format_usd(sum(before))})"
    return tuple(settled(entry, MicroUsd(0) if number else actual, note) for number, entry in enumerate(entries))
