"""Every kind of waiting and of ending without a result has its own words, and says what to do."""

import itertools

import pytest

from pytest_runpod.core.cloud import Endpoint, Health, Job
from pytest_runpod.core.diagnosis import quota_use, why_queued, why_unknown, why_without_result

WORKERS = ("unhealthy", "initializing", "running", "ready", "throttled")


def test_each_state_of_the_workers_has_its_own_cause():
    causes = [why_queued(Health({}, {name: 1})) for name in WORKERS] + [
        why_queued(Health({}, dict.fromkeys(WORKERS, 0)))
    ]
    assert len({found.cause for found in causes}) == len(causes)
    assert all(found.todo for found in causes)


def test_a_crash_loop_is_named_before_everything_that_hides_it():
    for others in itertools.combinations(WORKERS[1:], 2):
        assert "crash" in why_queued(Health({}, {"unhealthy": 1, **dict.fromkeys(others, 1)})).cause


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (Job("j", "COMPLETED"), "COMPLETED without a result"),
        (Job("j", "CANCELLED"), "not by this run"),
        (Job("j", "TIMED_OUT"), "ran out of time"),
        (Job("j", "FAILED", error="job timed out"), "ran out of time"),
        (Job("j", "FAILED", error="job timed out after 1 retries", retries=1), "the one that ran it again"),
        (Job("j", "FAILED", error="no such file"), "ended as FAILED"),
    ],
)
def test_a_job_that_brings_nothing_is_explained_and_its_money_named(job, says):
    found = why_without_result(job)
    assert says in found.cause
    assert "It may have been billed." in found.cause
    assert found.todo


def test_an_unknown_job_has_expired_only_after_its_time_to_live():
    assert "lost the job" in why_unknown(1199).cause
    assert "has expired" in why_unknown(1200).cause


def test_the_quota_names_who_takes_most():
    listed = (Endpoint("1", "small", 1), Endpoint("2", "scaled down", 0), Endpoint("3", "large", 4))
    assert quota_use(listed) == "5 workers are taken by 2 endpoints: large 4, small 1"
