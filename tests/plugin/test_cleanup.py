"""Clean-up against an account in memory: what is ours is found by its name and by its id, and nobody else's is touched."""

import itertools
import time
from dataclasses import replace

import pytest

from pytest_runpod.cleanup import clean_receipt, clean_up, state_absence
from pytest_runpod.core.cloud import EndpointSpec
from pytest_runpod.core.lifecycle import Event, Phase
from pytest_runpod.core.receipt import Owned, Receipt, Where
from pytest_runpod.emulator.account_provider import AccountProvider
from pytest_runpod.emulator.faults import Faults
from pytest_runpod.emulator.model import Account
from pytest_runpod.errors import CleanupUnresolved, ReceiptRefused
from pytest_runpod.store.receipts import ReceiptFile

SPEC = EndpointSpec(
    name="pytest-runpod-1", image="img@sha256:0", args="sleep 1", env={}, pool="AMPERE_16", excluded_types=(), min_cuda="12.8",
    disk_gb=20, workers_min=0, workers_max=1, idle_timeout_s=5, execution_timeout_s=60, queue_delay_s=1,
)  # fmt: skip
RECEIPT = Receipt(
    run="r", name=SPEC.name, where=Where("runpod", "https://m", "https://j"), payload_sha256="p", worker_sha256="w",
    created_at=1.0, deadline_at=2.0, ledger="/l",
)  # fmt: skip
NOW = "2026-01-01T00:00:00Z"


def account(**faults):
    numbers = itertools.count()
    return AccountProvider(Account(time.time, lambda: f"{next(numbers):08x}" * 4, faults=Faults(**faults)))


def names(provider):
    return sorted(one.settings["name"] for one in provider.account.endpoints.values())


@pytest.fixture
def created(tmp_path):
    """A receipt of an endpoint that was created."""

    def make(provider):
        endpoint = provider.create_endpoint(SPEC)
        file = ReceiptFile(tmp_path / "r.json")
        receipt = RECEIPT.after(Event.CREATE_SENT, NOW).after(Event.CREATE_SEEN, NOW, endpoint_id=endpoint.id)
        file.create(receipt)
        return file, endpoint

    return make


def test_an_endpoint_that_no_list_shows_is_deleted_by_its_id(created):
    provider = account(unlisted_s=600, foreign_endpoints=2)
    file, _ = created(provider)
    assert clean_receipt(file, provider, lambda: NOW, wait=lambda _: None).cleanup_confirmed
    assert names(provider) == ["pytest-runpod-of-somebody-else-1", "somebody-else-0"]


def test_our_id_under_another_name_is_left_alone_until_a_person_says_that_it_is_not_ours(created):
    provider = account(stored_name="renamed")
    file, _ = created(provider)
    for _ in range(2):
        with pytest.raises(CleanupUnresolved, match="was not deleted"):
            clean_receipt(file, provider, lambda: NOW, wait=lambda _: None)
    assert file.read().phase is Phase.UNRESOLVED
    assert state_absence(file, provider, lambda: NOW, "a colleague has taken it over").cleanup_confirmed
    assert names(provider) == ["renamed"]


def test_a_persons_word_is_not_taken_where_nothing_is_in_doubt(created):
    provider = account()
    file, _ = created(provider)
    with pytest.raises(ReceiptRefused, match="not in doubt"):
        state_absence(file, provider, lambda: NOW, "I think so")
    assert names(provider) == [SPEC.name]


def test_without_an_id_only_the_name_counts():
    provider = account(foreign_endpoints=1)
    provider.create_endpoint(SPEC)
    provider.create_endpoint(replace(SPEC, name="pytest-runpod-2"))
    clean_up(Owned(SPEC.name), provider, wait=lambda _: None)
    assert names(provider) == ["pytest-runpod-2", "somebody-else-0"]
