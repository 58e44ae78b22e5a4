"""When a run's bill may be taken for what it cost: not while it may still grow, and never because it shows nothing yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pytest_runpod.core.budget import Entry
from pytest_runpod.core.cloud import Bill
from pytest_runpod.core.lifecycle import Event
from pytest_runpod.core.limits import BILLING_LAG_S
from pytest_runpod.core.money import MicroUsd
from pytest_runpod.core.receipt import Receipt

HOUR: Final = timedelta(hours=1)  # the smallest bucket of a bill. Source: the provider's OpenAPI document
WINDOW: Final = timedelta(days=30)  # how far back a bill reaches if nothing else is asked for. Source: the same
ISO: Final = "%Y-%m-%dT%H:%M:%S%z"


@dataclass(frozen=True, slots=True)
class AlreadySettled:
    """An amount is there already: a later bill does not replace it, least of all a smaller one."""


@dataclass(frozen=True, slots=True)
class NoReceipt:
    """Nothing says what this run has created."""


@dataclass(frozen=True, slots=True)
class StillThere:
    """Clean-up is not confirmed: it may still cost."""


@dataclass(frozen=True, slots=True)
class NeverCreated:
    """No endpoint ever came to be, so nothing can have been billed."""


@dataclass(frozen=True, slots=True)
class TooEarly:
    """The bill may still grow until *until* (UTC)."""

    until: datetime


@dataclass(frozen=True, slots=True)
class TooLate:
    """The bill no longer reaches back to the begin of the run: it would show a part, or nothing."""


@dataclass(frozen=True, slots=True)
class Due:
    """The bill may be read now."""


@dataclass(frozen=True, slots=True)
class NothingBilled:
    """The bill shows nothing, which proves nothing."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What was billed, in micro-dollars, over *records* buckets."""

    amount: MicroUsd
    records: int


When = AlreadySettled | NoReceipt | StillThere | NeverCreated | TooEarly | TooLate | Due


def when_to_settle(entries: Iterable[Entry], receipt: Receipt | None, now: datetime) -> When:
    """Judge whether the bill of a run can be complete, without asking for it.

    It is taken from an hour after the end of the bucket that holds the deletion.

    Args:
        entries: those of this run.
        receipt: what it claims; None: there is none.
        now: with a time zone.
    """
    if any(entry.actual is not None for entry in entries):
        return AlreadySettled()
    if receipt is None:
        return NoReceipt()
    if not receipt.cleanup_confirmed:
        return StillThere()
    if never_created(receipt):
        return NeverCreated()
    confirmed = confirmed_at(receipt)
    if confirmed is None:
        return StillThere()
    until = bucket_end(confirmed) + timedelta(seconds=BILLING_LAG_S)
    if now < until:
        return TooEarly(until)
    return TooLate() if now.timestamp() - receipt.created_at > WINDOW.total_seconds() else Due()


def read_bill(bill: Bill) -> Settled | NothingBilled:
    """Take a bill that is due. A worker that never started costs nothing, and so does a bill that lags: a person decides."""
    return Settled(bill.amount, bill.records) if bill.amount else NothingBilled()


def never_created(receipt: Receipt) -> bool:
    """Whether the receipt proves that no endpoint came to be: none was asked for, or the provider refused."""
    events = receipt.events
    asked, refused = Event.CREATE_SENT.value in events, Event.CREATE_REFUSED.value in events
    seen = Event.CREATE_SEEN.value in events or receipt.endpoint_id is not None
    return (refused or not asked) and not seen


def confirmed_at(receipt: Receipt) -> datetime | None:
    """When the deletion was confirmed, by the receipt's log; None: that does not say."""
    for line in reversed(receipt.log):
        at, event, *_ = (*line.split(" ", 2), "")
        if event == Event.CLEANUP_CONFIRMED.value:
            try:
                return datetime.strptime(at, ISO)
            except ValueError:
                return None
    return None


def bucket_end(moment: datetime) -> datetime:
    """The end of the hour that holds *moment*.

    >>> bucket_end(datetime(2026, 1, 1, 10, 20)).isoformat()
    '2026-01-01T11:00:00'
    """
    return moment.replace(minute=0, second=0, microsecond=0) + HOUR
