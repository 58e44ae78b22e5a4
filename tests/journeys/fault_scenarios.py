"""Everything that can go wrong around one run, as a table, and a stage on which each of them is played.

`test_faults.py` plays a slice of it, `benchmarks/faults.py` all of it. Every scenario ends with the same questions: is nothing
of ours left, is nobody else's touched, does the ledger cover the bill, is the exit code of the right class, does the receipt
say what is so.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OK, INTERRUPTED, BUDGET, INFRASTRUCTURE, CLEANUP = 0, 2, 11, 12, 13
REQUEST_TIMEOUT_S = 3
LATE_S = 14.0  # later than the client waits for an answer, and then looks for what may have happened
SETTLED_S = 60.0  # so long the watchdog may take in the worst case: the deadline of a real run is half an hour
FOREIGN = 3

WATCHDOG = "the watchdog goes on deleting"
TEST = "def test_one(): pass\ndef test_two(): pass\n"
CONFTEST = """
import os
import pytest

def here(point):
    if os.environ.get("FAULT_POINT") == point:
        os.kill(os.getpid(), int(os.environ["FAULT_SIGNAL"]))

@pytest.fixture(scope="session")
def runpod_ledger(runpod_ledger):
    here("ledger")
    return runpod_ledger

@pytest.fixture(scope="session")
def runpod_reservation(runpod_reservation):
    here("reservation")
    return runpod_reservation

@pytest.fixture(scope="session")
def runpod_endpoint(runpod_endpoint):
    here("endpoint")
    return runpod_endpoint

@pytest.fixture(scope="session")
def runpod_job(runpod_job):
    here("job")
    return runpod_job

@pytest.hookimpl(optionalhook=True)
def pytest_runpod_endpoint_spec(config, spec):
    here("spec")

@pytest.hookimpl(optionalhook=True)
def pytest_runpod_results(config, folder, summary):
    here("results")

def pytest_runtest_logreport(report):
    if report.nodeid.startswith("test_it") and report.when == "call":
        here("report")
