"""The account in memory as a `provider.api.Provider`, without HTTP: the same contract as the client against the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pytest_runpod.core.money import MicroUsd, parse_usd
from pytest_runpod.emulator.model import Account
from pytest_runpod.emulator.validation import ApiError
from pytest_runpod.errors import ProviderRefused
from pytest_runpod.provider.api import Bill, Endpoint, EndpointSpec, Gpu, Health, Job, Policy
from pytest_runpod.provider.runpod import create_body, endpoint_of, gpu_of, job_of, run_body

Runner = Callable[[Any], Mapping[str, Any]]
"""What a worker would do: from a job's input to the body that it posts, `{"output": …}` or `{"error": …}`."""


class AccountProvider:
    """Thin adapter over *account*. Jobs wait in the queue for ever, unless a *runner* does them as they are submitted."""

    def __init__(self, account: Account, runner: Runner | None = None) -> None:
        self.account, self.runner = account, runner

    # --- management

    def list_endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(endpoint_of(value) for value in self.account.listed()["endpoints"])

    def create_endpoint(self, spec: EndpointSpec) -> Endpoint:
        with _refusals("POST serverless", "The account refused to create the endpoint."):
            return endpoint_of(self.account.create(create_body(spec)))

    def get_endpoint(self, endpoint_id: str) -> Endpoint | None:
        known = endpoint_id in self.account.endpoints
        return endpoint_of(self.account.get(endpoint_id)) if known else None

    def scale_to_zero(self, endpoint_id: str) -> None:
        if endpoint_id in self.account.endpoints:
            self.account.patch(endpoint_id, {"workers": {"min": 0, "max": 0}})

    def delete_endpoint(self, endpoint_id: str) -> None:
        if endpoint_id in self.account.endpoints:
            self.account.delete(endpoint_id)

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu_of(one) for one in self.account.catalog()["gpus"])

    def bill(self, endpoint_id: str) -> Bill:
        records = self.account.bill(endpoint_id)["records"]
        return Bill(MicroUsd(sum(parse_usd(record["totalAmount"]) for record in records)), len(records))

    # --- jobs

    def check_job_access(self) -> None:
        if self.account.faults.jobs_unauthorized:
            raise ProviderRefused("The key works for management, but not for jobs.", status=401, looked_at="GET health")

    def health(self, endpoint: Endpoint) -> Health | None:
        with _none_if_gone() as read:
            value = self.account.health(endpoint.id)
            read.append(Health(jobs=value["jobs"], workers=value["workers"]))
        return read[0] if read else None

    def submit(self, endpoint: Endpoint, job_input: Mapping[str, Any], policy: Policy) -> Job:
        with _refusals("POST run", "The account refused the job. Nothing was executed."):
            job = self.account.run(endpoint.id, run_body(job_input, policy))
        accepted = Job(job.id, job.status)
        if self.runner is not None:
            self._work(endpoint.id, self.runner)
        return accepted

    def job(self, endpoint: Endpoint, job_id: str) -> Job | None:
        with _none_if_gone() as read:
            read.append(job_of(self.account.status(endpoint.id, job_id).to_json()))
        return read[0] if read else None

    def cancel(self, endpoint: Endpoint, job_id: str) -> None:
        with _none_if_gone():
            self.account.cancel(endpoint.id, job_id)

    def _work(self, endpoint_id: str, runner: Runner) -> None:
        """Do what waits in the queue, as one worker that ends afterwards."""
        endpoint = self.account.endpoint(endpoint_id)
        worker = self.account.worker_started(endpoint)
        while (taken := self.account.take(endpoint, worker.id)) is not None:
            body = dict(runner(taken.get("input")))
            self.account.done(endpoint, worker.id, taken["id"], body, len(repr(body)))
        self.account.worker_ended(endpoint, worker.id)


@contextmanager
def _refusals(what: str, happened: str) -> Iterator[None]:
    try:
        yield
    except ApiError as no:
        looked_at = f"{what} answered {no.status} ({no.detail}{f': {no.errors}' if no.errors else ''})"
        raise ProviderRefused(happened, status=no.status, looked_at=looked_at) from no


@contextmanager
def _none_if_gone() -> Iterator[list[Any]]:
    """Collect what was read; it stays empty where the account says 404."""
    read: list[Any] = []
    try:
        yield read
    except ApiError as no:
        if no.status != 404:
            raise ProviderRefused("The account refused.", status=no.status, looked_at=no.detail) from no
