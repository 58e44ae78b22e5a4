"""One endpoint from reservation to confirmed deletion, in the order that survives a crash at any step.

Reserve, receipt, watchdog, create, record, read back, health, reserve the job, submit, record, poll, clean up. What is on
disk is written before the request that it speaks of leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_runpod.cleanup import clean_receipt
from pytest_runpod.core.budget import Caps, Entry, Stage, reservation_for
from pytest_runpod.core.clock import Clock
from pytest_runpod.core.lifecycle import Event
from pytest_runpod.core.limits import (
    CLEANUP_MARGIN_S,
    DISK_GB,
    EXECUTION_TIMEOUT_S,
    HEALTH_POLL_S,
    HEALTH_WAIT_S,
    IDLE_TIMEOUT_S,
    IMAGE_CUDA,
    JOB_TTL_S,
    MAX_REQUEST,
    PRICE_CEILING,
    QUEUE_DELAY_S,
    SETUP_DEADLINE_S,
    WORKERS_MIN,
)
from pytest_runpod.core.money import MicroUsd, format_usd
from pytest_runpod.core.receipt import NAME_PREFIX, Receipt, Where
from pytest_runpod.core.wire import start_command
from pytest_runpod.errors import (
    BudgetRefused,
    FateUnknown,
    PayloadRefused,
    ProviderError,
    ProviderRefused,
    WorkerFailed,
)
from pytest_runpod.options import RunSettings
from pytest_runpod.provider.api import Endpoint, EndpointSpec, Health, Job, Policy, Provider
from pytest_runpod.provider.runpod import differing_settings
from pytest_runpod.store.ledger import Ledger
from pytest_runpod.store.receipts import ReceiptFile

QUEUE_PATIENCE_S: Final = 600.0  # in the queue for longer than this: the reason is looked for and the run ends
UNHEALTHY_POLLS: Final = 3  # so many looks in a row that show a crashed worker end the run
REFUSED_SETTLE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Offer:
    """What the live catalog says of the card that was asked for."""

    pool: str
    excluded_types: tuple[str, ...]
    rate: MicroUsd


def preflight(provider: Provider, settings: RunSettings) -> Offer:
    """Look, without changing anything: key on both hosts, the card, its price.

    Raises: ProviderError: a host does not accept the key, or the card is in no pool. BudgetRefused: above the ceiling.
    """
    provider.check_job_access()
    catalog = provider.gpus()
    card = next((gpu for gpu in catalog if gpu.id == settings.gpu), None)
    if card is None or card.pool is None or card.price is None:
        known = sorted(gpu.id for gpu in catalog if gpu.pool and gpu.price is not None)
        raise ProviderError(
            f"{settings.gpu} is no card of the provider's Serverless pools. Nothing was created, nothing was billed.",
            looked_at=f"the live catalog: {', '.join(known)}",
            todo="choose one of these with --runpod-gpu",
        )
    if card.price > PRICE_CEILING:
        raise BudgetRefused(
            f"{card.id} costs {format_usd(card.price)} an hour now: above the ceiling. Nothing was created.",
            looked_at=f"the live catalog; the ceiling is {format_usd(PRICE_CEILING)} an hour",
            todo="choose a cheaper card with --runpod-gpu, or wait for the price to fall",
        )
    others = tuple(sorted(gpu.id for gpu in catalog if gpu.pool == card.pool and gpu.id != card.id))
    return Offer(card.pool, others, card.price)


def make_spec(name: str, settings: RunSettings, offer: Offer, env: Mapping[str, str]) -> EndpointSpec:
    """Say everything about the endpoint; nothing is left to the provider's defaults."""
    return EndpointSpec(
        name=name,
        image=settings.image,
        args=start_command(),
        env=env,
        pool=offer.pool,
        excluded_types=offer.excluded_types,
        min_cuda=IMAGE_CUDA,
        disk_gb=DISK_GB,
        workers_min=WORKERS_MIN,
        workers_max=settings.workers,
        idle_timeout_s=IDLE_TIMEOUT_S,
        execution_timeout_s=EXECUTION_TIMEOUT_S,
        queue_delay_s=QUEUE_DELAY_S,
    )


