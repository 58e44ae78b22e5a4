"""When a bill may be taken: the deletion is confirmed, its hour and one more are over, and there is something on it."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_runpod.core.budget import Entry, Stage
from pytest_runpod.core.cloud import Bill
from pytest_runpod.core.lifecycle import Event, Phase
from pytest_runpod.core.money import MicroUsd
from pytest_runpod.core.receipt import Receipt, Where
from pytest_runpod.core.settlement import (
    AlreadySettled,
    Due,
    NeverCreated,
    NoReceipt,
    NothingBilled,
    Settled,
    StillThere,
    TooEarly,
    TooLate,
    confirmed_at,
    read_bill,
    when_to_settle,
)

BEGIN = datetime(2026, 3, 1, 10, 5, tzinfo=timezone.utc)
OPEN = Entry(id="e", run="r", stage=Stage.JOB, reserved=MicroUsd(1_360_000), at="2026-03-01T10:05:00Z")
RESERVED = Receipt(
    run="r", name="pytest-runpod-x", where=Where("runpod", "https://a", "https://b"), payload_sha256="p",
    worker_sha256="w", created_at=BEGIN.timestamp(), deadline_at=BEGIN.timestamp() + 1800, ledger="l",
)  # fmt: skip
CREATED = (Event.CREATE_SENT, Event.CREATE_SEEN)
CLEANED = (Event.CLEANUP_STARTED, Event.CLEANUP_CONFIRMED)


def after(*events: Event, last: datetime = BEGIN, receipt: Receipt = RESERVED) -> Receipt:
    """The receipt of a run in which *events* have happened, the last of them at *last*."""
    for event in events:
        changes = {"endpoint_id": "ep1"} if event is Event.CREATE_SEEN else {}
        receipt = receipt.after(event, last.strftime("%Y-%m-%dT%H:%M:%SZ"), "a note", **changes)
    return receipt


DONE = after(*CREATED, *CLEANED, last=datetime(2026, 3, 1, 10, 59, 59, tzinfo=timezone.utc))
NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def test_a_bill_is_due_an_hour_after_the_hour_of_the_deletion_and_not_a_second_earlier():
    assert when_to_settle([OPEN], DONE, NOON) == Due()
    assert when_to_settle([OPEN], DONE, NOON - timedelta(seconds=1)) == TooEarly(NOON)
    late = after(*CREATED, *CLEANED, last=datetime(2026, 3, 1, 11, tzinfo=timezone.utc))
    assert when_to_settle([OPEN], late, NOON) == TooEarly(NOON + timedelta(hours=1))


@given(st.integers(0, 10**6), st.integers(-(10**6), 29 * 86400))
def test_no_bill_is_taken_while_its_last_hour_may_still_be_billed(busy_s, waited_s):
    end = BEGIN + timedelta(seconds=busy_s)
    when = when_to_settle([OPEN], after(*CREATED, *CLEANED, last=end), end + timedelta(seconds=waited_s))
    if waited_s < 3600:
        assert isinstance(when, TooEarly)
    if waited_s >= 7200:
        assert isinstance(when, Due | TooLate)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((), StillThere),
        (CREATED, StillThere),
        ((*CREATED, Event.CLEANUP_STARTED, Event.CLEANUP_DOUBTED), StillThere),
        ((*CREATED, *CLEANED), Due),
        (CLEANED, NeverCreated),
        ((Event.CREATE_SENT, Event.CREATE_REFUSED, *CLEANED), NeverCreated),
        ((Event.CREATE_SENT, Event.CREATE_REFUSED), StillThere),
        ((Event.CREATE_SENT, *CLEANED), Due),
        (
            (Event.CREATE_SENT, Event.CLEANUP_STARTED, Event.CLEANUP_DOUBTED, Event.ABSENCE_STATED, *CLEANED),
            Due,
        ),  # that nothing was created is a person's word: the bill is looked at
        ((Event.CREATE_SENT, Event.CLEANUP_STARTED, Event.CLEANUP_DOUBTED, Event.CREATE_REFUSED, *CLEANED), NeverCreated),
    ],
)  # fmt: skip
def test_what_a_receipt_tells_decides(events, expected):
    assert isinstance(when_to_settle([OPEN], after(*events), BEGIN + timedelta(days=1)), expected)


def test_a_run_that_counts_for_an_amount_already_is_left_alone():
    done = replace(OPEN, actual=MicroUsd(5))
    for entries in ([done], [OPEN, done]):
        assert when_to_settle(entries, DONE, NOON) == AlreadySettled()
        assert when_to_settle(entries, None, NOON) == AlreadySettled()


def test_without_a_receipt_nobody_knows_what_there_was():
    assert when_to_settle([OPEN], None, NOON) == NoReceipt()


def test_an_endpoint_that_was_seen_is_never_taken_for_one_that_never_was():
    assert isinstance(when_to_settle([OPEN], replace(after(*CLEANED), endpoint_id="ep1"), NOON), Due)


def test_a_bill_that_no_longer_reaches_back_to_the_begin_is_not_taken():
    assert when_to_settle([OPEN], DONE, BEGIN + timedelta(days=30)) == Due()
    assert when_to_settle([OPEN], DONE, BEGIN + timedelta(days=30, seconds=1)) == TooLate()


@pytest.mark.parametrize("line", ["yesterday cleanup_confirmed", "cleanup_confirmed", "", "2026-03-01 x"])
def test_a_receipt_whose_log_does_not_say_when_is_not_confirmed_enough(line):
    receipt = replace(DONE, log=(*after(*CREATED).log, line), phase=Phase.CLEAN)
    assert confirmed_at(receipt) is None
    assert when_to_settle([OPEN], receipt, NOON) == StillThere()


def test_a_zero_proves_nothing():
    assert read_bill(Bill(MicroUsd(0), 0)) == NothingBilled()
    assert read_bill(Bill(MicroUsd(0), 3)) == NothingBilled()
    assert read_bill(Bill(MicroUsd(1), 3)) == Settled(MicroUsd(1), 3)
