"""Reservations against the caps: every refusal names the bound, nothing is refunded by itself."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_runpod.core.budget import (
    Caps,
    Entry,
    Stage,
    check_reservation,
    estimate_job,
    reservation_for,
    settled,
    share,
)
from pytest_runpod.core.money import MicroUsd
from pytest_runpod.errors import BudgetRefused


def entry(amount: int, run: str = "r1", stage: Stage = Stage.JOB) -> Entry:
    return Entry(id="e", run=run, stage=stage, reserved=MicroUsd(amount), at="2026-01-01T00:00:00Z")


def test_a_job_reserves_its_estimate_and_a_dollar():
    assert reservation_for(Stage.JOB) == 1_360_000
    assert reservation_for(Stage.SETUP) == 1_000_000


def test_several_workers_may_cost_several_times_as_much():
    rate = MicroUsd(700_000)
    assert [estimate_job(rate, workers) for workers in (1, 2, 5)] == [351_400, 702_800, 1_757_000]
    assert [reservation_for(Stage.JOB, workers) for workers in (1, 2, 3, 5)] == [
        1_360_000,
        1_710_000,
        2_060_000,
        2_760_000,
    ]
    assert [reservation_for(Stage.SETUP, workers) for workers in (1, 2, 3, 5)] == [
        1_000_000,
        1_000_000,
        1_050_000,
        1_750_000,
    ]


@given(st.sampled_from(Stage), st.integers(1, 100))
def test_a_reservation_covers_all_workers_in_whole_cents_and_is_a_dollar_at_least(stage, workers):
    amount = reservation_for(stage, workers)
    assert amount % 10_000 == 0
    assert amount >= 1_000_000
    busy_s = 1800 if stage is Stage.SETUP else 1200 + 600
    assert amount * 3600 >= workers * busy_s * 700_000


@pytest.mark.parametrize("amount", [0, 1, 999_999])
def test_less_than_a_dollar_is_never_reserved(amount):
    with pytest.raises(BudgetRefused, match="Nothing was created") as refused:
        check_reservation((), entry(amount), Caps())
    assert "$1.00 at least" in str(refused.value)
    check_reservation((), entry(1_000_000), Caps())


@pytest.mark.parametrize(
    ("before", "new", "bound"),
    [
        ([], entry(3_000_001), "the job stage"),
        ([entry(2_000_000)], entry(1_000_001), "this run"),
        ([entry(3_000_000, run=f"r{number}") for number in (2, 3, 4)], entry(1_000_001), "all runs"),
    ],
)
def test_a_reservation_above_a_bound_is_refused_by_name(before, new, bound):
    with pytest.raises(BudgetRefused, match="Nothing was created") as refused:
        check_reservation(before, new, Caps())
    assert bound in str(refused.value)
    assert refused.value.exit_code == 11


def test_a_settled_run_counts_for_what_was_billed():
    old = [settled(entry(3_000_000, run=f"r{number}"), MicroUsd(10_000), "bill") for number in range(20)]
    check_reservation(old, entry(1_360_000), Caps())


def test_what_a_run_cost_is_shared_once_and_its_history_stays():
    both = (replace(entry(1_000_000), note="made"), entry(1_360_000))
    first = share(both, MicroUsd(20_000), "bill")
    assert [(one.actual, one.note) for one in first] == [(20_000, "made; bill"), (0, "bill")]
    again = share(first, MicroUsd(3_000_000), "console")
    assert [(one.actual, one.note) for one in again] == [
        (3_000_000, "made; bill; console (before: $0.02)"),
        (0, "bill; console (before: $0.02)"),
    ]
    assert [one.reserved for one in again] == [1_000_000, 1_360_000]


@given(st.builds(entry, st.integers(0, 10**9), st.text(), st.sampled_from(Stage)))
def test_an_entry_survives_the_file(value):
    assert Entry.from_json(value.to_json()) == value
    done = replace(value, actual=MicroUsd(5), endpoint_id="abc")
    assert Entry.from_json(done.to_json()) == done


@pytest.mark.parametrize(
    "change",
    [
        {"reserved_micro_usd": -1},
        {"reserved_micro_usd": 1.5},
        {"reserved_micro_usd": True},
        {"stage": "other"},
        {"extra": 1},
    ],
)
def test_a_hand_edited_entry_is_refused(change):
    with pytest.raises(ValueError):
        Entry.from_json({**entry(5).to_json(), **change})
