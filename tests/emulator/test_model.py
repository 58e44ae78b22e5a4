"""The account in memory, with a clock that the test turns."""

import itertools

import pytest

from pytest_runpod.emulator.faults import Faults
from pytest_runpod.emulator.model import PING_LOST_S, RETENTION_S, Account
from pytest_runpod.emulator.validation import ApiError

BODY = {
    "name": "n",
    "type": "QUEUE",
    "scaling": {"type": "QUEUE_DELAY", "queueDelay": 1},
    "gpu": {"pools": ["AMPERE_16"]},
    "image": "img:tag",
    "workers": {"min": 0, "max": 1, "idleTimeout": 5},
}


class Turned:
    """An account whose time stands until it is turned."""

    def __init__(self, **faults):
        self.time = 1_000_000.0
        numbers = itertools.count()
        self.account = Account(lambda: self.time, lambda: f"{next(numbers):08x}" * 4, faults=Faults(**faults))

    def endpoint(self, **body):
        return self.account.endpoint(self.account.create({**BODY, **body})["id"])

    def submitted(self, **policy):
        endpoint = self.endpoint()
        job = self.account.run(endpoint.id, {"input": {"x": 1}, **({"policy": policy} if policy else {})})
        return endpoint, job

    def taken(self, **policy):
        endpoint, job = self.submitted(**policy)
        worker = self.account.worker_started(endpoint)
        assert self.account.take(endpoint, worker.id) == {"id": job.id, "input": {"x": 1}}
        return endpoint, job, worker

    def pass_time(self, seconds):
        self.time += seconds
        return self.account.tick()


@pytest.fixture
def turned():
    return Turned()


def test_defaults_are_those_of_the_live_service(turned):
    value = turned.account.described(turned.endpoint(workers={}))
    assert value["workers"] == {"min": 0, "max": 3, "idleTimeout": 10}
    assert value["timeout"] == 0
    assert value["flashboot"] == "OFF"
    assert value["requestUrls"]["status"].endswith("/status/{job_id}")


@pytest.mark.parametrize(
    ("change", "status", "named"),
    [
        ({"colour": "red"}, 422, "colour"),
        ({"workers": {"maximum": 1}}, 422, "workers.maximum"),
        ({"gpu": {"pools": ["NO_POOL"]}}, 422, "gpu.pools"),
        ({"gpu": {"pools": ["AMPERE_16"], "excludedTypes": ["none"]}}, 422, "gpu.excludedTypes"),
        ({"cpu": [{"id": "cpu3c", "vcpuCount": 2}]}, 400, "exactly one of gpu and cpu"),
        ({"flashboot": True}, 422, "flashboot"),
        ({"scaling": {"type": "REQUEST_COUNT", "requestCount": 1}}, 422, "workers.idleTimeout"),
        ({"scaling": {"type": "QUEUE_DELAY", "queueDelay": 0.1}}, 422, "scaling.queueDelay"),
        ({"workers": {"max": 6}}, 400, "quota"),
        ({"env": {"A": 1}}, 422, "env"),
        ({"image": ""}, 422, "image"),
        ({"templateId": "t"}, 404, "not found"),
        ({"gpu": {"pools": [{}]}}, 422, "gpu.pools"),
        ({"gpu": {"pools": ["AMPERE_16"], "minCudaVersion": "12"}}, 422, "gpu.minCudaVersion"),
        (
            {"gpu": {"pools": ["AMPERE_16"], "minCudaVersion": "12.8", "allowedCudaVersions": ["12.8"]}},
            400,
            "exclude each other",
        ),
        ({"args": "python -c 'x"}, 422, "args"),
        ({"env": {"A=B": "1"}}, 422, "env"),
        ({"disk": 0}, 422, "disk"),
        ({"workers": {"idleTimeout": 3601}}, 422, "workers.idleTimeout"),
        ({"dataCenterIds": "EU-RO-1"}, 422, "dataCenterIds"),
    ],
)
def test_what_the_service_would_refuse_is_refused(turned, change, status, named):
    with pytest.raises(ApiError) as refused:
        turned.account.create({**BODY, **change})
    assert refused.value.status == status
    assert named in f"{refused.value.detail} {refused.value.errors}"
    assert turned.account.endpoints == {}


def test_a_job_is_taken_worked_on_and_completed(turned):
    endpoint, job, worker = turned.taken()
    turned.pass_time(3)
    turned.account.done(endpoint, worker.id, job.id, {"status": "IN_PROGRESS", "output": "half"}, 10)
    assert turned.account.status(endpoint.id, job.id).to_json()["output"] == "half"
    turned.account.done(endpoint, worker.id, job.id, {"output": {"a": 1}}, 10)
    value = job.to_json()
    assert (value["status"], value["output"], value["executionTime"]) == ("COMPLETED", {"a": 1}, 3000)
    assert turned.account.health(endpoint.id)["jobs"]["completed"] == 1


