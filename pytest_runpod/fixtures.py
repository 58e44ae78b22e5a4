"""The session fixtures of a run, each overridable in a project's conftest.py. The item `runpod::cuda` requests them.

    settings -> payload -> ledger -> reservation -> endpoint -> job -> results

They are asked for by `runpod::cuda` only: a test that requests one of them runs on the worker, where they do not exist.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_runpod.core.budget import Entry
from pytest_runpod.core.manifest import Payload
from pytest_runpod.endpoint import Deployment
from pytest_runpod.options import RunSettings
from pytest_runpod.provider.api import Endpoint, Job
from pytest_runpod.session import RUN, RemoteRun
from pytest_runpod.store.ledger import Ledger
from pytest_runpod.stream import Results


@pytest.fixture(scope="session")
def runpod_settings(request: pytest.FixtureRequest) -> RunSettings:
    """Everything that was decided by options, variables and the ini file."""
    return _run(request).settings


@pytest.fixture(scope="session")
def runpod_payload(request: pytest.FixtureRequest, runpod_settings: RunSettings) -> Payload:
    """What will be sent, approved by its digest."""
    return _run(request).approved_payload(runpod_settings)


@pytest.fixture(scope="session")
def runpod_ledger(request: pytest.FixtureRequest, runpod_settings: RunSettings) -> Ledger:
    """The book of reservations; unreadable means that nothing is spent."""
    return _run(request).open_ledger(runpod_settings)


@pytest.fixture(scope="session")
def runpod_reservation(request: pytest.FixtureRequest, runpod_payload: Payload, runpod_ledger: Ledger) -> Entry | None:
    """Money for the endpoint, reserved before anything exists; None with `--runpod-receipt`: `setup` has reserved it."""
    return _run(request).reserve(runpod_payload, runpod_ledger)


@pytest.fixture(scope="session")
def runpod_endpoint(
    request: pytest.FixtureRequest, runpod_payload: Payload, runpod_reservation: Entry | None
) -> Iterator[Endpoint]:
    """One endpoint, read back and idle. Its teardown is the confirmed deletion."""
    run = _run(request)
    yield run.open_endpoint(runpod_payload)
    run.clean_up()


@pytest.fixture(scope="session")
def runpod_job(request: pytest.FixtureRequest, runpod_endpoint: Endpoint, runpod_payload: Payload) -> Iterator[Job]:
    """The one job, submitted once. Its teardown cancels it if it still runs."""
    run = _run(request)
    yield run.submit(runpod_payload)
    run.cancel_if_running()


@pytest.fixture(scope="session")
def runpod_results(request: pytest.FixtureRequest, runpod_job: Job) -> Results:
    """What came back: complete once the job has ended, growing until then."""
    return _run(request).results


@pytest.fixture(scope="session")
def runpod_deployment(request: pytest.FixtureRequest, runpod_endpoint: Endpoint) -> Deployment:
    """The endpoint with its receipt, ledger and clock, for a conftest.py that wants to do more with it."""
    deployment = _run(request).deployment
    assert deployment is not None
    return deployment


def _run(request: pytest.FixtureRequest) -> RemoteRun:
    return request.config.stash[RUN]
