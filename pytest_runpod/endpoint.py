"""One endpoint from reservation to confirmed deletion, in the order that survives a crash at any step.

Reserve, receipt, watchdog, create, record, read back, health, reserve the job, submit, record, poll, clean up. What is on
disk is written before the request that it speaks of leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_runpod.cleanup import clean_receipt
from pytest_runpod.core.budget import Caps, Entry, Stage, reservation_for
from pytest_runpod.core.clock import Clock
from pytest_runpod.core.diagnosis import quota_use, why_unknown
from pytest_runpod.core.lifecycle import Event, Phase
from pytest_runpod.core.limits import (
    CLEANUP_MARGIN_S,
    EXECUTION_TIMEOUT_S,
    JOB_TTL_S,
    MAX_REQUEST,
    SETUP_DEADLINE_S,
)
from pytest_runpod.core.money import MicroUsd
from pytest_runpod.core.receipt import Receipt
from pytest_runpod.core.reconcile import Arrived, NoTrace, fate_of_submission
from pytest_runpod.core.wire import session_digest
from pytest_runpod.errors import (
    FateUnknown,
    PayloadRefused,
    ProviderError,
    ProviderRefused,
    ProviderUnreachable,
    WorkerFailed,
)
from pytest_runpod.provider.api import Endpoint, EndpointSpec, Health, Job, Policy, Provider
from pytest_runpod.provider.runpod import differing_settings
from pytest_runpod.store.ledger import Ledger
from pytest_runpod.store.receipts import ReceiptFile
from pytest_runpod.waiting import Outage, Pace, QueueWatch

REFUSED_SETTLE_S: Final = 2.0
SENT_ONCE: Final = frozenset({Event.CREATE_SENT, Event.SUBMIT_SENT})
ASKS_FOR_MORE: Final = frozenset({Event.CREATE_SENT, Event.CREATE_SEEN, Event.SUBMIT_SENT, Event.SUBMIT_SEEN})
LOOKS: Final = 4  # at what a request did whose answer was lost
LOOK_S: Final = 1.0


@dataclass(slots=True)
class Deployment:
    """An endpoint, its receipt and its ledger, and everything that may be done with them."""

    provider: Provider
    file: ReceiptFile
    ledger: Ledger
    caps: Caps
    clock: Clock
    rate: MicroUsd
    pace: Pace = field(default_factory=Pace)
    say: Callable[[str], None] = lambda _: None
    workers: int = 1
    endpoint: Endpoint | None = None
    reserved: list[Entry] = field(default_factory=list)

    # --- before anything exists

    def reserve(self, receipt_run: str, stage: Stage) -> Entry:
        """Put the worst cost of *stage* into the ledger. Raises: BudgetRefused: it does not fit; nothing was written."""
        entry = Entry(
            id=self.clock.token()[:12],
            run=receipt_run,
            stage=stage,
            reserved=reservation_for(stage, self.workers),
            at=self.clock.iso(),
            endpoint_id=self.endpoint.id if self.endpoint else None,
        )
        self.reserved.append(self.ledger.reserve(entry, self.caps))
        return entry

    # --- the endpoint

    def create(self, spec: EndpointSpec) -> Endpoint:
        """Create the endpoint once, and compare what came back with what was asked.

        A lost answer is reconciled by the unique name; an endpoint that differs from what was asked is deleted.
        Raises: ProviderError: refused, not found after a lost answer, or different; what exists is in the receipt.
        """
        self._note(Event.CREATE_SENT)
        try:
            endpoint = self.provider.create_endpoint(spec)
        except FateUnknown as lost:
            endpoint = self._found_by_name(spec.name, lost)
        except (ProviderRefused, ProviderUnreachable) as no:
            self._note(Event.CREATE_REFUSED)
            raise self._with_quota(no) from no
        self._note(Event.CREATE_SEEN, f"endpoint {endpoint.id}", endpoint_id=endpoint.id)
        self.ledger.name_endpoint(self.file.read().run, endpoint.id)
        self.endpoint = self._read_back(spec, endpoint)
        return self.endpoint

    def adopt(self, spec: EndpointSpec) -> Endpoint:
        """Use the endpoint that `setup` made, if it is still exactly what this run would ask for.

        Raises: WorkerFailed: it is gone, too old for a whole job, or not what this run needs.
        """
        receipt = self.file.read()
        self._insist_on_time(receipt)
        endpoint = self.provider.get_endpoint(receipt.endpoint_id) if receipt.endpoint_id else None
        if endpoint is None or receipt.cleanup_confirmed:
            raise WorkerFailed(
                "The endpoint of that receipt is gone. Nothing was submitted.",
                looked_at=f"{self.file.path.name}, endpoint {receipt.endpoint_id}",
                todo="run `pytest-runpod setup` again",
            )
        self.endpoint = self._read_back(spec, endpoint)
        return self.endpoint

    def rejoin(self) -> Endpoint:
        """Find the endpoint of a run that died after it had submitted its job.

        Raises: WorkerFailed: it is gone, or somebody deletes it, and its job with it.
        """
        receipt = self.file.read()
        endpoint = self.provider.get_endpoint(receipt.endpoint_id) if receipt.endpoint_id else None
        if endpoint is None or receipt.in_clean_up:
            raise WorkerFailed(
                "The job of that receipt cannot be followed any more: its endpoint is gone, and nobody has saved its result. "
                "Nothing was run, nothing more is billed.",
                looked_at=f"{self.file.path}: {receipt.phase.value}, endpoint {receipt.endpoint_id}",
                todo="run again without --runpod-receipt; it is paid again then",
            )
        self.endpoint = endpoint
        return endpoint

    def wait_until_idle(self) -> Health:
        """Wait until `/health` answers, and insist on an endpoint without any work, now or before.

        Raises: WorkerFailed: it does not answer in time, or shows work that is not ours.
        """
        assert self.endpoint is not None
        until = self.clock.now() + self.pace.answer_s
        while (health := self.provider.health(self.endpoint)) is None:
            if self.clock.now() > until:
                raise WorkerFailed(
                    "The new endpoint does not answer. Nothing was submitted; it is deleted now.",
                    looked_at=f"its /health said 404 for {self.pace.answer_s:.0f} s",
                    todo="run again; if it stays so, look at the provider's status page",
                )
            self.clock.wait(1.0)
        busy = {name: count for name, count in health.jobs.items() if count}
        if busy:
            raise WorkerFailed(
                "The endpoint already shows work, which is not of this run. Nothing was submitted.",
                looked_at=f"/health: {busy}",
                todo="use a fresh endpoint: run without --runpod-receipt, or `setup` again",
            )
        return health

    # --- the job

    def submit(self, job_input: Mapping[str, Any], request_size: int) -> Job:
        """Reserve, note, and submit, once. A submission whose answer was lost is never sent again.

        Raises: PayloadRefused: too large. BudgetRefused. ProviderError: refused, or its fate is unknown.
        """
        assert self.endpoint is not None
        if request_size > MAX_REQUEST:
            raise PayloadRefused(
                f"The job is too large to be sent: {request_size:,} of {MAX_REQUEST:,} bytes. Nothing was submitted.",
                looked_at="the request as it would be sent, archive in base64",
                todo="exclude files with runpod_exclude; `pytest --runpod-prepare` shows the largest",
            )
        receipt = self.file.read()
        self._insist_on_time(receipt)
        self.reserve(receipt.run, Stage.JOB)
        digest = session_digest(job_input["session"], job_input["env"])
        self._note(Event.SUBMIT_SENT, nonce=str(job_input["nonce"]), session_sha256=digest)
        try:
            job = self._submit(job_input)
        except FateUnknown as lost:
            job = self.find_job(lost)
        except (ProviderRefused, ProviderUnreachable):
            self._note(Event.SUBMIT_REFUSED)
            raise
        self._note(Event.SUBMIT_SEEN, f"job {job.id}", job_id=job.id)
        return job

    def _submit(self, job_input: Mapping[str, Any]) -> Job:
        """Send; only an endpoint that says that it is paused, or not known yet, is asked again: it took nothing."""
        assert self.endpoint is not None
        policy = Policy(execution_timeout_s=EXECUTION_TIMEOUT_S, ttl_s=JOB_TTL_S)
        until = self.clock.now() + self.pace.answer_s
        while True:
            try:
                return self.provider.submit(self.endpoint, job_input, policy)
            except ProviderRefused as no:
                if no.status not in (404, 409):
                    raise
                if self.clock.now() > until:
                    raise self._not_taking_jobs(no) from no
            self.clock.wait(REFUSED_SETTLE_S)

    def _not_taking_jobs(self, no: ProviderRefused) -> ProviderRefused:
        if no.status == 409:
            return ProviderRefused(
                "The endpoint stays paused: the provider takes no job for it. Nothing was executed; it is deleted now.",
                status=409,
                looked_at=f"{no.looked_at}, for {self.pace.answer_s:.0f} s",
                todo="look at the account's balance and limits: a provider pauses endpoints of accounts that run out of money",
            )
        return ProviderRefused(
            "The job API does not know the new endpoint. Nothing was executed; it is deleted now.",
            status=404,
            looked_at=f"{no.looked_at}, for {self.pace.answer_s:.0f} s",
            todo="run again; if it stays so, look at the provider's status page",
        )

    def resume(self) -> Job:
        """The job that the receipt speaks of: its id, or what can be found of a submission whose answer was lost."""
        receipt = self.file.read()
        if receipt.job_id is not None:
            return Job(receipt.job_id, "IN_QUEUE")
        job = self.find_job(FateUnknown("The run died while it submitted its job.", looked_at=str(self.file.path)))
        self._note(Event.SUBMIT_SEEN, f"job {job.id}", job_id=job.id)
        return job

    def find_job(self, lost: FateUnknown) -> Job:
        """Find the job of a submission whose answer was lost, by counters and lists. It is never sent again.

        Raises: FateUnknown: nothing shows it, or nothing names it; deleting the endpoint ends it, if it is there.
        """
        assert self.endpoint is not None
        self.say("the answer of the submission was lost; looking whether the job is there")
        fate: Any = NoTrace()
        for look in range(LOOKS):
            if look:
                self.clock.wait(LOOK_S)
            try:
                fate = fate_of_submission(self.provider.health(self.endpoint), self.provider.requests(self.endpoint))
            except ProviderError:
                continue  # one look less
            if isinstance(fate, Arrived):
                return Job(fate.job_id, "IN_QUEUE")
        shown = "nothing shows it" if isinstance(fate, NoTrace) else fate.counters
        raise FateUnknown(
            "The answer of the submission was lost, and the job could not be found. It was not sent again; "
            "deleting the endpoint ends it. It may have been billed.",
            looked_at=f"{lost.looked_at}; /health and /requests, {LOOKS} times: {shown}",
            todo="run again",
        ) from lost

    def states(self, job: Job) -> Iterator[Job]:
        """Yield the state of *job* again and again, the final one last; say what it waits for.

        Raises: WorkerFailed: the provider does not know it any more, its worker never becomes ready, or the time is over.
        """
        assert self.endpoint is not None
        began, receipt = self.clock.now(), self.file.read()
        queue = QueueWatch(self.provider, self.endpoint, self.clock, self.pace, self.say)
        outage = Outage(self.clock, self.pace, self.say)
        while True:
            try:
                state = self.provider.job(self.endpoint, job.id)
            except ProviderError as trouble:
                outage.bear(trouble)
                self.clock.wait(self.pace.poll_s)
                continue
            outage.over()
            if state is None:
                self._note(Event.JOB_LOST)
                found = why_unknown(self.clock.now() - began)
                raise WorkerFailed(found.cause, looked_at=f"/status of job {job.id}: 404", todo=found.todo)
            yield state
            if state.final:
                return
            queue.look(state)
            if self.clock.now() > receipt.deadline_at - CLEANUP_MARGIN_S:
                raise WorkerFailed(
                    f"The job is {state.status} and its time is over. It is cancelled and the endpoint deleted now; "
                    "it may have been billed.",
                    looked_at=f"job {job.id}; an endpoint lives {SETUP_DEADLINE_S} s, its job {JOB_TTL_S} s",
                    todo="run again, with fewer tests at once",
                )
            self.clock.wait(self.pace.poll_s)

    def save_result(self, state: Job) -> None:
        """Write down that the job has ended, and put what it gave beside the receipt, durably: now its endpoint may go."""
        self._note(Event.JOB_FINAL, state.status)
        if state.output is not None:
            self.file.save_result(state)
            self._note(Event.RESULT_SAVED)

    def cancel(self, job: Job) -> None:
        assert self.endpoint is not None
        self.provider.cancel(self.endpoint, job.id)

    # --- the end

    def clean_up(self) -> Receipt:
        """Delete and confirm; the receipt says how it went. Raises: CleanupUnresolved."""
        return clean_receipt(self.file, self.provider, self.clock.iso, wait=self.clock.wait)

    # --- shared

    def _note(self, event: Event, note: str = "", **changes: Any) -> None:
        """Write down what happened. Raises: WorkerFailed: somebody has begun to clean up, so this run must not go on."""
        with self.file.lock():
            receipt = self.file.read()
            if (
                event.value in receipt.events and event not in SENT_ONCE
            ):  # by a run that died, whose job this one follows
                return
            if event.value in receipt.events:
                raise WorkerFailed(
                    "Another run has sent that already, and nothing is sent twice.",
                    looked_at=f"{self.file.path}: {', '.join(receipt.log)}",
                    todo="run without --runpod-receipt",
                )
            answered = event in (Event.CREATE_SEEN, Event.CREATE_REFUSED) and receipt.phase is Phase.UNRESOLVED
            if answered or not receipt.in_clean_up:
                receipt = self.file.write(receipt.after(event, self.clock.iso(), note, **changes))
        if receipt.in_clean_up and event in ASKS_FOR_MORE:
            raise WorkerFailed(
                "The endpoint of this run is being deleted by its watchdog or by another process. This run ends.",
                looked_at=f"{self.file.path}: {receipt.phase.value}; {receipt.log[-1] if receipt.log else ''}",
                todo=f"see {self.file.watchdog_log.name} beside it; an endpoint lives {SETUP_DEADLINE_S // 60} minutes at most",
            )

    def _insist_on_time(self, receipt: Receipt) -> None:
        left = receipt.deadline_at - self.clock.now()
        if left < JOB_TTL_S + CLEANUP_MARGIN_S:
            raise WorkerFailed(
                "The endpoint will be deleted too soon for a job. Nothing was submitted.",
                looked_at=f"{left:.0f} s are left, a job may take {JOB_TTL_S} s and clean-up {CLEANUP_MARGIN_S} s",
                todo="run `pytest-runpod cleanup --receipt …`, then start anew",
            )

    def _found_by_name(self, name: str, lost: FateUnknown) -> Endpoint:
        self.say("the answer of the create was lost; looking for the endpoint by its name")
        for look in range(LOOKS):
            if look:
                self.clock.wait(LOOK_S)
            try:
                found = [endpoint for endpoint in self.provider.list_endpoints() if endpoint.name == name]
            except ProviderError:
                continue  # one look less; clean-up looks again, and stays unresolved while it cannot
            if found:
                return found[0]
        raise lost

    def _with_quota(self, no: ProviderError) -> ProviderError:
        """Name who takes the account's workers, if that is why a create was refused."""
        if not isinstance(no, ProviderRefused) or "quota" not in no.looked_at.lower():
            return no
        try:
            use = quota_use(self.provider.list_endpoints())
        except ProviderError:
            return no
        return ProviderRefused(
            "The account's quota of workers is taken. No endpoint was created, no job was submitted.",
            status=no.status,
            looked_at=f"{no.looked_at}; {use}",
            todo="delete endpoints that are not needed (`pytest-runpod reap --list` shows those of this plugin), "
            "or raise the quota with the provider",
        )

    def _read_back(self, spec: EndpointSpec, created: Endpoint) -> Endpoint:
        seen = self.provider.get_endpoint(created.id)
        if seen is None:
            raise WorkerFailed(
                "The endpoint is gone right after it was created. No job was submitted.",
                looked_at=f"GET of endpoint {created.id}: 404",
                todo="run again",
            )
        different = differing_settings(spec, seen)
        if different:
            raise WorkerFailed(
                "The provider made another endpoint than the one that was asked for. No job was submitted; it is deleted now.",
                looked_at="; ".join(different),
                todo="run again; if it stays so, the provider has changed what it stores: please report it",
            )
        return seen