def test_an_error_of_the_handler_keeps_its_output(turned):
    endpoint, job, worker = turned.taken()
    turned.account.done(endpoint, worker.id, job.id, {"output": {"a": 1}, "error": "bad"}, 10)
    assert (job.status, job.output, job.error) == ("FAILED", {"a": 1}, "bad")


def test_a_late_progress_update_cannot_take_back_a_result_unless_that_fault_is_on():
    for late in (False, True):
        turned = Turned(late_progress=late)
        endpoint, job, worker = turned.taken()
        turned.account.done(endpoint, worker.id, job.id, {"output": 1}, 10)
        assert job.status == ("IN_PROGRESS" if late else "COMPLETED")


def test_a_result_that_is_too_large_is_refused_and_the_job_is_completed_without_output(turned):
    endpoint, job, worker = turned.taken()
    with pytest.raises(ApiError) as refused:
        turned.account.done(endpoint, worker.id, job.id, {"output": "x"}, 10_000_001)
    assert refused.value.status == 400
    assert "output" not in job.to_json()
    assert job.status == "COMPLETED"


def test_a_job_whose_worker_is_lost_is_dispatched_once_more_and_then_fails(turned):
    endpoint, job, _ = turned.taken()
    turned.pass_time(PING_LOST_S + 1)
    assert (job.status, job.retries) == ("IN_QUEUE", 1)
    second = turned.account.worker_started(endpoint)
    turned.account.take(endpoint, second.id)
    turned.pass_time(PING_LOST_S - 1)
    turned.account.ping(endpoint, second.id, [job.id], unhealthy=False)
    turned.pass_time(PING_LOST_S - 1)
    assert job.status == "IN_PROGRESS"
    turned.pass_time(PING_LOST_S + 1)
    assert (job.status, job.error) == ("FAILED", "job timed out after 1 retries")


@pytest.mark.parametrize(("failed", "status"), [(False, "TIMED_OUT"), (True, "FAILED")])
def test_an_execution_timeout_stops_the_worker(failed, status):
    turned = Turned(timeout_is_failed=failed)
    endpoint, job, worker = turned.taken(executionTimeout=5000, ttl=60_000)
    turned.account.ping(endpoint, worker.id, [job.id], unhealthy=False)
    assert turned.pass_time(6) == [(endpoint, worker.id)]
    assert job.status == status
    assert turned.account.stop_signals(endpoint, worker.id) == [job.id]


def test_a_job_is_gone_when_its_ttl_ends_in_any_state(turned):
    endpoint, job = turned.submitted(executionTimeout=5000, ttl=10_000)
    turned.pass_time(11)
    with pytest.raises(ApiError, match="not found"):
        turned.account.status(endpoint.id, job.id)
    assert endpoint.queue == []


def test_a_result_is_kept_for_half_an_hour(turned):
    endpoint, job, worker = turned.taken()
    turned.account.done(endpoint, worker.id, job.id, {"output": 1}, 10)
    turned.pass_time(RETENTION_S - 1)
    assert turned.account.status(endpoint.id, job.id) is job
    turned.pass_time(2)
    with pytest.raises(ApiError, match="not found"):
        turned.account.status(endpoint.id, job.id)


def test_a_running_job_is_cancelled_and_its_worker_told_until_it_lets_go(turned):
    endpoint, job, worker = turned.taken()
    turned.account.cancel(endpoint.id, job.id)
    assert job.status == "CANCELLED"
    assert turned.account.stop_signals(endpoint, worker.id) == [job.id]
    assert turned.account.stop_signals(endpoint, worker.id) == [job.id]
    turned.account.released(endpoint, worker.id, job.id)
    assert turned.account.stop_signals(endpoint, worker.id) == []


def test_only_failed_jobs_can_be_retried_and_only_queued_ones_purged(turned):
    endpoint, job, worker = turned.taken()
    with pytest.raises(ApiError):
        turned.account.retry(endpoint.id, job.id)
    assert turned.account.purge(endpoint.id)["removed"] == 0
    turned.account.done(endpoint, worker.id, job.id, {"error": "bad"}, 10)
    assert turned.account.retry(endpoint.id, job.id).status == "IN_QUEUE"
    assert turned.account.purge(endpoint.id)["removed"] == 1


def test_an_endpoint_without_workers_is_paused(turned):
    endpoint = turned.endpoint(workers={"max": 0})
    with pytest.raises(ApiError, match="ENDPOINT_PAUSED") as refused:
        turned.account.run(endpoint.id, {"input": {"x": 1}})
    assert refused.value.status == 409


