"""One contract, two implementations: the account in memory, and our client against the server. What runs needs both to agree."""

import itertools
import time

import pytest

from pytest_runpod.emulator.account_provider import AccountProvider
from pytest_runpod.emulator.faults import Faults
from pytest_runpod.emulator.model import Account
from pytest_runpod.errors import ProviderRefused
from pytest_runpod.provider.api import EndpointSpec, Policy

POLICY = Policy(execution_timeout_s=30, ttl_s=120)


def spec(**changes):
    base = {
        "name": "pytest-runpod-contract", "image": "img@sha256:0", "args": "sleep 600", "env": {"MINE": "1"},
        "pool": "AMPERE_16", "excluded_types": ("NVIDIA RTX A4500",), "min_cuda": "12.8", "disk_gb": 20, "workers_min": 0,
        "workers_max": 1, "idle_timeout_s": 5, "execution_timeout_s": 60, "queue_delay_s": 1,
    }  # fmt: skip
    return EndpointSpec(**{**base, **changes})


def in_memory(**faults):
    numbers = itertools.count()
    return Account(time.time, lambda: f"{next(numbers):08x}" * 4, faults=Faults(**faults))


@pytest.fixture(params=["model", "server"])
def provider(request, serve):
    """A function that makes the provider, with faults."""
    if request.param == "model":
        return lambda **faults: AccountProvider(in_memory(**faults))
    return lambda **faults: serve(**faults).client()


def test_an_endpoint_is_what_was_asked_for_until_it_is_deleted_twice(provider):
    cloud = provider()
    assert cloud.list_endpoints() == ()
    endpoint = cloud.create_endpoint(spec())
    assert (endpoint.name, endpoint.workers_max) == ("pytest-runpod-contract", 1)
    assert endpoint.settings["gpu"]["excludedTypes"] == ["NVIDIA RTX A4500"]
    assert endpoint.settings["timeout"] == 60_000
    assert [one.id for one in cloud.list_endpoints()] == [endpoint.id]
    assert cloud.get_endpoint(endpoint.id) == endpoint
    cloud.delete_endpoint(endpoint.id)
    cloud.delete_endpoint(endpoint.id)
    assert cloud.get_endpoint(endpoint.id) is None
    assert cloud.health(endpoint) is None
    assert cloud.list_endpoints() == ()


def test_a_name_is_not_unique_and_deleting_one_leaves_the_other(provider):
    cloud = provider(foreign_endpoints=1)
    one, other = cloud.create_endpoint(spec()), cloud.create_endpoint(spec())
    assert one.id != other.id
    cloud.delete_endpoint(one.id)
    assert [endpoint.name for endpoint in cloud.list_endpoints()] == ["somebody-else-0", "pytest-runpod-contract"]


def test_what_is_beyond_the_quota_is_refused_and_creates_nothing(provider):
    cloud = provider(quota_used=5)
    with pytest.raises(ProviderRefused, match=r"answered 400 .*quota") as refused:
        cloud.create_endpoint(spec())
    assert refused.value.status == 400
    assert cloud.list_endpoints() == ()


def test_a_paused_endpoint_takes_no_job(provider):
    cloud = provider()
    endpoint = cloud.create_endpoint(spec())
    cloud.scale_to_zero(endpoint.id)
    cloud.scale_to_zero("nobody")
    assert cloud.get_endpoint(endpoint.id).workers_max == 0
    with pytest.raises(ProviderRefused) as refused:
        cloud.submit(endpoint, {"x": 1}, POLICY)
    assert refused.value.status == 409
    assert cloud.health(endpoint).jobs["inQueue"] == 0


def test_a_job_waits_is_cancelled_and_is_unknown_elsewhere(provider):
    cloud = provider(throttled=True)
    endpoint = cloud.create_endpoint(spec())
    job = cloud.submit(endpoint, {"x": 1}, POLICY)
    assert job.status == "IN_QUEUE"
    assert cloud.job(endpoint, job.id).final is False
    assert cloud.health(endpoint).jobs["inQueue"] == 1
    cloud.cancel(endpoint, job.id)
    cloud.cancel(endpoint, "nobody")
    assert cloud.job(endpoint, job.id).status == "CANCELLED"
    assert cloud.job(endpoint, "nobody") is None


def test_the_price_is_read_from_the_catalog_and_nothing_was_spent_without_a_worker(provider):
    cloud = provider(price_factor=2.0)
    endpoint = cloud.create_endpoint(spec())
    members = {gpu.id: gpu.price for gpu in cloud.gpus() if gpu.pool == "AMPERE_16"}
    assert len(members) == 4
    assert members["NVIDIA RTX A4000"] == 1_160_000
    assert (cloud.bill(endpoint.id).amount, cloud.bill(endpoint.id).records) == (0, 0)


def test_a_key_for_management_only_shows_before_anything_is_created(provider):
    provider().check_job_access()
    with pytest.raises(ProviderRefused) as refused:
        provider(jobs_unauthorized=True).check_job_access()
    assert refused.value.status == 401


def test_a_runner_does_the_jobs_of_the_account_in_memory():
    cloud = AccountProvider(in_memory(), lambda value: {"output": {"seen": value}})
    endpoint = cloud.create_endpoint(spec())
    job = cloud.submit(endpoint, {"x": 1}, POLICY)
    state = cloud.job(endpoint, job.id)
    assert (job.status, state.status, state.output) == ("IN_QUEUE", "COMPLETED", {"seen": {"x": 1}})
    assert cloud.account.endpoint(endpoint.id).live() == []