def new_receipt(
    run: str, spec: EndpointSpec, where: Where, digests: tuple[str, str], clock: Clock, ledger: Ledger
) -> Receipt:
    """Write down the intent: the unique name, where, and until when. *digests*: of the payload and of the worker."""
    now = clock.now()
    return Receipt(
        run=run,
        name=spec.name,
        where=where,
        payload_sha256=digests[0],
        worker_sha256=digests[1],
        created_at=now,
        deadline_at=now + SETUP_DEADLINE_S,
        ledger=str(ledger.path),
    )


def new_name(payload_sha256: str, clock: Clock) -> str:
    """A name that nobody else chooses: by it alone a lost endpoint is found again."""
    return f"{NAME_PREFIX}{payload_sha256[:8]}-{clock.token()[:12]}"


@dataclass(slots=True)
class Deployment:
    """An endpoint, its receipt and its ledger, and everything that may be done with them."""

    provider: Provider
    file: ReceiptFile
    ledger: Ledger
    caps: Caps
    clock: Clock
    rate: MicroUsd
    endpoint: Endpoint | None = None
    reserved: list[Entry] = field(default_factory=list)

    # --- before anything exists

    def reserve(self, receipt_run: str, stage: Stage) -> Entry:
        """Put the worst cost of *stage* into the ledger. Raises: BudgetRefused: it does not fit; nothing was written."""
        entry = Entry(
            id=self.clock.token()[:12],
            run=receipt_run,
            stage=stage,
            reserved=reservation_for(stage),
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
        except FateUnknown:
            found = self._find(spec.name)
            if found is None:
                raise
            endpoint = found
        except ProviderError:
            self._note(Event.CREATE_REFUSED)
            raise
        self._note(Event.CREATE_SEEN, endpoint_id=endpoint.id)
        self.ledger.name_endpoint(self.file.read().run, endpoint.id)
        self.endpoint = self._read_back(spec, endpoint)
        return self.endpoint

    def adopt(self, spec: EndpointSpec) -> Endpoint:
        """Use the endpoint that `setup` made, if it is still exactly what this run would ask for.

        Raises: WorkerFailed: it is gone, too old for a whole job, or not what this run needs.
        """
        receipt = self.file.read()
        left = receipt.deadline_at - self.clock.now()
        if left < JOB_TTL_S + CLEANUP_MARGIN_S:
            raise WorkerFailed(
                "The endpoint of that receipt will be deleted too soon for a job. Nothing was submitted.",
                looked_at=f"{left:.0f} s are left, a job may take {JOB_TTL_S} s and clean-up {CLEANUP_MARGIN_S} s",
                todo="run `pytest-runpod cleanup`, then `pytest-runpod setup` again",
            )
        endpoint = self.provider.get_endpoint(receipt.endpoint_id) if receipt.endpoint_id else None
        if endpoint is None or receipt.cleanup_confirmed:
            raise WorkerFailed(
                "The endpoint of that receipt is gone. Nothing was submitted.",
                looked_at=f"{self.file.path.name}, endpoint {receipt.endpoint_id}",
                todo="run `pytest-runpod setup` again",
            )
        self.endpoint = self._read_back(spec, endpoint)
        return self.endpoint

    def wait_until_idle(self) -> Health:
        """Wait until `/health` answers, and insist on an endpoint without any work, now or before.

        Raises: WorkerFailed: it does not answer in time, or shows work that is not ours.
        """
        assert self.endpoint is not None
        until = self.clock.now() + HEALTH_WAIT_S
        while (health := self.provider.health(self.endpoint)) is None:
            if self.clock.now() > until:
                raise WorkerFailed(
                    "The new endpoint does not answer. Nothing was submitted; it is deleted now.",
                    looked_at=f"its /health said 404 for {HEALTH_WAIT_S} s",
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
        self.reserve(self.file.read().run, Stage.JOB)
        self._note(Event.SUBMIT_SENT, nonce=str(job_input["nonce"]))
        job = self._submit(job_input)
        self._note(Event.SUBMIT_SEEN, job_id=job.id)
        return job

    def _submit(self, job_input: Mapping[str, Any]) -> Job:
        """Send; only an endpoint that says that it is paused, or not known yet, is asked again: it took nothing."""
        assert self.endpoint is not None
        policy = Policy(execution_timeout_s=EXECUTION_TIMEOUT_S, ttl_s=JOB_TTL_S)
        until = self.clock.now() + HEALTH_WAIT_S
        while True:
            try:
                return self.provider.submit(self.endpoint, job_input, policy)
            except ProviderRefused as no:
                if no.status not in (404, 409) or self.clock.now() > until:
                    raise
            self.clock.wait(REFUSED_SETTLE_S)

    def states(self, job: Job, poll_s: float, diagnose: Callable[[str], None]) -> Iterator[Job]:
        """Yield the state of *job* again and again, the final one last; say what it waits for.

        Raises: WorkerFailed: the provider does not know it any more, or its worker never becomes ready.
        """
        assert self.endpoint is not None
        waiter = _Waiter(self, diagnose)
        while True:
            state = self.provider.job(self.endpoint, job.id)
            if state is None:
                raise WorkerFailed(
                    "The provider does not know the job any more: it expired, or was lost. It may have been billed.",
                    looked_at=f"/status of job {job.id}: 404, after {waiter.waited:.0f} s; its TTL is {JOB_TTL_S} s",
                    todo="run again; nothing was reported that is not certain",
                )
            yield state
            if state.final:
                self._note(Event.JOB_FINAL)
                return
            waiter.look(state)
            self.clock.wait(poll_s)

    def cancel(self, job: Job) -> None:
        assert self.endpoint is not None
        self.provider.cancel(self.endpoint, job.id)

    # --- the end

    def clean_up(self) -> Receipt:
        """Delete and confirm; the receipt says how it went. Raises: CleanupUnresolved."""
        return clean_receipt(self.file, self.provider, self.clock.iso, wait=self.clock.wait)

    # --- shared

    def _note(self, event: Event, **changes: Any) -> None:
        with self.file.lock():
            self.file.write(self.file.read().after(event, self.clock.iso(), **changes))

    def _find(self, name: str) -> Endpoint | None:
        return next((endpoint for endpoint in self.provider.list_endpoints() if endpoint.name == name), None)

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


class _Waiter:
    """Reads `/health` now and then while a job waits, and tells a crash loop from a queue."""

    def __init__(self, deployment: Deployment, diagnose: Callable[[str], None]) -> None:
        self.deployment, self.diagnose = deployment, diagnose
        self.began = self.looked = deployment.clock.now()
        self.unhealthy = 0

    @property
    def waited(self) -> float:
        return self.deployment.clock.now() - self.began

    def look(self, state: Job) -> None:
        """Raises: WorkerFailed: workers crash again and again, or the queue does not move."""
        now = self.deployment.clock.now()
        if state.status != "IN_QUEUE" or now - self.looked < HEALTH_POLL_S:
            return
        self.looked = now
        health = None
        with suppress(ProviderError):  # a diagnosis that fails is no failure of the run
            assert self.deployment.endpoint is not None
            health = self.deployment.provider.health(self.deployment.endpoint)
        if health is None:
            return
        reason = why_queued(health)
        self.diagnose(f"waiting for {now - self.began:.0f} s: {reason}")
        self.unhealthy = self.unhealthy + 1 if health.workers.get("unhealthy") else 0
        if self.unhealthy >= UNHEALTHY_POLLS or now - self.began > QUEUE_PATIENCE_S:
            raise WorkerFailed(
                "No worker takes the job. It is cancelled and the endpoint deleted now; start-up may have been billed.",
                looked_at=f"/health after {now - self.began:.0f} s: {reason} ({dict(health.workers)})",
                todo="look at the worker's log; with no capacity, try another card with --runpod-gpu",
            )


def why_queued(health: Health) -> str:
    """Say why a queued job waits, in the order of what is most often the cause."""
    workers = {name: count for name, count in health.workers.items() if count}
    if workers.get("unhealthy"):
        return "workers crash as they start"
    if workers.get("initializing"):
        return "a worker is starting (image, bootstrap)"
    if workers.get("running"):
        return "a worker is running and has not taken the job yet"
    if workers.get("ready") or workers.get("idle"):
        return "a worker stands by and has not taken the job yet"
    if workers.get("throttled"):
        return "the hosts of this card are full (throttled)"
    return "no worker: no capacity for this card now"