def test_an_empty_input_is_lost_on_the_way_to_the_worker(turned):
    endpoint = turned.endpoint()
    job = turned.account.run(endpoint.id, {"input": {}})
    worker = turned.account.worker_started(endpoint)
    assert turned.account.take(endpoint, worker.id) == {"id": job.id}


def test_deleting_takes_jobs_workers_and_the_bound_template_along_and_nobody_elses():
    turned = Turned(foreign_endpoints=1)
    endpoint, job, _ = turned.taken()
    turned.account.delete(endpoint.id)
    assert job.status == "CANCELLED"
    assert [one.foreign for one in turned.account.endpoints.values()] == [True]
    assert len(turned.account.templates) == 1
    with pytest.raises(ApiError, match="not found"):
        turned.account.delete(endpoint.id)


def test_the_bill_is_worker_seconds_times_rate_stays_after_deletion_and_lags():
    turned = Turned(billing_lag_s=3600)
    endpoint, _, _ = turned.taken()
    turned.pass_time(30)
    turned.account.delete(endpoint.id)
    assert turned.account.bill(endpoint.id)["records"] == []
    turned.time += 3600
    assert turned.account.bill(endpoint.id)["metadata"]["totals"]["totalAmount"] == pytest.approx(
        30 * 0.58 / 3600, abs=1e-6
    )
    assert turned.account.bill("other")["records"] == []


def test_a_fresh_endpoint_shows_a_standby_worker_that_costs_nothing(turned):
    endpoint = turned.endpoint()
    assert turned.account.health(endpoint.id)["workers"]["idle"] == 1
    turned.pass_time(60)
    assert turned.account.bill(endpoint.id)["records"] == []


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"colour": 1}, "colour"),
        ({"rules": [{"kind": "explode"}]}, "explode"),
        ({"rules": [{}]}, "unknown kind"),
        ({"rules": [{"kind": "delay", "hue": 1}]}, "hue"),
        ({"rules": [{"kind": "delay", "path": "("}]}, "no regular expression"),
        ([], "must be an object"),
    ],
)
def test_an_unknown_fault_is_refused_by_name(value, named):
    with pytest.raises(ValueError, match=named):
        Faults.from_value(value)


def test_faults_are_read_from_a_file(tmp_path):
    (tmp_path / "faults.json").write_text('{"quota_used": 2, "rules": [{"kind": "status", "status": 429}]}')
    faults = Faults.from_json(tmp_path / "faults.json")
    assert (faults.quota_used, faults.rules[0].status, Faults()) == (2, 429, Faults.from_value({}))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"env": 7}, "env"),
        ({"gpu": None}, "gpu"),
        ({"gpu": {"excludedTypes": ["NVIDIA RTX A4500"]}}, "requires pools"),
        ({"workers": {"max": -1}}, "workers.max"),
        ({"scaling": {"type": "QUEUE_DELAY"}}, "scaling.queueDelay"),
        ({"type": "QUEUE"}, "type"),
        ({"cpu": [{"id": "cpu3c", "vcpuCount": 2}]}, "cpu"),
        ({"args": "python -c 'x"}, "args"),
        ([], "object"),
    ],
)
def test_a_change_that_the_service_would_refuse_changes_nothing(turned, change, named):
    endpoint = turned.endpoint()
    before = turned.account.described(endpoint)
    with pytest.raises(ApiError, match=r".") as refused:
        turned.account.patch(endpoint.id, change)
    assert refused.value.status == 422
    assert named in f"{refused.value.detail} {refused.value.errors}"
    assert turned.account.described(endpoint) == before


def test_a_change_leaves_what_it_does_not_name_and_new_pools_clear_exclusions(turned):
    endpoint = turned.endpoint(gpu={"pools": ["AMPERE_16"], "excludedTypes": ["NVIDIA RTX A4500"], "count": 2})
    turned.account.patch(endpoint.id, {"workers": {"max": 2}, "gpu": {"count": 1}})
    assert endpoint.settings["workers"] == {"min": 0, "max": 2, "idleTimeout": 5}
    assert endpoint.settings["gpu"]["excludedTypes"] == ["NVIDIA RTX A4500"]
    turned.account.patch(endpoint.id, {"gpu": {"pools": ["AMPERE_24"]}})
    assert "excludedTypes" not in endpoint.settings["gpu"]


def test_raising_workers_counts_against_the_quota_and_lowering_never_does():
    turned = Turned(quota_used=4)
    endpoint = turned.endpoint()
    with pytest.raises(ApiError, match="quota"):
        turned.account.patch(endpoint.id, {"workers": {"max": 2}})
    turned.account.faults = Faults(quota_used=9)
    turned.account.patch(endpoint.id, {"workers": {"max": 0}})
    assert endpoint.max_workers == 0


