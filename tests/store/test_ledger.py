"""The ledger on disk: durable, locked, and never taken for empty."""

import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_runpod.core.budget import Caps, Entry, Stage
from pytest_runpod.core.money import MicroUsd
from pytest_runpod.errors import BudgetRefused
from pytest_runpod.store.ledger import Damaged, Ledger, parse_entries


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
        (b"", "line 1: Expecting value"),
        (b'{"schema": 1,\n "entries": [\n', "line 3: Expecting value"),
        (b'{\n"schema": 2, "entries": [], "more": 1}', "line 2: schema 2, written by a newer pytest-runpod"),
        (b'{"schema": true, "entries": []}', "line 1: not a ledger of schema 1"),
        (b'{"schema": 1, "entries": {}}', "line 1: not a ledger of schema 1"),
        (b"[]", "line 1: not a ledger of schema 1"),
        (b'{"schema": 1,\n "entries": [],\n "more": 1}', "line 3: a key that does not fit: 'more'"),
        (b'{"schema": 1,\n "entries": [],\n\n "entries": []}', "line 4: 'entries' is there twice"),
        (b'{"entries": [\n\n{"id": "x"}], "schema": 1}', "line 3: keys that do not fit"),
        (b'{"schema": 1, "entries": [\n1]}', "line 2: an entry must be an object"),
        (b'{"schema": 1,\n\n\xff', "line 3: not UTF-8"),
        (b'\xef\xbb\xbf{"schema": 1, "entries": []}', "line 1: Unexpected UTF-8 BOM"),
        (b'{"schema": 1, "entries": [' + b"[" * 100_000, "recursion"),
        (b'{"schema": 1, "entries": [' + b"1" * 5_000 + b"]}", "5000 digits"),
    ],
)
def test_a_damaged_ledger_stops_the_run_and_is_left_alone(tmp_path, content, named):
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.path.write_bytes(content)
    with pytest.raises(BudgetRefused, match="nothing may be spent") as refused:
        ledger.reserve(entry("a"), Caps())
    assert named in str(refused.value)
    assert ledger.path.read_bytes() == content


def written(*changes, text=lambda text: text) -> bytes:
    """A ledger of one entry for each of *changes*, ten lines an entry, the first of them in line 4."""
    entries = [{**entry(str(number)).to_json(), **change} for number, change in enumerate(changes)]
    return text(json.dumps({"schema": 1, "entries": entries}, indent=1)).encode()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (written({}, {"reserved_micro_usd": 1.5}), "line 14: reserved_micro_usd must be whole micro-dollars"),
        (written({"stage": "tea"}), "line 4: 'tea' is not a valid Stage"),
        (written({}, {"id": "0"}), "line 14: the entry of line 4 has the same id '0'"),
        (written({}, {}, text=lambda it: it.replace('"run": "1"', '"run": "1", "run": "2"')), "line 14: 'run' is there twice"),
        (written({"note": ']}"entries": [\n', "actual_micro_usd": -1}), "line 4: actual_micro_usd"),
        (written({}, {})[:-30], "line 21: Unterminated string"),
    ],
)  # fmt: skip
def test_a_bad_entry_is_named_by_the_line_in_which_it_begins(tmp_path, content, named):
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.path.write_bytes(content)
    for change in (ledger.entries, lambda: ledger.reserve(entry("a"), Caps()), lambda: ledger.name_endpoint("0", "ep")):
        with pytest.raises(BudgetRefused, match="nothing may be spent") as refused:
            change()
        assert named in str(refused.value)
    assert ledger.path.read_bytes() == content


@given(st.binary(max_size=300), st.integers(0, 400))
def test_whatever_stands_there_is_read_whole_or_refused_as_damaged(garbage, at):
    whole = written({"note": "a"}, {"note": "b"})
    assert len(parse_entries(whole)) == 2
    for data in (garbage, whole[:at], whole[:at] + garbage + whole[at:]):
        try:
            found = parse_entries(data)
        except Damaged:
            continue
        assert [one.to_json() for one in found] == json.loads(data)["entries"]


def test_what_is_not_a_file_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "not-there")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name, why in (("folder", "not a file"), ("pipe", "not a file"), ("dangling", "a link to"), ("circle", "ircle")):
        with pytest.raises(BudgetRefused, match=rf"Nothing was created[^$]*{why}"):
            Ledger(tmp_path / name).reserve(entry("a"), Caps())
    assert not (tmp_path / "not-there").exists()


def test_a_link_stays_a_link_and_what_it_leads_to_is_replaced(tmp_path):
    kept = Ledger(tmp_path / "kept" / "books.json")
    kept.reserve(entry("a"), Caps())
    linked = Ledger(tmp_path / "ledger.json")
    linked.path.symlink_to(kept.path)
    linked.reserve(entry("b"), Caps())
    assert linked.path.is_symlink()
    assert [one.id for one in kept.entries()] == ["a", "b"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".lock") == ["kept", "ledger.json"]


