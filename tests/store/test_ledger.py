"""The ledger on disk: durable, locked, and never taken for empty."""

import json
import multiprocessing

import pytest

from pytest_runpod.core.budget import Caps, Entry, Stage
from pytest_runpod.core.money import MicroUsd
from pytest_runpod.errors import BudgetRefused
from pytest_runpod.store.ledger import Ledger


def entry(name: str, amount: int = 1_000_000, run: str | None = None) -> Entry:
    return Entry(id=name, run=run or name, stage=Stage.JOB, reserved=MicroUsd(amount), at="2026-01-01T00:00:00Z")


def test_what_is_reserved_is_there_for_the_next_process(tmp_path):
    Ledger(tmp_path / "deep" / "ledger.json").reserve(entry("a"), Caps())
    assert [kept.id for kept in Ledger(tmp_path / "deep" / "ledger.json").entries()] == ["a"]


def test_a_refused_reservation_leaves_the_file_as_it_was(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.reserve(entry("a", 3_000_000), Caps())
    before = ledger.path.read_bytes()
    with pytest.raises(BudgetRefused):
        ledger.reserve(entry("b", 4_000_000), Caps())
    assert ledger.path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "line 1"),
        (b'{"schema": 1,\n "entries": [\n', "line 3"),
        (b'{"schema": 2, "entries": []}', "schema 1"),
        (b"[]", "schema 1"),
        (b'{"schema": 1, "entries": [{"id": "x"}]}', "entry 1"),
        (b"\xff\xfe", "codec"),
    ],
)
def test_a_damaged_ledger_stops_the_run_and_is_left_alone(tmp_path, content, named):
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.path.write_bytes(content)
    with pytest.raises(BudgetRefused, match="nothing may be spent") as refused:
        ledger.reserve(entry("a"), Caps())
    assert named in str(refused.value)
    assert ledger.path.read_bytes() == content


def test_settling_replaces_what_a_run_counts_for(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.reserve(entry("setup", run="r"), Caps())
    ledger.reserve(entry("job", 1_360_000, run="r"), Caps())
    ledger.name_endpoint("r", "ep1")
    ledger.settle("r", MicroUsd(31_000), "bill")
    assert sum(kept.counted for kept in ledger.entries()) == 31_000
    assert {kept.endpoint_id for kept in ledger.entries()} == {"ep1"}
    assert json.loads(ledger.path.read_text())["entries"][1]["reserved_micro_usd"] == 1_360_000
    with pytest.raises(BudgetRefused, match="no reservation"):
        ledger.settle("other", MicroUsd(1), "bill")


def _reserve_many(path, worker, count):
    for number in range(count):
        try:
            Ledger(path).reserve(entry(f"{worker}-{number}", 1_000_000), Caps())
        except BudgetRefused:
            return


def test_processes_that_reserve_at_once_never_pass_the_cap_together(tmp_path):
    path = tmp_path / "ledger.json"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_reserve_many, args=(path, number, 6)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sum(kept.reserved for kept in Ledger(path).entries()) == 10_000_000