def test_an_endpoint_stays_paused_for_a_while_after_it_was_raised_from_zero():
    turned = Turned(paused_s=15)
    endpoint = turned.endpoint(workers={"max": 0})
    turned.time += 100
    turned.account.patch(endpoint.id, {"workers": {"max": 1}})
    with pytest.raises(ApiError, match="ENDPOINT_PAUSED"):
        turned.account.run(endpoint.id, {"input": {"x": 1}})
    turned.time += 16
    assert turned.account.run(endpoint.id, {"input": {"x": 1}}).status == "IN_QUEUE"


@pytest.mark.parametrize("policy", [{"executionTimeout": 4999}, {"ttl": 9999}, {"ttl": 604_800_001}, {"ttl": "10"}, []])
def test_a_policy_out_of_bounds_is_refused_and_nothing_is_queued(turned, policy):
    endpoint = turned.endpoint()
    with pytest.raises(ApiError, match="policy") as refused:
        turned.account.run(endpoint.id, {"input": {"x": 1}, "policy": policy})
    assert refused.value.status == 400
    assert endpoint.queue == []


@pytest.mark.parametrize(("body", "valid"), [(None, False), ([1], True), ({"output": float("nan")}, False)])
def test_a_result_that_is_no_json_object_is_refused_and_lost_in_silence(turned, body, valid):
    endpoint, job, worker = turned.taken()
    with pytest.raises(ApiError) as refused:
        turned.account.done(endpoint, worker.id, job.id, body, 10, valid=valid)
    assert refused.value.status == 400
    assert (job.status, job.has_output, worker.job) == ("COMPLETED", False, None)


def test_a_progress_update_that_is_too_large_is_refused_and_ends_nothing(turned):
    endpoint, job, worker = turned.taken()
    with pytest.raises(ApiError):
        turned.account.done(endpoint, worker.id, job.id, {"status": "IN_PROGRESS", "output": 1}, 10_000_001)
    assert (job.status, job.has_output) == ("IN_PROGRESS", False)


def test_a_job_that_is_executed_twice_says_so():
    turned = Turned(double_execution=True)
    endpoint, job, worker = turned.taken()
    turned.account.done(endpoint, worker.id, job.id, {"output": 1}, 10)
    assert (job.status, job.has_output) == ("IN_QUEUE", False)
    turned.account.take(endpoint, worker.id)
    turned.account.done(endpoint, worker.id, job.id, {"output": 2}, 10)
    assert (job.status, job.output, job.to_json()["retries"]) == ("COMPLETED", 2, 1)


def test_a_silent_worker_that_still_holds_its_job_must_end_and_its_late_result_counts_no_more(turned):
    endpoint, job, worker = turned.taken()
    assert turned.pass_time(PING_LOST_S + 1) == [(endpoint, worker.id)]
    turned.account.done(endpoint, worker.id, job.id, {"output": "late"}, 10)
    assert (job.status, job.has_output) == ("IN_QUEUE", False)


def test_a_worker_that_asks_to_be_replaced_gets_no_more_jobs(turned):
    endpoint, job, worker = turned.taken()
    turned.account.done(endpoint, worker.id, job.id, {"output": 1, "stopPod": True}, 10)
    turned.account.run(endpoint.id, {"input": {"x": 2}})
    assert job.status == "COMPLETED"
    assert turned.account.take(endpoint, worker.id) is None


def test_what_is_streamed_is_fetched_once(turned):
    endpoint, job, worker = turned.taken()
    for chunk in (1, 2):
        turned.account.chunk(endpoint, worker.id, job.id, {"output": chunk})
    stream = turned.account.stream(endpoint.id, job.id)
    assert stream == {"status": "IN_PROGRESS", "stream": [{"output": 1}, {"output": 2}]}
    assert turned.account.stream(endpoint.id, job.id)["stream"] == []


def test_a_change_of_what_runs_is_a_release_and_old_workers_are_stale(turned):
    endpoint = turned.endpoint()
    turned.account.worker_started(endpoint)
    turned.account.patch(endpoint.id, {"workers": {"max": 2}})
    assert turned.account.releases(endpoint.id)["endpointVersion"] == 1
    turned.account.patch(endpoint.id, {"env": {"A": "2"}})
    releases = turned.account.releases(endpoint.id)
    assert [one["version"] for one in releases["releases"]] == [2, 1]
    assert releases["rollout"] == {
        "inProgress": True, "workersOnLatest": 0, "workersTotal": 1, "percentOnLatest": 0,
    }  # fmt: skip
    assert turned.account.workers_list(endpoint.id)["workers"][0]["isStale"] is True


def test_a_bound_template_cannot_be_deleted_by_itself(turned):
    endpoint = turned.endpoint()
    for template_id, status in ((f"t{endpoint.id}", 400), ("nobody", 404)):
        with pytest.raises(ApiError) as refused:
            turned.account.delete_template(template_id)
        assert refused.value.status == status
    assert len(turned.account.templates) == 1