def test_a_ledger_that_cannot_be_written_is_refused_before_anything_is_created(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BudgetRefused, match=r"cannot be written[^$]*Nothing was created") as refused:
        Ledger(tmp_path / "file" / "ledger.json").reserve(entry("a"), Caps())
    assert refused.value.exit_code == 11


def test_a_folder_that_is_read_only_is_refused_before_anything_is_created():
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.json")
        ledger.reserve(entry("a"), Caps())
        before = ledger.path.read_bytes()
        for path in (ledger.path, Path(f"{ledger.path}.lock")):
            path.chmod(0o666)
        Path(folder).chmod(0o555)
        me = os.geteuid()
        if me == 0:
            os.seteuid(NOBODY)  # nothing is read-only for root
        try:
            with pytest.raises(BudgetRefused, match=r"cannot be written[^$]*Nothing was created"):
                ledger.reserve(entry("b"), Caps())
        finally:
            os.seteuid(me)
            Path(folder).chmod(0o700)
        assert ledger.path.read_bytes() == before


NOBODY = 65534


def test_a_full_disk_is_refused_and_leaves_the_file_as_it_was(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.reserve(entry("a"), Caps())
    before, limits = ledger.path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), limits[1]))  # a write beyond fails, as on a full disk
    try:
        with pytest.raises(BudgetRefused, match="cannot be written"):
            ledger.reserve(entry("b"), Caps())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ledger.path.read_bytes() == before
    assert leftovers(tmp_path) == []


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_the_next_writer_removes_what_a_killed_one_has_left_and_nothing_else(tmp_path):
    ledger = Ledger(tmp_path / "ledger[1].json")
    for name in (".ledger[1].json.0123456789ab", ".ledger[1].json.mine", ".ledger1.json.0123456789ab"):
        (tmp_path / name).write_text("torn")
    ledger.reserve(entry("a"), Caps())
    assert sorted(leftovers(tmp_path)) == [".ledger1.json.0123456789ab", ".ledger[1].json.mine"]


def test_a_ledger_that_somebody_holds_is_refused_in_the_end(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json", wait_s=0.1)
    ledger.reserve(entry("a"), Caps())
    before = ledger.path.read_bytes()
    command = [sys.executable, "-c", HOLDS, str(ledger.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        for change in (lambda: ledger.reserve(entry("b"), Caps()), lambda: ledger.settle("a", MicroUsd(1), "bill")):
            with pytest.raises(BudgetRefused, match="in use by another run") as refused:
                change()
            assert refused.value.exit_code == 11
            assert "ledger.json.lock, for 0.1 s" in str(refused.value)
        holder.stdin.close()
    assert ledger.path.read_bytes() == before
    ledger.reserve(entry("b"), Caps())


HOLDS = """
import sys, pathlib
from pytest_runpod.store.locking import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_an_id_that_is_there_already_is_not_reserved_again(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.reserve(entry("a"), Caps())
    with pytest.raises(ValueError, match="already"):
        ledger.reserve(entry("a"), Caps())
    assert len(ledger.entries()) == 1


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


def test_a_settled_run_is_only_adjusted_and_what_was_there_stays_in_the_note(tmp_path):
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.reserve(entry("setup", run="r"), Caps())
    ledger.reserve(entry("job", run="r"), Caps())
    ledger.settle("r", MicroUsd(500_000), "first")
    before = ledger.path.read_bytes()
    with pytest.raises(BudgetRefused, match="settled already"):
        ledger.settle("r", MicroUsd(400_000), "smaller")
    assert ledger.path.read_bytes() == before
    ledger.adjust("r", MicroUsd(400_000), "second")
    ledger.adjust("r", MicroUsd(3_000_000), "third")
    assert {one.note for one in ledger.of("r")} == {"first; second (before: $0.50); third (before: $0.40)"}
    assert sum(one.counted for one in ledger.of("r")) == 3_000_000
    with pytest.raises(BudgetRefused, match="no reservation"):
        ledger.adjust("other", MicroUsd(1), "bill")


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


def test_processes_that_are_killed_while_they_reserve_lose_nothing_and_tear_nothing():
    script = Path(__file__).parents[2] / "benchmarks" / "ledger.py"
    done = subprocess.run(
        [sys.executable, str(script), "--processes=4", "--attempts=25", "--cap=60"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    assert last.startswith("held: 4 processes, 100 attempts, "), done.stdout + done.stderr
    assert done.returncode == 0
    assert " 0 torn reads, 0 lost, " in last
