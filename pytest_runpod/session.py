"""A whole run, top to bottom: approve, reserve, create, submit, stream the reports, prove, clean up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_runpod import approval, selection
from pytest_runpod.core.budget import Entry, Stage, estimate_job, reservation_for
from pytest_runpod.core.canonical import canonical_json
from pytest_runpod.core.choice import Decision
from pytest_runpod.core.clock import Clock, RunId
from pytest_runpod.core.junit import report_lines
from pytest_runpod.core.limits import EXECUTION_TIMEOUT_S, JOB_TTL_S, POLL_S
from pytest_runpod.core.manifest import Payload
from pytest_runpod.core.matching import Finished, Key, Matcher, keys_of
from pytest_runpod.core.money import format_usd
from pytest_runpod.core.wire import Result, endpoint_env, job_input, parse_lines, read_progress, read_result
from pytest_runpod.endpoint import Deployment, Offer, make_spec, new_name, new_receipt, preflight
from pytest_runpod.errors import (
    ExitCode,
    PayloadRefused,
    ProviderError,
    ResultsUntrusted,
    RunpodError,
    WorkerFailed,
    worse,
)
from pytest_runpod.forwarding import Word
from pytest_runpod.options import RunSettings
from pytest_runpod.provider.api import Endpoint, EndpointSpec, Job, Policy
from pytest_runpod.provider.runpod import run_body
from pytest_runpod.report import Places, failure, make_reports, missing_text, publish, publish_warning
from pytest_runpod.store import results as result_store
from pytest_runpod.store.ledger import Ledger
from pytest_runpod.store.receipts import ReceiptFile, receipt_path
from pytest_runpod.store.tree import pack, survey
from pytest_runpod.store.worker_files import worker_files
from pytest_runpod.wiring import (
    Connection,
    Process,
    approvals_folder,
    connect,
    ledger_path,
    start_watchdog,
    state_folder,
)

RUN: Final = pytest.StashKey["RemoteRun"]()
NO_CUDA: Final = "device=cpu: no CUDA validation"
EMULATOR_POLL_S: Final = 0.25


@dataclass(slots=True)
class Results:
    """What came back, and where it lies. *result* is None until the job has ended."""

    folder: Path
    result: Result | None = None
    attempts: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Packed:
    """The payload, the decision about every file of the tree, and the worker's files."""

    payload: Payload
    decisions: tuple[Decision, ...]
    worker: dict[str, str]


def pack_payload(config: pytest.Config, settings: RunSettings) -> Packed:
    """Choose, read and digest. Nothing is asked of anybody. Raises: PayloadRefused."""
    decisions = survey(settings.root, settings.include, settings.exclude)
    files = list(pack(settings.root, decisions))
    config.hook.pytest_runpod_payload_files(config=config, files=files)
    worker = worker_files()
    return Packed(approval.build_payload(settings, files, worker), decisions, worker)