"""

ENDPOINT = "(?!pytest-runpod-nobody)[^/]+"
# name, method, path, which of them, does it change something, is it part of the clean-up
REQUESTS = (
    ("list", "GET", "/v2/serverless", 1, False, False),
    ("job access", "GET", "/v2/pytest-runpod-nobody/health", 1, False, False),
    ("catalog", "GET", "/v2/catalog/gpus", 1, False, False),
    ("create", "POST", "/v2/serverless", 1, True, False),
    ("read back", "GET", "/v2/serverless/[^/]+", 1, False, False),
    ("health", "GET", f"/v2/{ENDPOINT}/health", 1, False, False),
    ("submit", "POST", "/v2/[^/]+/run", 1, True, False),
    ("first status", "GET", "/v2/[^/]+/status/[^/]+", 1, False, False),
    ("third status", "GET", "/v2/[^/]+/status/[^/]+", 3, False, False),
    ("list to delete", "GET", "/v2/serverless", 2, False, True),
    ("scale to zero", "PATCH", "/v2/serverless/[^/]+", 1, True, True),
    ("delete", "DELETE", "/v2/serverless/[^/]+", 1, True, True),
    ("fresh list", "GET", "/v2/serverless", 3, False, True),
    ("confirm by 404", "GET", "/v2/serverless/[^/]+", 2, False, True),
)
# name, fields of the rule, does the effect happen, is the answer a plain no (nobody has to guess)
WIRE = (
    ("refused", {"kind": "status", "status": 403}, False, True),
    ("503", {"kind": "refuse"}, False, False),
    ("cut before", {"kind": "disconnect"}, False, False),
    ("lost after effect", {"kind": "lose_answer"}, True, False),
    ("500 before", {"kind": "status", "status": 500}, False, False),
    ("500 after effect", {"kind": "fail_after"}, True, False),
    ("429", {"kind": "status", "status": 429, "retry_after": 1}, False, True),
    ("effect too late", {"kind": "delay", "seconds": LATE_S}, False, False),
    ("answer too late", {"kind": "delay_answer", "seconds": LATE_S}, True, False),
    ("garbage", {"kind": "garbage"}, True, False),
    ("truncated", {"kind": "truncate"}, True, False),
)
BEFORE_ANYTHING = ("list", "job access", "catalog")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
POINTS = ("ledger", "reservation", "spec", "endpoint", "job", "report", "results")


@dataclass(frozen=True)
class Scenario:
    """One thing that goes wrong. *codes*: exit codes of the right class.

    *unresolved*: for good reason it may never be known whether something was created. *lifted*: the fault does not go away by
    itself; after pytest has ended it is lifted, and `reap` must then confirm. *stays*: what is left is provably not ours.
    *says*: the words by which a user learns what it was.
    """

    group: str
    name: str
    codes: frozenset[int]
    faults: dict[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    number: int | None = None  # a signal, sent while a request is held, or by the run itself at *point*
    point: str | None = None
    release_first: bool = False  # let the held request go before pytest has ended: it waits for it
    unresolved: bool = False
    lifted: bool = False
    stays: bool = False
    says: str = ""

    @property
    def id(self) -> str:
        return f"{self.group}: {self.name}"


def scenarios() -> tuple[Scenario, ...]:
    return (*_wire(), *_signals(), *_account())


def _wire() -> Iterator[Scenario]:
    for (name, method, path, nth, changes, cleaning), (kind, rule, effect, plain_no) in itertools.product(
        REQUESTS, WIRE
    ):
        codes, unresolved = {OK}, False
        if name in ("create", "submit") and not effect:
            codes = {INFRASTRUCTURE}
            if name == "create" and not plain_no:
                codes, unresolved = {CLEANUP}, kind != "effect too late"  # that one is seen, and deleted, in the end
        elif kind == "refused" and not cleaning and not changes:
            codes = {INFRASTRUCTURE}  # a read that is not allowed will not be allowed the next time either
        faults = {"rules": [{**rule, "method": method, "path": path, "nth": nth}]}
        yield Scenario("request", f"{name}, {kind}", frozenset(codes), faults, unresolved=unresolved)


def _signals() -> Iterator[Scenario]:
    for number in SIGNALS:
        ends_with = {signal.SIGINT: INTERRUPTED, signal.SIGKILL: -signal.SIGKILL}.get(number, 128 + number)
        for name, method, path, nth, changes, cleaning in REQUESTS:
            for kind in ("hold", "hold_answer") if changes else ("hold",):
                lost = name == "create" and kind == "hold"  # its effect comes when nobody waits for it any more
                yield Scenario(
                    "signal",
                    f"{number.name} {'before' if kind == 'hold' else 'after'} {name}",
                    frozenset({ends_with, CLEANUP} if lost and number != signal.SIGKILL else {ends_with}),
                    {"rules": [{"kind": kind, "method": method, "path": path, "nth": nth}]},
                    number=number,
                    says="" if name in BEFORE_ANYTHING else "deleting the endpoint",
                    release_first=cleaning and number != signal.SIGKILL,
                )
        for point in POINTS:
            yield Scenario("signal", f"{number.name} at {point}", frozenset({ends_with}), number=number, point=point)


def _account() -> Iterator[Scenario]:
    fails, short = frozenset({INFRASTRUCTURE}), ("--runpod-queue-timeout=4",)
    ok, doubt = frozenset({OK}), frozenset({CLEANUP})
    status, run = "/v2/[^/]+/status/[^/]+", "/v2/[^/]+/run"

    def rule(kind: str, path: str, **more: Any) -> dict[str, Any]:
        return {"rules": [{"kind": kind, "path": path, **more}]}

    for name, codes, faults, arguments, says in (
        ("401 on the job host", fails, {"jobs_unauthorized": True}, (), "works for management, but not for jobs"),
        (
            "401 on the management host",
            fails,
            {"management_unauthorized": True},
            (),
            "The endpoints of the account cannot be listed",
        ),
        (
            "401 while the job runs",
            fails,
            rule("status", status, status=401, nth=2),
            (),
            "The state of the job cannot be read",
        ),
        ("throttled for ever", fails, {"throttled": True}, short, "the hosts of this card are full (throttled)"),
        ("workers that never take a job", fails, {"never_ready": True}, short, "No worker takes the job"),
        ("crash loop", fails, {"crash_loop": True}, (), "workers crash as they start"),
        ("slow cold start", ok, {"cold_start_s": 3}, (), "a worker is starting"),
        ("a late update turns the job back", ok, {"late_progress": True}, (), "2 passed"),
        ("the result is lost", fails, {"lose_result": True}, (), "COMPLETED without a result"),
        ("the job runs twice", ok, {"double_execution": True}, (), "the platform ran the job again"),
        ("the worker dies once", ok, {"kill_workers": 1, "ping_lost_s": 3}, (), "2 passed"),
        ("the worker dies twice", fails, {"kill_workers": 2, "ping_lost_s": 3}, (), "so was the one that ran it again"),
        ("the job is forgotten", fails, {"forget_jobs": True}, (), "has lost the job"),
        ("somebody cancels the job", fails, {"cancel_jobs": True}, (), "cancelled, and not by this run"),
        ("execution timeout as TIMED_OUT", fails, {"execution_timeout_s": 0.5}, (), "ran out of time at the provider"),
        (
            "execution timeout as FAILED",
            fails,
            {"execution_timeout_s": 0.5, "timeout_is_failed": True},
            (),
            "ran out of time at the provider",
        ),
        ("TTL", fails, {"ttl_s": 1.0}, (), "does not know it any more"),
        ("price above the ceiling", frozenset({BUDGET}), {"price_factor": 2}, (), "above the ceiling"),
        ("price above the ceiling, by far", frozenset({BUDGET}), {"price_factor": 1000}, (), "above the ceiling"),
        ("quota taken by others", fails, {"quota_used": 5}, (), "quota of workers is taken"),
        ("paused for a while", ok, {"paused_s": 2.5}, (), "2 passed"),
        ("paused for ever", fails, {"paused_s": 1e9}, short, "stays paused"),
        ("slow propagation", ok, {"propagation_s": 2.5}, (), "2 passed"),
        ("no propagation", fails, {"propagation_s": 1e9}, short, "does not answer"),
        ("more workers than asked for", fails, {"stored_workers_max": 3}, (), "workers.max: asked for 1, got 3"),
        ("no workers at all", fails, {"stored_workers_max": 0}, (), "workers.max: asked for 1, got 0"),
        ("deletion takes its time", ok, {"delete_lag_s": 3}, (), "cleanup:  confirmed"),
        ("a job that is refused", fails, rule("status", run, status=400), (), "refused the job. Nothing was executed"),
        ("the queue is full", fails, rule("status", run, status=429, retry_after=1), (), "too many requests"),
        (
            "a budget that does not suffice",
            frozenset({BUDGET}),
            {},
            ("--runpod-budget=1.50",),
            "this run would reserve",
        ),
        (
            "a total that does not suffice",
            frozenset({BUDGET}),
            {},
            ("--runpod-budget-total=2",),
            "all runs in this ledger would reserve",
        ),
    ):
        yield Scenario("account", name, codes, faults, arguments, says=says)
    for status in (202, 408):  # neither says whether it had an effect
        for name, path, codes in (("create", "/v2/serverless", doubt), ("submission", run, fails)):
            odd = rule("status", path, method="POST", status=status)
            yield Scenario("account", f"{status} to the {name}", codes, odd, unresolved=name == "create")
    lost = {"kind": "lose_answer", "method": "POST", "path": "/v2/serverless"}
    yield Scenario("account", "answer of the create lost, list lags", ok, {"rules": [lost], "unlisted_s": 2})
    yield Scenario(
        "account", "answer of the create lost, list lags long", doubt, {"rules": [lost], "unlisted_s": LATE_S}
    )
    yield Scenario("account", "deletion takes longer than is waited", doubt, {"delete_lag_s": 14})
    yield Scenario("account", "deletion has no effect", doubt, {"undeletable": True}, lifted=True, says=WATCHDOG)
    yield Scenario(
        "account", "DELETE is refused", doubt, rule("status", ".*", method="DELETE", status=403), lifted=True
    )
    yield Scenario("account", "DELETE answers 500", doubt, rule("status", ".*", method="DELETE"), lifted=True)
    yield Scenario("account", "no list to confirm", doubt, {"rules": [
        {"kind": "status", "path": "/v2/serverless", "method": "GET", "nth": nth, "status": 403} for nth in range(2, 40)
    ]}, lifted=True)  # fmt: skip
    yield Scenario(
        "account",
        "our id under another name",
        doubt,
        {"stored_name": "somebody-elses"},
        stays=True,
        says="was not deleted",
    )


class Stage:
    """A served emulator with other people's endpoints, and a project. One scenario after the other, each with its own books."""

    def __init__(self, emulator: Any, project: Any, watchdogs: Callable[[Path], list[int]]) -> None:
        self.emulator, self.project, self.watchdogs = emulator, project, watchdogs
        project.write(test_it=TEST, conftest=CONFTEST)
        self.digest = project.digest()
        self.strangers = self._strangers()
        self.count = 0

    def play(self, scenario: Scenario) -> Outcome:
        """Run pytest into *scenario* and judge what is left."""
        self.count += 1
        self.project.state = self.project.root.parent / f"state-{self.count}"
        self._faults(scenario.faults)
        seen_before = len(self.emulator.ask("log")["requests"])
        began = time.monotonic()
        process = self._start(scenario)
        try:
            if scenario.number is not None and scenario.point is None:
                self._signal_while_held(process, scenario, seen_before)
            output, _ = process.communicate(timeout=150)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        finally:
            self.emulator.tell("release")
        ended = time.monotonic()
        if scenario.lifted:
            self._faults({})
            self._reap()
        settled = self._settle(scenario)
        self._faults({})
        outcome = Outcome(scenario, process.returncode, output, ended - began, time.monotonic() - ended)
        outcome.problems += self._judge(scenario, outcome, settled, seen_before)
        self._remove_what_is_left()
        if not outcome.problems:
            shutil.rmtree(self.project.state, ignore_errors=True)
        return outcome

    # --- acting

    def _start(self, scenario: Scenario) -> subprocess.Popen[str]:
        command = self.project.remote(
            f"--approved-sha={self.digest}", f"--runpod-request-timeout={REQUEST_TIMEOUT_S}", "--runpod-queue-timeout=60",
            "-p", "no:cacheprovider", *scenario.arguments,
        )  # fmt: skip
        environ = {"PYTHONDONTWRITEBYTECODE": "1"}
        if scenario.point:
            environ |= {"FAULT_POINT": scenario.point, "FAULT_SIGNAL": str(int(scenario.number or 0))}
        return self.project.start(command, self.emulator, **environ)

    def _signal_while_held(self, process: subprocess.Popen[str], scenario: Scenario, seen_before: int) -> None:
        until = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < until:
            if any(one["held"] for one in self.emulator.ask("log")["requests"][seen_before:]):
                break
            time.sleep(0.05)
        process.send_signal(scenario.number)
        if scenario.release_first:
            self.emulator.tell("release")

    def _faults(self, faults: dict[str, Any]) -> None:
        self.emulator.tell("faults", faults)

    def _reap(self) -> None:
        command = [*self.project.command()[:2], "pytest_runpod", "reap", f"--state={self.project.state}"]
        self.project.run(command, self.emulator)

    def _settle(self, scenario: Scenario) -> bool:
        """Wait until nothing of ours is left and no receipt is open, as long as a watchdog may need for that."""
        until = time.monotonic() + SETTLED_S
        while time.monotonic() < until:
            alive = self.emulator.ask("alive")
            ours = [one for one in alive["endpoints"] if not one["foreign"]]
            open_ones = [one for one in self.project.receipts() if not one.cleanup_confirmed]
            if scenario.stays or (not ours and not alive["pids"] and (not open_ones or scenario.unresolved)):
                return True
            time.sleep(0.1)
        return False

    def _remove_what_is_left(self) -> None:
        """Of scenarios that stay unresolved, and of those that failed: the next one must not meet it."""
        for watchdog in self.watchdogs(self.project.state):
            with contextlib.suppress(ProcessLookupError):
                os.kill(watchdog, signal.SIGKILL)
        client = self.emulator.client()
        for one in self.emulator.ask("alive")["endpoints"]:
            if not one["foreign"]:
                client.delete_endpoint(one["id"])

    # --- judging

    def _judge(self, scenario: Scenario, outcome: Outcome, settled: bool, seen_before: int) -> Iterator[str]:
        if outcome.code not in scenario.codes:
            yield f"exit code {outcome.code}, not {sorted(scenario.codes)}"
        if scenario.says not in outcome.output and scenario.number != signal.SIGKILL:
            yield f"it does not say {scenario.says!r}"
        if "Traceback" in outcome.output or "INTERNALERROR" in outcome.output:
            yield "a traceback"
        alive = self.emulator.ask("alive")
        ours = [one["name"] for one in alive["endpoints"] if not one["foreign"]]
        if not settled or (ours and not scenario.stays):
            yield f"still there: {ours}, processes {alive['pids']}, jobs {alive['jobs']}"
        if self._strangers() != self.strangers:
            yield "somebody else's endpoint was touched"
        requests = self.emulator.ask("log")["requests"][seen_before:]
        posts = [one["path"] for one in requests if one["method"] == "POST" and one["status"] not in (404, 409)]
        if posts.count("/v2/serverless") > 1 or sum(path.endswith("/run") for path in posts) > 1:
            yield f"sent more than once: {posts}"
        yield from self._judge_the_books(scenario, outcome, set(ours))

    def _judge_the_books(self, scenario: Scenario, outcome: Outcome, ours: set[str]) -> Iterator[str]:
        receipts, reserved = self.project.receipts(), self.project.reserved()
        billed = sum(self._billed(one.endpoint_id) for one in receipts if one.endpoint_id)
        if billed > reserved:
            yield f"billed {billed}, reserved {reserved}"
        for receipt in receipts:
            if receipt.cleanup_confirmed and receipt.name in ours:
                yield "the receipt says that clean-up is confirmed, and it is not"
            if not receipt.cleanup_confirmed and not (scenario.unresolved or scenario.stays):
                yield f"the receipt says {receipt.phase.value}"
            if scenario.unresolved and not receipt.cleanup_confirmed and receipt.phase.value != "unresolved":
                yield f"the receipt does not say that it is unresolved: {receipt.phase.value}"
            if receipt.events[:1] == ("create_sent",) and not reserved:
                yield "created without a reservation"
        if outcome.code == OK and not (receipts and {"job_final", "result_saved"} & set(receipts[0].events)):
            yield "it says that all is well, and the receipt knows no result"
        if reserved not in (0, 1_000_000, 2_360_000):
            yield f"reserved {reserved}"
        texts = [path.read_bytes() for path in self.project.state.rglob("*") if path.is_file()]
        if any(self.emulator.key.encode() in text for text in [*texts, outcome.output.encode()]):
            yield "the key is in a file or in the output"

    def _billed(self, endpoint_id: str) -> int:
        return self.emulator.client().bill(endpoint_id).amount

    def _strangers(self) -> str:
        foreign = {one["id"] for one in self.emulator.ask("alive")["endpoints"] if one["foreign"]}
        listed = self.emulator.client().list_endpoints()
        return json.dumps([one.settings for one in listed if one.id in foreign], sort_keys=True)


@dataclass
class Outcome:
    """How a scenario ended: pytest's exit code and output, its wall time, the time until nothing was left, what was wrong."""

    scenario: Scenario
    code: int
    output: str
    run_s: float
    settled_s: float
    problems: list[str] = field(default_factory=list)
