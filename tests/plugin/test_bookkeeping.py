"""`pytest-runpod ledger`: what it shows, when it settles, and that a refusal changes nothing."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from pytest_runpod.core.budget import Caps, Entry, Stage
from pytest_runpod.core.lifecycle import Event
from pytest_runpod.core.money import MicroUsd, format_usd
from pytest_runpod.core.receipt import Receipt, Where
from pytest_runpod.provider.api import EndpointSpec, Policy
from pytest_runpod.store.ledger import Ledger
from pytest_runpod.store.receipts import ReceiptFile, receipt_path

NOWHERE = "http://127.0.0.1:9"  # where nobody listens: what must not ask the provider is not kept from failing
CLEANED = (Event.CLEANUP_STARTED, Event.CLEANUP_CONFIRMED)
BILLED = (Event.CREATE_SENT, Event.CREATE_SEEN, *CLEANED)
HOURS = timedelta(hours=1)


class Books:
    """A state folder with a ledger and receipts, and the command on it."""

    def __init__(self, state: Path, emulator=None) -> None:
        self.state, self.ledger, self.emulator = state, Ledger(state / "ledger.json"), emulator

    def run_of_before(
        self, run: str, *events: Event, ago: timedelta = 3 * HOURS, endpoint_id: str | None = None
    ) -> None:
        """A run that reserved twice, and in which *events* have happened, so long ago."""
        at = datetime.now(timezone.utc) - ago
        url = self.emulator.management_url if self.emulator else NOWHERE
        receipt = Receipt(
            run=run, name=f"pytest-runpod-{run}", where=Where("emulator", url, url), payload_sha256="p", worker_sha256="w",
            created_at=at.timestamp(), deadline_at=at.timestamp() + 1800, ledger=str(self.ledger.path),
        )  # fmt: skip
        for event in events:
            receipt = receipt.after(event, at.strftime("%Y-%m-%dT%H:%M:%SZ"))
        ReceiptFile(receipt_path(self.state, run)).create(replace(receipt, endpoint_id=endpoint_id))
        self.reserve(run)

    def reserve(self, run: str, *amounts: int) -> None:
        for number, amount in enumerate(amounts or (1_000_000, 1_360_000)):
            entry = Entry(
                id=f"{run}-{number}",
                run=run,
                stage=tuple(Stage)[number],
                reserved=MicroUsd(amount),
                at="2026-01-01T00:00:00Z",
            )
            self.ledger.reserve(entry, Caps(total=MicroUsd(10**9)))

    def __call__(self, *words: str, state: bool = True) -> subprocess.CompletedProcess[str]:
        place = [f"--state={self.state}"] if state else []
        url = self.emulator.management_url if self.emulator else NOWHERE
        urls = {"PYTEST_RUNPOD_MANAGEMENT_URL": url, "PYTEST_RUNPOD_JOBS_URL": url}
        return subprocess.run(
            [sys.executable, "-m", "pytest_runpod", "ledger", *words, *place],
            env={
                **os.environ,
                **urls,
                "RUNPOD_API_KEY": "rpa_test_key",
                "XDG_STATE_HOME": str(self.state.parent / "home"),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def notes(self, run: str) -> list[str]:
        return [entry.note for entry in self.ledger.of(run)]

    def actual(self, run: str) -> list[int | None]:
        return [entry.actual for entry in self.ledger.of(run)]


@pytest.fixture
def books(tmp_path):
    return Books(tmp_path / "state")


def unchanged(books: Books, run: str) -> bool:
    return books.actual(run) == [None, None] and books.notes(run) == ["", ""]


# --- show


def test_the_ledger_shows_what_was_reserved_what_was_billed_and_what_is_left(books):
    books.reserve("one")
    books.reserve("two", 1_500_000)
    assert books("adjust", "one", "--amount", "0.031", "--reason", "console").returncode == 0
    for words in ((), ("show",)):
        shown = books(*words)
        assert (shown.returncode, shown.stderr) == (0, "")
        first, second, third, *totals = shown.stdout.splitlines()
        assert first.startswith("2026-01-01T00:00:00Z  one  setup  reserved $1.00     billed $0.031")
        assert first.endswith("by hand: console")
        assert "job    reserved $1.36     billed $0.00 " in second
        assert third == "2026-01-01T00:00:00Z  two  setup  reserved $1.50     open"
        assert totals == [
            f"3 entries in {books.ledger.path}, $3.86 reserved",
            "$1.531 count: $0.031 billed, $1.50 open",
            "$8.469 left of $10.00, the default of --runpod-budget-total",
        ]


def test_a_ledger_is_found_by_its_own_path_wherever_that_option_stands(books):
    books.reserve("one")
    for words in (("--ledger", str(books.ledger.path)), ("show", "--ledger", str(books.ledger.path))):
        assert "2 entries" in books(*words, state=False).stdout
    assert "0 entries" in books(state=False).stdout
    assert not (books.state.parent / "home").exists()  # looking makes nothing


@pytest.mark.parametrize("words", [(), ("settle",), ("settle", "one"), ("adjust", "one", "--amount=1", "--reason=x")])
def test_a_damaged_ledger_is_named_with_its_line_and_left_alone(books, words):
    books.reserve("one")
    torn = books.ledger.path.read_bytes()[:-2]
    books.ledger.path.write_bytes(torn)
    done = books(*words)
    assert (done.returncode, done.stdout) == (11, "")
    assert f"{books.ledger.path}: line 25: " in done.stderr
    assert "Traceback" not in done.stderr
    assert books.ledger.path.read_bytes() == torn


# --- settle


@pytest.fixture
def emulator(serve):
    return serve(never_ready=True)


@pytest.fixture
def billed(tmp_path, emulator, eventually):
    """Books, and the id of an endpoint that had a worker and is deleted."""
    return Books(tmp_path / "state", emulator), deleted_endpoint(emulator, eventually)


def deleted_endpoint(emulator, eventually) -> str:
    client = emulator.client()
    endpoint = client.create_endpoint(
        EndpointSpec(
            name="pytest-runpod-x", image="img@sha256:0", args="sleep 600", env={}, pool="AMPERE_16", excluded_types=(),
            min_cuda=None, disk_gb=20, workers_min=0, workers_max=1, idle_timeout_s=5, execution_timeout_s=60, queue_delay_s=1,
        )
    )  # fmt: skip
    client.submit(endpoint, {"x": 1}, Policy(execution_timeout_s=30, ttl_s=120))
    eventually(lambda: client.bill(endpoint.id).amount)
    client.delete_endpoint(endpoint.id)
    eventually(lambda: emulator.ask("alive")["pids"] == [])
    return endpoint.id


def test_a_run_is_settled_with_the_bill_of_its_endpoint_and_what_it_reserved_stays(billed):
    books, endpoint_id = billed
    books.run_of_before("one", *BILLED, endpoint_id=endpoint_id)
    amount = books.emulator.client().bill(endpoint_id).amount
    done = books("settle", "one")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        f"one: {format_usd(amount)} count, $2.36 were reserved (bill of {endpoint_id}, hours: "
    )
    assert books.actual("one") == [amount, 0]
    assert [entry.reserved for entry in books.ledger.of("one")] == [1_000_000, 1_360_000]
    assert books.notes("one")[0] == books.notes("one")[1]
    assert f"Z {format_usd(amount)}, bill of {endpoint_id}" in books.notes("one")[0]


def test_a_settled_run_is_left_alone_and_can_only_be_adjusted(billed):
    books, endpoint_id = billed
    books.run_of_before("one", *BILLED, endpoint_id=endpoint_id)
    assert books("adjust", "one", "--amount=1.50", "--reason=the console said so").returncode == 0
    before = books.ledger.path.read_bytes()
    again = books("settle", "one")
    assert again.returncode == 11
    assert "settled already" in again.stderr
    assert "ledger adjust one --amount USD --reason TEXT" in again.stderr
    assert "is open" in books("settle").stdout
    assert books.ledger.path.read_bytes() == before


def test_a_bill_above_the_reservation_is_recorded_and_said_aloud(serve, tmp_path, eventually):
    emulator = serve(never_ready=True, price_factor=1e6)
    books = Books(tmp_path / "state", emulator)
    books.run_of_before("one", *BILLED, endpoint_id=deleted_endpoint(emulator, eventually))
    done = books("settle", "one")
    assert done.returncode == 0
    more = books.actual("one")[0] - 2_360_000
    assert more > 0
    assert f"that is {format_usd(more)} MORE than was reserved" in done.stdout


def test_all_open_runs_get_a_line_each_and_what_cannot_be_settled_yet_is_no_error(billed):
    books, endpoint_id = billed
    books.run_of_before("billed", *BILLED, endpoint_id=endpoint_id)
    books.run_of_before("early", *BILLED, ago=timedelta(0), endpoint_id=endpoint_id)
    books.run_of_before("alive", Event.CREATE_SENT, Event.CREATE_SEEN, endpoint_id=endpoint_id)
    books.run_of_before("silent", *BILLED, endpoint_id="ep-without-a-worker")
    books.run_of_before("never", *CLEANED)
    books.run_of_before("refused", Event.CREATE_SENT, Event.CREATE_REFUSED, *CLEANED)
    books.run_of_before("old", *BILLED, ago=timedelta(days=31), endpoint_id=endpoint_id)
    books.reserve("lost")
    done = books("settle")
    assert (done.returncode, done.stderr) == (0, "")
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert list(lines) == ["billed", "early", "alive", "silent", "never", "refused", "old", "lost"]
    for run, says in {
        "early": "settle it from 20", "alive": "clean-up is not confirmed", "silent": "proves nothing",
        "old": "older than what a bill shows, 30 days", "lost": "no receipt",
    }.items():  # fmt: skip
        assert says in lines[run]
        assert "Nothing was changed." in lines[run]
        assert unchanged(books, run)
    for run in ("never", "refused"):
        assert lines[run] == "$0.00 count, $2.36 were reserved (no endpoint was ever created)"
        assert books.actual(run) == [0, 0]
        assert "no endpoint was ever created" in books.notes(run)[0]
    assert None not in books.actual("billed")


@pytest.mark.parametrize(
    ("events", "ago", "says"),
    [
        (BILLED, timedelta(0), "settle it from"),
        (BILLED[:2], 3 * HOURS, "run `pytest-runpod reap`"),
        (BILLED, timedelta(days=31), "older than"),
        ((Event.CREATE_SENT, *CLEANED), 3 * HOURS, "proves nothing"),
    ],
)
def test_a_run_that_cannot_be_settled_now_is_an_error_that_names_the_way_by_hand(books, events, ago, says):
    books.run_of_before("one", *events, ago=ago)
    done = books("settle", "one")
    assert (done.returncode, done.stdout) == (11, "")
    assert says in done.stderr
    assert "Nothing was changed." in done.stderr
    assert "`pytest-runpod ledger adjust one --amount USD --reason TEXT`" in done.stderr
    assert unchanged(books, "one")


def test_a_bill_that_lags_is_not_taken_for_a_free_run(serve, tmp_path, eventually):
    emulator = serve(never_ready=True)
    books = Books(tmp_path / "state", emulator)
    books.run_of_before("one", *BILLED, endpoint_id=deleted_endpoint(emulator, eventually))
    emulator.tell("faults", {"billing_lag_s": 7200})
    done = books("settle", "one")
    assert done.returncode == 11
    assert "that proves nothing" in done.stderr
    assert unchanged(books, "one")
    emulator.tell("faults", {})
    assert books("settle", "one").returncode == 0


def test_a_provider_that_gives_no_bill_is_an_error_and_nothing_is_changed(serve, tmp_path):
    books = Books(tmp_path / "state", serve(management_unauthorized=True))
    books.run_of_before("one", *BILLED, endpoint_id="ep1")
    books.run_of_before("never", *CLEANED)
    assert books("settle", "one").returncode == 12
    done = books("settle")
    assert done.returncode == 12
    assert unchanged(books, "one")
    assert books.actual("never") == [0, 0]  # the others are settled all the same


def test_a_receipt_that_is_damaged_or_another_runs_settles_nothing(books):
    books.run_of_before("one", *CLEANED)
    books.reserve("two")
    path = receipt_path(books.state, "two")
    path.write_bytes(receipt_path(books.state, "one").read_bytes())
    done = books("settle", "two")
    assert done.returncode == 13
    assert "of another run" in done.stderr
    path.write_text("{")
    assert "cannot be read" in books("settle", "two").stderr
    assert unchanged(books, "two")


def test_a_run_that_the_ledger_does_not_know_is_an_error(books):
    for words in (("settle", "other"), ("adjust", "other", "--amount=1", "--reason=x")):
        done = books(*words)
        assert done.returncode == 11
        assert "no reservation of other. Nothing was changed." in done.stderr
    assert "no run in" in books("settle").stdout
    assert not books.ledger.path.exists()


# --- adjust


def test_an_adjustment_keeps_its_reason_and_what_was_there_before(books):
    books.reserve("one")
    first = books("adjust", "one", "--amount", "$3.00", "--reason", "  the\nconsole ")
    assert (
        first.stdout
        == "one: $3.00 count, $2.36 were reserved; that is $0.64 MORE than was reserved (by hand: the console)\n"
    )
    assert books("adjust", "one", "--amount=0", "--reason=refunded").returncode == 0
    (note, other), day = books.notes("one"), datetime.now(timezone.utc).strftime("%Y-")
    assert note == other
    old, new = note.split("; ")
    assert old.startswith(day)
    assert old.endswith("Z $3.00, by hand: the console")
    assert new.endswith("Z $0.00, by hand: refunded (before: $3.00)")
    assert books.actual("one") == [0, 0]
    assert json.loads(books.ledger.path.read_text())["schema"] == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--amount=1",), "--reason"),
        (("--reason=x",), "--amount"),
        (("--amount=-1", "--reason=x"), "'-1' is not an amount"),
        (("--amount=lots", "--reason= "), "say where the figure comes from"),
        (("--amount=nan", "--reason=x"), "'nan' is not an amount"),
    ],
)
def test_an_adjustment_without_an_amount_or_a_reason_is_refused(books, words, says):
    books.reserve("one")
    done = books("adjust", "one", *words)
    assert done.returncode in (2, 4)
    assert says in done.stderr
    assert unchanged(books, "one")
