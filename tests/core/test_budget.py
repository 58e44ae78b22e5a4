"""Reservations against the caps: every refusal names the bound, nothing is refunded by itself."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_runpod.core.budget import Caps, Entry, Stage, check_reservation, reservation_for, settled
from pytest_runpod.core.money import MicroUsd
from pytest_runpod.errors import BudgetRefused


def entry(amount: int, run: str = "r1", stage: Stage = Stage.JOB) -> Entry:
    return Entry(id="e", run=run, stage=stage, reserved=MicroUsd(amount), at="2026-01-01T00:00:00Z")


def test_a_job_reserves_its_estimate_and_a_dollar():
    assert reservation_for(Stage.JOB) == 1_360_000
    assert reservation_for(Stage.SETUP) == 1_000_000


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