class RemoteRun:
    """One run: its settings, its endpoint, its job. Fixtures call it; the loop in `remote` drives it."""

    def __init__(
        self,
        config: pytest.Config,
        settings: RunSettings,
        words: tuple[Word, ...],
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self.config, self.settings, self.words, self.clock, self.say = config, settings, words, clock, say
        self.id = RunId.make(clock).text
        self.results = Results(settings.output or settings.root / ".pytest_runpod" / self.id)
        self.state = state_folder(settings, self.results.folder)
        self.items: list[pytest.Item] = []
        self.worker: dict[str, str] = {}
        self.connection: Connection | None = None
        self.offer: Offer | None = None
        self.file: ReceiptFile | None = None
        self.deployment: Deployment | None = None
        self.watchdog: Process | None = None
        self.job: Job | None = None
        self.last_state: Job | None = None
        self.nonce = ""
        self.trouble: RunpodError | None = None
        self.exit_code: int = ExitCode.OK
        self.places: Places | None = None
        self.facts: dict[str, Any] = {"device": settings.device}
        self.payload_sha256 = ""
        self.cleaned = False

    # --- what the fixtures ask for, in this order

    def approved_payload(self, settings: RunSettings) -> Payload:
        """Choose, read and digest the files, and insist on the approval. Nothing has been asked of anybody yet."""
        packed = pack_payload(self.config, settings)
        approval.check_approval(packed.payload, settings, approvals_folder(settings))
        payload, self.worker = packed.payload, packed.worker
        missing = selection.unpacked_files(self.items, settings.root, frozenset(file.path for file in payload.files))
        if missing:
            raise PayloadRefused(
                "Selected tests lie in files that are not packed. Nothing was created, nothing was billed.",
                looked_at=", ".join(missing[:20]),
                todo="let git track them, or name them in runpod_include; files outside of the root cannot travel",
            )
        self.payload_sha256 = payload.sha256
        self.facts["payload"] = f"{payload.sha256} ({len(payload.files)} files, {payload.size:,} bytes)"
        return payload

    def open_ledger(self, settings: RunSettings) -> Ledger:
        ledger = Ledger(ledger_path(settings, self.state))
        ledger.entries()
        return ledger

    def reserve(self, payload: Payload, ledger: Ledger) -> Entry | None:
        """Look at the provider, read-only, then reserve for the endpoint. Raises: ProviderError, BudgetRefused."""
        self.connection = connect(self.settings)
        self.offer = preflight(self.connection.provider, self.settings)
        path = self.settings.receipt or receipt_path(self.state, self.id)
        self.file = ReceiptFile(path)
        self.deployment = Deployment(
            self.connection.provider, self.file, ledger, self.settings.caps, self.clock, self.offer.rate
        )
        rate = self.offer.rate
        reserved = reservation_for(Stage.SETUP) + reservation_for(Stage.JOB)
        self.facts.update(rate=rate, reserved=reserved)
        self.say(
            f"{self.settings.gpu}: {format_usd(rate)} an hour; the job can cost {format_usd(estimate_job(rate))} at most, "
            f"{format_usd(reserved)} is reserved"
        )
        if self.settings.receipt is not None:
            return None
        return self.deployment.reserve(self.id, Stage.SETUP)

    def open_endpoint(self, payload: Payload) -> Endpoint:
        """Receipt, watchdog, endpoint; then wait until it answers and is idle."""
        assert self.deployment is not None
        assert self.file is not None
        assert self.connection is not None
        spec = self._spec(payload)
        if self.settings.receipt is None:
            digests = payload.sha256, payload.worker_sha256
            self.file.create(
                new_receipt(self.id, spec, self.connection.where, digests, self.clock, self.deployment.ledger)
            )
            self.watchdog = start_watchdog(self.file.path, self.connection.key)
            endpoint = self.deployment.create(spec)
        else:
            self.watchdog = start_watchdog(self.file.path, self.connection.key)
            endpoint = self.deployment.adopt(spec)
        self.deployment.wait_until_idle()
        self.say(f"endpoint {endpoint.id} ({endpoint.name}) is ready")
        return endpoint

    def submit(self, payload: Payload) -> Job:
        """Reserve for the job and submit it, once."""
        assert self.deployment is not None
        self.nonce = self.clock.token()
        project = selection.Project(self.settings.root)
        session = selection.make_session(self.config, self.items, self.words, project)
        env = {name: os.environ[name] for name in self.settings.env if name in os.environ}
        self.config.hook.pytest_runpod_test_env(config=self.config, env=env)
        value = job_input(payload, session, {name: env[name] for name in self.settings.env if name in env}, self.nonce)
        size = len(canonical_json(run_body(value, Policy(EXECUTION_TIMEOUT_S, JOB_TTL_S))))
        result_store.save(self.results.folder, "manifest.json", payload.manifest)
        self.job = self.last_state = self.deployment.submit(value, size)
        self.say(f"job {self.job.id} submitted, {size:,} bytes, {len(self.items)} items")
        return self.job

    # --- the stream

    def stream(self) -> Iterator[None]:
        """Publish items as they come back; yields after each of them, so that the loop can stop.

        Infrastructure trouble is kept for the proof: it is one error of `runpod::cuda`, not one of each test.
        """
        matcher = Matcher.of([item.nodeid for item in self.items])
        try:
            yield from self._follow(matcher)
        except RunpodError as trouble:
            self.trouble = trouble

    def prove(self) -> None:
        """Pass only if a kernel ran on the card that was asked for; on the CPU say that nothing was proved.

        Raises: RunpodError: whatever went wrong on the way here, or the proof itself.
        """
        if self.trouble is not None:
            raise self.trouble
        result = self.results.result
        assert result is not None
        if self.settings.device == "cpu":
            raise pytest.skip.Exception(NO_CUDA, _use_item_location=True)
        proof = result.proof
        if proof.get("cuda_executed") is not True or self.settings.gpu not in str(proof.get("name")):
            raise WorkerFailed(
                "No CUDA kernel was proved to have run on the card that was asked for. The job was billed.",
                looked_at=f"asked for {self.settings.gpu}; the worker says {json.dumps(dict(proof))[:500]}",
                todo="look at hardware.json and logs/ in the results folder",
            )

    # --- the end

    def cancel_if_running(self) -> None:
        """Stop a job that has not ended. Trouble here is no reason to keep the endpoint: deleting it cancels too."""
        if self.deployment is None or self.job is None or (self.last_state and self.last_state.final):
            return
        try:
            self.deployment.cancel(self.job)
        except ProviderError as trouble:
            self.say(f"the job could not be cancelled ({trouble.happened}); deleting its endpoint ends it")

    def clean_up(self) -> None:
        """Delete and confirm, if anything was begun. Safe to call again. Raises: CleanupUnresolved."""
        if self.cleaned or self.deployment is None or self.file is None or not self.file.path.exists():
            return
        self.facts["cleanup"] = f"UNRESOLVED, see {self.file.path}"
        receipt = self.deployment.clean_up()
        self.cleaned = True
        self.facts["cleanup"] = f"confirmed ({receipt.name})"

    def save_cost(self) -> None:
        """Write `cost.json`: what was reserved and at which price; the bill comes later (`pytest-runpod ledger --settle`)."""
        if self.deployment is None or not self.deployment.reserved:
            return
        cost = {
            "run": self.id,
            "endpoint_id": self.deployment.endpoint.id if self.deployment.endpoint else None,
            "gpu": self.settings.gpu,
            "price_micro_usd_per_hour": self.deployment.rate,
            "reserved_micro_usd": sum(entry.reserved for entry in self.deployment.reserved),
            "execution_ms": self.last_state.execution_ms if self.last_state else None,
            "billed_micro_usd": None,
            "ledger": str(self.deployment.ledger.path),
        }
        result_store.save(self.results.folder, "cost.json", json.dumps(cost, indent=1).encode())

    def finish(self) -> None:
        """Whatever happened: nothing of ours is left when this returns, or the error says what may be."""
        try:
            if not self.cleaned:
                self.cancel_if_running()
                self.clean_up()
        finally:
            self.save_cost()
            for helper in (self.watchdog, self.connection):
                if isinstance(helper, Process):
                    helper.end()
                elif helper is not None:
                    helper.close()
            self.watchdog = self.connection = None

    def blame(self, error: BaseException) -> None:
        """Let the exit code of the run know about *error*."""
        if isinstance(error, RunpodError):
            self.exit_code = worse(self.exit_code, error.exit_code)

    # --- inside

    def _spec(self, payload: Payload) -> EndpointSpec:
        assert self.offer is not None
        assert self.file is not None
        name = self.file.read().name if self.settings.receipt else new_name(payload.sha256, self.clock)
        spec = make_spec(
            name, self.settings, self.offer, endpoint_env(self.worker, payload.sha256, self.settings.device)
        )
        changed = self.config.hook.pytest_runpod_endpoint_spec(config=self.config, spec=spec)
        return changed if isinstance(changed, EndpointSpec) else spec

    def _follow(self, matcher: Matcher) -> Iterator[None]:
        assert self.deployment is not None
        assert self.job is not None
        poll_s = EMULATOR_POLL_S if self.settings.provider == "emulator" else POLL_S
        for state in self.deployment.states(self.job, poll_s, self.say):
            self.last_state = state
            progress = None if state.final else read_progress(state.output, self.nonce)
            if progress is None:
                continue
            self.results.attempts.add(progress.attempt)
            self._learn_places(progress.lines)
            if self.places is not None:
                yield from self._publish(matcher.window(progress.attempt, progress.first, progress.lines))
        yield from self._take_result(matcher)

    def _take_result(self, matcher: Matcher) -> Iterator[None]:
        state = self.last_state
        assert state is not None
        result_store.save(self.results.folder, "response.json", json.dumps(state.output, indent=1).encode())
        result = self._verified(state)
        self.results.result = result
        self.results.attempts.add(result.attempt)
        result_store.save_members(self.results.folder, result.members)
        self._remember_facts(result, state)
        lines = parse_lines(result.member("reports.jsonl") or b"")
        self._learn_places(lines)
        xml = result.member("junit.xml")
        reports = report_lines(xml) if xml else ()
        deaths = [line for line in lines if line["kind"] == "died"]
        yield from self._publish(matcher.final([*reports, *deaths]))
        for line in lines:
            if line["kind"] == "warning":
                publish_warning(line, self.config, self.places)
        self.config.hook.pytest_runpod_results(
            config=self.config, folder=self.results.folder, summary=dict(result.summary)
        )
        if result.error:
            raise WorkerFailed(
                f"The worker could not finish its work: {result.error}",
                looked_at=f"steps: {', '.join(_step_text(step) for step in result.steps)}; logs in {self.results.folder}",
                todo="read logs/ in the results folder; the job was billed",
            )
        yield from self._account_for_the_rest(matcher, lines)

    def _verified(self, state: Job) -> Result:
        if state.output is None or state.status in ("CANCELLED", "TIMED_OUT"):
            raise WorkerFailed(
                f"The job ended as {state.status} without a result. It may have been billed.",
                looked_at=f"job {state.id}: {state.error or 'no error text'}, {state.retries} retries",
                todo="look at the worker's log, then run again",
            )
        return read_result(state.output, self.payload_sha256, self.nonce, state.error)

    def _account_for_the_rest(self, matcher: Matcher, lines: Any) -> Iterator[None]:
        """Every item without a result becomes an error that says so, unless the run was told to stop."""
        if matcher.different:
            raise ResultsUntrusted(
                "Reports that came while the job ran differ from those in its final result.",
                looked_at=", ".join(key[0] for key in matcher.different[:10]),
                todo="run again; do not trust this run",
            )
        missing = [] if self._stopped() else matcher.missing()
        for key in missing:
            item = self._item(key)
            publish(item, key, [failure(key, item, "setup", missing_text(key, _why_missing(key, lines)))], self.config)
            yield None
        if missing:
            raise ResultsUntrusted(
                f"{len(missing)} of {len(self.items)} selected tests came back without a result.",
                looked_at=", ".join(key[0] for key in missing[:10]),
                todo="read logs/pytest.txt in the results folder",
            )

    def _publish(self, finished: list[Finished]) -> Iterator[None]:
        for one in finished:
            item = self._item(one.key)
            publish(item, one.key, make_reports(self.config, one, item, self.places), self.config)
            yield None

    def _item(self, key: Key) -> pytest.Item | None:
        return self._by_key.get(key)

    @cached_property
    def _by_key(self) -> dict[Key, pytest.Item]:
        return dict(zip(keys_of(item.nodeid for item in self.items), self.items, strict=True))

    def _learn_places(self, lines: Any) -> None:
        if self.places is None:
            line = next((line for line in lines if line["kind"] == "session"), None)
            if line is not None:
                self.places = Places.of(line, self.config.rootpath, self.config.invocation_params.dir)

    def _stopped(self) -> bool:
        session = self.items[0].session
        return bool(session.shouldfail or session.shouldstop)

    def _remember_facts(self, result: Result, state: Job) -> None:
        hardware = json.loads(result.member("hardware.json") or b"{}")
        self.facts.update(
            gpu=result.proof.get("name"),
            driver=result.proof.get("driver"),
            torch=result.proof.get("torch") or hardware.get("torch"),
            image=self.settings.image,
            provider="emulator" if self.settings.provider == "emulator" else None,
            attempts=f"{len(self.results.attempts)} (the platform ran the job again)"
            if len(self.results.attempts) > 1
            else None,
            steps=[
                f"{step.get('name')} {step.get('seconds', 0):.1f} s"
                for step in result.steps
                if step.get("status") != "skipped"
            ],
            failed_steps=[_step_text(step) for step in result.steps if step.get("status") not in ("ok", "skipped")],
            left_out=[f"{entry.get('path')} ({entry.get('size')} bytes)" for entry in result.left_out],
            output=str(self.results.folder),
            execution_ms=state.execution_ms,
        )
        failed = [
            step
            for step in result.steps
            if step.get("status") == "failed" and step.get("name") in self.settings.commands
        ]
        if failed:
            self.exit_code = worse(self.exit_code, ExitCode.TESTS_FAILED)


def _step_text(step: Any) -> str:
    exit_status = "" if step.get("exit") in (None, 0) else f", exit {step['exit']}"
    detail = f": {step['detail']}" if step.get("detail") else ""
    return f"{step.get('name')} {step.get('status')}{exit_status}{detail}"


def _why_missing(key: Key, lines: Any) -> str:
    for line in lines:
        if line["kind"] == "collected" and key[0] in (line.get("missing") or ()):
            texts = [str(error.get("longrepr") or "") for error in line.get("errors") or ()]
            texts = [text for text in texts if text]
            return "the worker did not collect it" + (f":\n{texts[0]}" if texts else "; it is not there")
    return "the worker's pytest ended before it came to this test"
