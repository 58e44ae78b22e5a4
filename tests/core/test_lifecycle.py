"""The table decides; the receipt keeps what happened."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_runpod.core.cloud import Endpoint
from pytest_runpod.core.lifecycle import TRANSITIONS, Event, Phase, advance, diagram
from pytest_runpod.core.plan import Delete, Doubt, ScaleToZero, plan_cleanup
from pytest_runpod.core.receipt import Owned, Receipt, Where

RECEIPT = Receipt(
    run="r", name="pytest-runpod-1", where=Where("runpod", "https://m", "https://j"), payload_sha256="p", worker_sha256="w",
    created_at=1.0, deadline_at=2.0, ledger="/l",
)  # fmt: skip


def test_a_whole_run_goes_through_every_phase():
    receipt = RECEIPT
    for event in (
        Event.CREATE_SENT,
        Event.CREATE_SEEN,
        Event.SUBMIT_SENT,
        Event.SUBMIT_SEEN,
        Event.JOB_FINAL,
        Event.CLEANUP_STARTED,
    ):
        receipt = receipt.after(event, "t")
        assert not receipt.cleanup_confirmed
    receipt = receipt.after(Event.CLEANUP_CONFIRMED, "t")
    assert receipt.phase is Phase.CLEAN
    assert receipt.cleanup_confirmed
    assert Receipt.from_json(receipt.to_json()) == receipt


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.CLEAN])
def test_clean_up_may_start_from_anywhere(phase):
    assert advance(phase, Event.CLEANUP_STARTED) is Phase.CLEANING


def test_nothing_is_submitted_twice_nor_before_the_endpoint_is_seen():
    for phase in (Phase.RESERVED, Phase.CREATING, Phase.SUBMITTING, Phase.RUNNING, Phase.CLEANING, Phase.UNRESOLVED):
        with pytest.raises(ValueError, match="cannot have submit_sent"):
            advance(phase, Event.SUBMIT_SENT)


def test_a_lost_create_is_remembered_through_clean_up():
    lost = RECEIPT.after(Event.CREATE_SENT, "t").after(Event.CLEANUP_STARTED, "t")
    assert lost.create_uncertain
    assert not RECEIPT.after(Event.CREATE_SENT, "t").after(Event.CREATE_SEEN, "t").create_uncertain
    assert not RECEIPT.create_uncertain


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"more": 1},
        {"phase": "elsewhere"},
        {"where": {"kind": "x"}},
        {"name": "somebody-elses"},
        {"log": [1]},
        {"deadline_at": None},
        {"endpoint_id": 5},
        {"cleanup_confirmed": True},
        {"where": None},
        {"trouble": []},
    ],
)
def test_a_receipt_of_another_kind_is_refused(change):
    with pytest.raises(ValueError):
        Receipt.from_json({**RECEIPT.to_json(), **change})


def test_only_what_bears_our_name_is_deleted():
    listed = (
        Endpoint("e1", "pytest-runpod-1", 1),
        Endpoint("e2", "somebody else", 3),
        Endpoint("e3", "pytest-runpod-1", 0),
    )
    assert plan_cleanup(Owned("pytest-runpod-1", "e1"), listed) == (ScaleToZero("e1"), Delete("e1"), Delete("e3"))


def test_our_id_under_another_name_is_left_to_a_person():
    listed = (replace(Endpoint("e1", "renamed", 1)),)
    assert plan_cleanup(Owned("pytest-runpod-1", "e1"), listed) == (Doubt("e1", "renamed"),)


@given(st.lists(st.sampled_from(Event)))
def test_however_a_run_goes_a_job_is_sent_at_most_once_and_clean_is_the_end(events):
    receipt = RECEIPT
    for event in events:
        if (receipt.phase, event) in TRANSITIONS:
            receipt = receipt.after(event, "t")
    for once in (Event.CREATE_SENT, Event.SUBMIT_SENT):
        assert receipt.events.count(once.value) <= 1
    assert (
        receipt.cleanup_confirmed == (receipt.phase is Phase.CLEAN) == (Event.CLEANUP_CONFIRMED.value in receipt.events)
    )
    if receipt.submitted:
        assert Event.CREATE_SEEN.value in receipt.events
    assert Receipt.from_json(receipt.to_json()) == receipt


def test_only_an_answer_or_a_person_ends_the_doubt_about_a_create():
    lost = RECEIPT.after(Event.CREATE_SENT, "t").after(Event.CLEANUP_STARTED, "t").after(Event.CLEANUP_DOUBTED, "t")
    assert lost.create_uncertain
    again = lost.after(Event.CLEANUP_STARTED, "t").after(Event.CLEANUP_DOUBTED, "t")
    assert again.create_uncertain
    for event in (Event.CREATE_SEEN, Event.CREATE_REFUSED, Event.ABSENCE_STATED):
        assert not lost.after(event, "t", "a note that names create_sent").create_uncertain


def test_a_note_says_nothing_about_what_has_happened():
    noted = RECEIPT.after(Event.CREATE_SENT, "t", "create_seen")
    assert noted.events == ("create_sent",)
    assert noted.create_uncertain


def test_the_diagram_in_the_documentation_is_the_table():
    page = (Path(__file__).parents[2] / "docs" / "lifecycle.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{diagram()}\n```" in page
    assert all(f"{event.value}" in page for event in Event)
    assert all(f"{phase.value}" in page for phase in Phase)
