"""A whole run, top to bottom: approve, reserve, create, submit, stream the reports, prove, clean up."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import pytest

from pytest_runpod import approval, compatibility, coverage_data, selection
from pytest_runpod.collected import Collected
from pytest_runpod.core.budget import Entry, Stage, estimate_job, reservation_for
from pytest_runpod.core.canonical import canonical_json
from pytest_runpod.core.choice import Decision
from pytest_runpod.core.clock import Clock, RunId
from pytest_runpod.core.limits import EXECUTION_TIMEOUT_S, JOB_TTL_S, PRICE_CEILING
from pytest_runpod.core.manifest import Payload
from pytest_runpod.core.money import MicroUsd, format_usd
from pytest_runpod.core.receipt import Receipt
from pytest_runpod.core.wire import Session, endpoint_env, job_input, session_digest
from pytest_runpod.endpoint import Deployment
from pytest_runpod.errors import (
    ApprovalRefused,
    ExitCode,
    PayloadRefused,
    ProviderError,
    ReceiptRefused,
    ResultsUnwritable,
    RunpodError,
    SettingsRefused,
    WorkerFailed,
    worse,
)
from pytest_runpod.forwarding import Word
from pytest_runpod.leftovers import insist_on_certainty
from pytest_runpod.options import RunSettings
from pytest_runpod.preflight import Offer, insist_on_spec, make_spec, new_name, new_receipt, preflight
from pytest_runpod.provider.api import Endpoint, EndpointSpec, Job, Policy
from pytest_runpod.provider.runpod import run_body
from pytest_runpod.store import results as result_store
from pytest_runpod.store.ledger import Ledger
from pytest_runpod.store.receipts import ReceiptFile, receipt_path
from pytest_runpod.store.tree import pack, survey
from pytest_runpod.store.worker_files import worker_files
from pytest_runpod.stream import Results, Stream, Submitted
from pytest_runpod.waiting import Pace
from pytest_runpod.wiring import (
    Connection,
    Watchdog,
    approvals_folder,
    connect,
    fingerprint,
    insist_on_account,
    ledger_path,
    start_watchdog,
    state_folder,
)

RUN: Final = pytest.StashKey["RemoteRun"]()
ATTACH_WAIT_S: Final = 120.0
WORKER_LOG: Final = "logs/worker.txt"
NO_CUDA: Final = "device=cpu: no CUDA validation"


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
        self.stream: Stream | None = None
        self.packed: Packed | None = None
        self.deselected: set[str] = set()
        self.connection: Connection | None = None
        self.offer: Offer | None = None
        self.file: ReceiptFile | None = None
        self.deployment: Deployment | None = None
        self.watchdog: Watchdog | None = None
        self.hold = ExitStack()  # that no other run uses our endpoint, until the end
        self.attached = False  # to the job of an earlier run
        self.replayed: Job | None = None  # its final state, if somebody has saved that
        self.job: Job | None = None
        self.sent: Submitted | None = None
        self.trouble: RunpodError | None = None
        self.exit_code: int = ExitCode.OK
        self.facts: dict[str, Any] = {"device": settings.device}
        self.cleaned = self.cleanup_tried = False

    def begin(self, session: pytest.Session, warned: set[tuple[str | None, str]], deselected: set[str]) -> None:
        """Take the items of *session*: what follows is about them.

        Args:
            warned: class and text of the warnings until now. deselected: ids that were collected and are not to run.
        """
        self.deselected = deselected
        collected = Collected(session, there=self.settings.collect == "worker")
        self.stream = Stream(self.settings, collected, self.results, self.facts, self.say)
        self.stream.warned_here = warned
        coverage_data.expect_data_from_elsewhere(self.config)

    # --- what the fixtures ask for, in this order

    def approved_payload(self, settings: RunSettings) -> Payload:
        """Choose, read and digest the files, insist on the approval, and look for what would differ on the worker.

        Nothing has been asked of anybody yet. Raises: PayloadRefused, ApprovalRefused.
        """
        self.packed = pack_payload(self.config, settings)
        payload = self.packed.payload
        approval.check_approval(payload, settings, approvals_folder(settings))
        missing = selection.unpacked_files(self.items, settings.root, payload.paths)
        if missing:
            raise PayloadRefused(
                "Selected tests lie in files that are not packed. Nothing was created, nothing was billed.",
                looked_at=", ".join(missing[:20]),
                todo="let git track them, or name them in runpod_include; files outside of the root cannot travel",
            )
        compatibility.check(self.config, settings, self.words, payload.paths)
        self.facts["payload"] = f"{payload.sha256} ({len(payload.files)} files, {payload.size:,} bytes)"
        return payload

    def open_ledger(self, settings: RunSettings) -> Ledger:
        try:
            result_store.prepare(self.results.folder)
        except OSError as no:
            raise SettingsRefused([f"the folder of results cannot be written: {no}"]) from no
        ledger = Ledger(ledger_path(settings, self.state))
        ledger.entries()
        return ledger

    def reserve(self, payload: Payload, ledger: Ledger) -> Entry | None:
        """Look at the provider, read-only, then reserve for the endpoint. Raises: ProviderError, BudgetRefused."""
        settings = self.settings
        self.file = ReceiptFile(settings.receipt or receipt_path(self.state, self.id))
        given = self.file.read() if settings.receipt is not None else None
        if given is not None:
            self.hold.enter_context(self.file.using())
        if given is not None and given.submitted:
            self._attach(given, payload, ledger)
            return None
        self.connection = connect(settings)
        if given is not None:
            insist_on_account(given, self.connection.where, self.connection.key)
        insist_on_certainty(self.state, self.connection.where, self.clock.now(), but=self.file.path)
        self.offer = preflight(self.connection.provider, settings)
        self.deployment = self._deployment(ledger, self.offer.rate)
        rate, workers = self.offer.rate, settings.workers
        reserved = reservation_for(Stage.SETUP, workers) + reservation_for(Stage.JOB, workers)
        self.facts.update(rate=rate, reserved=reserved)
        self.say(
            f"{settings.gpu}: {format_usd(rate)} an hour; the job can cost {format_usd(estimate_job(rate, workers))} at most, "
            f"{format_usd(reserved)} is reserved"
        )
        return None if given is not None else self.deployment.reserve(self.id, Stage.SETUP)

    def open_endpoint(self, payload: Payload) -> Endpoint:
        """Receipt, watchdog, endpoint; then wait until it answers and is idle."""
        assert self.file is not None
        if self.replayed is not None:
            return Endpoint(self.file.read().endpoint_id or "", self.file.read().name, 0)
        assert self.deployment is not None
        assert self.connection is not None
        if self.attached:
            self._watch()
            return self.deployment.rejoin()
        spec = self._spec(payload)
        if self.settings.receipt is None:
            digests = payload.sha256, payload.worker_sha256
            self.file.create(
                new_receipt(
                    self.id,
                    spec,
                    self.connection.where,
                    fingerprint(self.id, self.connection.key),
                    digests,
                    self.clock,
                    self.deployment.ledger,
                )
            )
            self.hold.enter_context(self.file.using())
            self._watch()
            endpoint = self.deployment.create(spec)
        else:
            self._watch()
            endpoint = self.deployment.adopt(spec)
        self.deployment.wait_until_idle()
        self.say(f"endpoint {endpoint.id} ({endpoint.name}) is ready")
        return endpoint

    def submit(self, payload: Payload) -> Job:
        """Reserve for the job and submit it, once. One that an earlier run has submitted is followed instead."""
        assert self.file is not None
        stayed = () if self.packed is None else tuple(one for one in self.packed.decisions if not one.packed)
        if self.attached:
            self.sent = Submitted(payload.sha256, str(self.file.read().nonce), stayed)
            self.job = self.replayed or self._resumed()
            return self.job
        assert self.deployment is not None
        self.sent = Submitted(payload.sha256, self.clock.token(), stayed)
        session, env = self._question(payload)
        value = job_input(payload, session, env, self.sent.nonce)
        size = len(canonical_json(run_body(value, Policy(EXECUTION_TIMEOUT_S, JOB_TTL_S))))
        result_store.save(self.results.folder, "manifest.json", payload.manifest)
        self.job = self.deployment.submit(value, size)
        items = "its items are collected there" if self.settings.collect == "worker" else f"{len(self.items)} items"
        self.say(f"job {self.job.id} submitted, {size:,} bytes, {items}")
        return self.job

    # --- an earlier run's job

    def _attach(self, given: Receipt, payload: Payload, ledger: Ledger) -> None:
        """Take up the job of a run that died: its saved result, or the job itself. Nothing is paid again.

        Raises: ApprovalRefused: this is not the source that it ran. ReceiptRefused: it was asked something else.
            WorkerFailed: nothing of it is left.
        """
        assert self.file is not None
        if given.payload_sha256 != payload.sha256:
            raise ApprovalRefused(
                "The job of that receipt ran other source than what is here. Nothing was run, nothing more is billed.",
                looked_at=f"the receipt: payload_sha256 {given.payload_sha256}; here: {payload.sha256}",
                todo="go back to that source, or run anew without --runpod-receipt",
            )
        session, env = self._question(payload)
        self._insist_on_the_same_question(given, session_digest(session.to_json(), env))
        self.attached = True
        with self.file.lock(wait_s=ATTACH_WAIT_S):  # a watchdog that cleans up just now saves the result first
            given = self.file.read()
        self.replayed = self.file.saved_result()
        if self.replayed is None or not given.cleanup_confirmed:
            self.connection = connect(self.settings)
            insist_on_account(given, self.connection.where, self.connection.key)
            self.deployment = self._deployment(ledger, PRICE_CEILING)
        self.facts["attached"] = f"to the job of {given.run}; nothing was run or paid again"
        self.say(f"{given.run}: " + ("its saved result is replayed" if self.replayed else "following its job"))

    def _question(self, payload: Payload) -> tuple[Session, dict[str, str]]:
        """What the worker is asked to run, and the variables that it gets by name."""
        session = selection.make_session(
            self.config, self.settings, self.items, self.words, payload.paths, self.deselected
        )
        env = {name: os.environ[name] for name in self.settings.env if name in os.environ}
        self.config.hook.pytest_runpod_test_env(config=self.config, env=env)
        return session, {name: env[name] for name in self.settings.env if name in env}

    def _insist_on_the_same_question(self, given: Receipt, digest: str) -> None:
        if given.session_sha256 != digest:
            raise ReceiptRefused(
                "The job of that receipt was asked something else: other tests, arguments or variables. "
                "Nothing was run, nothing more is billed.",
                looked_at=f"{given.run}, and this command line with its ini file and environment",
                todo="give the same command line as then, and --runpod-receipt; or run anew without it",
            )

    def _resumed(self) -> Job:
        assert self.deployment is not None
        return self.deployment.resume()

    def _deployment(self, ledger: Ledger, rate: MicroUsd) -> Deployment:
        assert self.connection is not None
        assert self.file is not None
        return Deployment(
            self.connection.provider, self.file, ledger, self.settings.caps, self.clock, rate,
            Pace.of(self.settings), self.say, self.settings.workers,
        )  # fmt: skip

    def _watch(self) -> None:
        assert self.connection is not None
        assert self.file is not None
        self.watchdog = start_watchdog(self.file, self.connection, self.settings.request_timeout)

    # --- the stream

    def follow(self) -> Iterator[None]:
        """Publish items as they come back; yields after each of them, so that the loop can stop.

        Infrastructure trouble is kept for the proof: it is one error of `runpod::cuda`, not one of each test.
        """
        assert self.stream is not None
        assert self.sent is not None
        try:
            yield from self.stream.follow(self._states(), self.sent, self._save_result)
        except RunpodError as trouble:
            self.trouble = trouble
            self._keep_worker_log()
        self._count_failed_commands()

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
        ended = self.last_state is not None and self.last_state.final
        if self.deployment is None or self.job is None or ended or self.cleanup_tried:
            return
        try:
            self.deployment.cancel(self.job)
        except ProviderError as trouble:
            self.say(f"the job could not be cancelled ({trouble.happened}); deleting its endpoint ends it")

    def clean_up(self) -> None:
        """Delete and confirm, if anything was begun. Safe to call again. Raises: CleanupUnresolved."""
        if self.cleanup_tried or self.deployment is None or self.file is None or not self.file.path.exists():
            return
        self.facts["cleanup"] = f"UNRESOLVED, see {self.file.path}"
        self.cleanup_tried = True
        receipt = self.deployment.clean_up()
        self.cleaned = True
        if self.results.result is not None:  # it lies in the results folder: nobody needs to fetch it any more
            self.file.result_path.unlink(missing_ok=True)
        self.facts["cleanup"] = f"confirmed ({receipt.name})"

    def save_cost(self) -> None:
        """Write `cost.json`: what was reserved and at which price; the bill comes later (`pytest-runpod ledger settle`)."""
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
            if not self.cleanup_tried:
                if self.deployment is not None and self.file is not None and self.file.path.exists():
                    self.say("deleting the endpoint")
                self.cancel_if_running()
                self.clean_up()
        finally:
            self._let_go()
            self.save_cost()

    def _let_go(self) -> None:
        if self.watchdog is not None:
            if not self.cleaned:
                self.say(f"the watchdog goes on deleting; its log: {self.watchdog.log}")
            self.watchdog.end()
        if self.connection is not None:
            self.connection.close()
        self.watchdog = self.connection = None
        self.hold.close()

    def blame(self, error: BaseException) -> None:
        """Let the exit code of the run know about *error*; a slip of a hook or a fixture is no failure of a test."""
        code = error.exit_code if isinstance(error, RunpodError) else ExitCode.INFRASTRUCTURE
        self.exit_code = worse(self.exit_code, code)

    # --- inside

    @property
    def begun(self) -> bool:
        """Whether there is something to tell at the end."""
        return self.deployment is not None or self.attached

    def _states(self) -> Iterable[Job]:
        if self.replayed is not None:
            return (self.replayed,)
        assert self.deployment is not None
        assert self.job is not None
        return self.deployment.states(self.job)

    def _save_result(self, state: Job) -> None:
        if self.deployment is not None and self.replayed is None:
            self.deployment.save_result(state)

    def _keep_worker_log(self) -> None:
        """Fetch what the workers have written, while their endpoint lives. Best effort: the trouble itself is told anyway."""
        if self.results.result is not None or self.connection is None or self.deployment is None:
            return
        try:
            log = self.connection.provider.worker_log(self.deployment.endpoint.id) if self.deployment.endpoint else ""
            if log:
                result_store.save(self.results.folder, WORKER_LOG, log.encode("utf-8", "replace"))
                self.facts["worker_log"] = str(self.results.folder / WORKER_LOG)
        except (ProviderError, ResultsUnwritable) as trouble:
            self.say(f"the worker's log cannot be had: {trouble.happened}")

    @property
    def items(self) -> list[pytest.Item]:
        return [] if self.stream is None else self.stream.session.items

    @property
    def last_state(self) -> Job | None:
        return self.job if self.stream is None or self.stream.last_state is None else self.stream.last_state

    def _spec(self, payload: Payload) -> EndpointSpec:
        assert self.offer is not None
        assert self.file is not None
        worker = self.packed.worker if self.packed is not None else worker_files()
        name = self.file.read().name if self.settings.receipt else new_name(payload.sha256, self.clock)
        spec = make_spec(name, self.settings, self.offer, endpoint_env(worker, payload.sha256, self.settings.device))
        changed = self.config.hook.pytest_runpod_endpoint_spec(config=self.config, spec=spec)
        return insist_on_spec(spec, changed) if isinstance(changed, EndpointSpec) else spec

    def _count_failed_commands(self) -> None:
        steps = self.results.result.steps if self.results.result is not None else ()
        if any(step.get("status") == "failed" and step.get("name") in self.settings.commands for step in steps):
            self.exit_code = worse(self.exit_code, ExitCode.TESTS_FAILED)
