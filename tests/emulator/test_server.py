"""The account over HTTP: two hosts, two kinds of key, and workers that are the real SDK in processes of their own."""

import json
import shlex

import pytest
import requests

from pytest_runpod.core.cloud import EndpointSpec, Policy

HANDLER = """
import asyncio, os, runpod
async def handler(job):
    value = job["input"]
    if "crash" in value: os._exit(9)
    if "sleep" in value:
        runpod.serverless.progress_update(job, {"so_far": 1})
        await asyncio.sleep(value["sleep"])
    if "refresh" in value: return {"refresh_worker": True, "pid": os.getpid()}
    if "error" in value: return {"error": value["error"], "kept": 1}
    return {"seen": value, "env": sorted(os.environ), "home": os.listdir(os.environ["HOME"])}
runpod.serverless.start({"handler": handler})
"""


def spec(name="pytest-runpod-test", code=HANDLER, **changes):
    base = {
        "name": name, "image": "img@sha256:0", "args": shlex.join(["python3", "-u", "-c", code]), "env": {"MINE": "1"},
        "pool": "AMPERE_16", "excluded_types": (), "min_cuda": "12.8", "disk_gb": 20, "workers_min": 0, "workers_max": 1,
        "idle_timeout_s": 5, "execution_timeout_s": 60, "queue_delay_s": 1,
    }  # fmt: skip
    return EndpointSpec(**{**base, **changes})


POLICY = Policy(execution_timeout_s=30, ttl_s=120)


def finished(client, endpoint, value, eventually, policy=POLICY):
    job = client.submit(endpoint, value, policy)
    return eventually(lambda: (state := client.job(endpoint, job.id)) and state.final and state)


def test_each_host_answers_for_itself_only(serve):
    emulator = serve()
    bearer = {"Authorization": "Bearer rpa_test_key"}
    assert requests.get(f"{emulator.jobs_url}/v2/serverless", headers=bearer, timeout=10).status_code == 404
    assert requests.get(f"{emulator.management_url}/v2/abc/health", headers=bearer, timeout=10).status_code == 404
    missing = requests.get(f"{emulator.management_url}/v2/serverless", timeout=10)
    assert (missing.status_code, missing.json()["detail"]) == (401, "missing bearer token")
    assert missing.headers["content-type"].startswith("application/problem+json")
    wrong = requests.get(f"{emulator.management_url}/v2/serverless", headers={"Authorization": "Bearer no"}, timeout=10)
    assert wrong.status_code == 401
    unknown = requests.get(
        f"{emulator.jobs_url}/v2/nobody/health", headers={"Authorization": "rpa_test_key"}, timeout=10
    )
    assert unknown.status_code == 404
    not_allowed = requests.put(f"{emulator.management_url}/v2/serverless", headers=bearer, timeout=10)
    assert not_allowed.status_code == 405
    assert {"GET", "POST"} <= set(not_allowed.headers["allow"].split(", "))


def test_the_owners_key_does_not_open_the_workers_routes(serve):
    emulator = serve()
    endpoint = emulator.client().create_endpoint(spec())
    answer = requests.get(
        f"{emulator.jobs_url}/v2/{endpoint.id}/job-take/w?x=1", headers={"Authorization": "rpa_test_key"}, timeout=10
    )
    assert answer.status_code == 401


def test_a_request_of_more_than_ten_megabytes_is_refused(serve):
    emulator = serve()
    endpoint = emulator.client().create_endpoint(spec())
    body = json.dumps({"input": {"x": "y" * 10_000_000}})
    headers = {"Authorization": "Bearer rpa_test_key", "Content-Type": "application/json"}
    assert requests.post(endpoint.request_urls["run"], data=body, headers=headers, timeout=30).status_code == 400


def test_the_real_sdk_runs_jobs_and_sees_only_what_the_platform_sets(serve, eventually):
    emulator = serve()
    client = emulator.client()
    endpoint = client.create_endpoint(spec())
    state = finished(client, endpoint, {"x": 1}, eventually)
    assert (state.status, state.output["seen"], state.output["home"]) == ("COMPLETED", {"x": 1}, [])
    assert {"MINE", "RUNPOD_AI_API_KEY", "RUNPOD_POD_ID", "PATH"} <= set(state.output["env"])
    assert not {"USER", "PWD", "PYTEST_CURRENT_TEST", "VIRTUAL_ENV"} & set(state.output["env"])
    failed = finished(client, endpoint, {"error": "bad"}, eventually)
    assert (failed.status, failed.error, failed.output) == ("FAILED", "bad", {"kept": 1})
    health = client.health(endpoint)
    assert (health.jobs["completed"], health.jobs["failed"]) == (1, 1)
    assert client.bill(endpoint.id).amount > 0


def test_a_cancelled_job_frees_its_worker_for_the_next_one(serve, eventually):
    emulator = serve()
    client = emulator.client()
    endpoint = client.create_endpoint(spec())
    job = client.submit(endpoint, {"sleep": 100}, POLICY)
    eventually(lambda: client.job(endpoint, job.id).output == {"so_far": 1})
    client.cancel(endpoint, job.id)
    assert client.job(endpoint, job.id).status == "CANCELLED"
    assert finished(client, endpoint, {"x": 2}, eventually).status == "COMPLETED"


def test_a_job_that_runs_too_long_ends_and_its_worker_is_gone(serve, eventually):
    emulator = serve()
    client = emulator.client()
    endpoint = client.create_endpoint(spec())
    job = client.submit(endpoint, {"sleep": 100}, Policy(execution_timeout_s=5, ttl_s=60))
    eventually(lambda: client.job(endpoint, job.id).status == "TIMED_OUT")
    eventually(lambda: emulator.ask("alive")["pids"] == [])


def test_deleting_the_endpoint_kills_every_process_of_its_workers(serve, eventually):
    emulator = serve()
    client = emulator.client()
    nested = HANDLER.replace(
        "import asyncio",
        "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)\nimport asyncio",
        1,
    )
    endpoint = client.create_endpoint(spec(code=nested))
    job = client.submit(endpoint, {"sleep": 100}, POLICY)
    eventually(lambda: client.job(endpoint, job.id).output)
    assert len(emulator.ask("alive")["pids"]) >= 2
    client.delete_endpoint(endpoint.id)
    client.delete_endpoint(endpoint.id)
    eventually(lambda: emulator.ask("alive")["pids"] == [])
    assert client.get_endpoint(endpoint.id) is None


def test_a_start_command_that_fails_shows_as_unhealthy(serve, eventually):
    emulator = serve()
    client = emulator.client()
    endpoint = client.create_endpoint(spec(code="raise SystemExit('broken')"))
    client.submit(endpoint, {"x": 1}, POLICY)
    eventually(lambda: client.health(endpoint).workers["unhealthy"] >= 2)


def test_the_emulator_ends_with_its_lifeline_once_nothing_of_ours_is_left(serve, eventually):
    emulator = serve(foreign_endpoints=1)
    client = emulator.client()
    endpoint = client.create_endpoint(spec())
    emulator.process.stdin.close()
    assert client.get_endpoint(endpoint.id) is not None
    client.delete_endpoint(endpoint.id)
    assert emulator.process.wait(20) == 0


BEARER = {"Authorization": "Bearer rpa_test_key"}


@pytest.mark.parametrize("body", ['{"input": {"x": NaN}}', "{", "[" * 100_000, '{"input": 1}', "null"])
def test_a_job_that_is_no_json_object_is_refused_and_nothing_is_queued(serve, body):
    emulator = serve()
    endpoint = emulator.client().create_endpoint(spec())
    answer = requests.post(endpoint.request_urls["run"], data=body, headers=BEARER, timeout=10)
    assert answer.status_code == 400
    assert emulator.client().health(endpoint).jobs["inQueue"] == 0


def test_a_key_of_strange_letters_is_refused_like_any_other(serve):
    emulator = serve()
    for url in (f"{emulator.management_url}/v2/serverless", f"{emulator.jobs_url}/v2/x/health"):
        answer = requests.get(url, headers={"Authorization": b"Bearer \xe9"}, timeout=10)
        assert answer.status_code == 401


def test_faults_are_replaced_while_it_runs_and_unknown_ones_change_nothing(serve):
    emulator = serve()
    rule = {"kind": "status", "status": 429, "nth": 1, "retry_after": 7, "path": "/v2/serverless"}

    def replaced(value):
        return requests.post(f"{emulator.management_url}/_emulator/faults", json=value, headers=BEARER, timeout=10)

    def listed():
        return requests.get(f"{emulator.management_url}/v2/serverless", headers=BEARER, timeout=10)

    for _ in range(2):  # the rule counts from one again
        assert replaced({"rules": [rule]}).status_code == 204
        assert [(one.status_code, one.headers.get("retry-after")) for one in (listed(), listed())] == [
            (429, "7"),
            (200, None),
        ]
    refused = replaced({"colour": 1})
    assert (refused.status_code, "colour" in refused.json()["detail"]) == (422, True)
    assert listed().status_code == 200


def test_the_wrong_billing_route_looks_right_and_says_nothing(serve):
    emulator = serve()
    value = requests.get(f"{emulator.management_url}/v2/billing/endpoints", headers=BEARER, timeout=10).json()
    assert (value["records"], value["metadata"]["totals"]) == ([], {"totalAmount": 0})


def test_text_that_no_encoding_knows_reaches_the_worker_and_comes_back_to_a_reader(serve, eventually):
    emulator = serve()
    client = emulator.client()
    endpoint = client.create_endpoint(spec(code=HANDLER.replace('{"seen": value,', '{"seen": ascii(value),')))
    state = finished(client, endpoint, {"x": "\ud800\x00é"}, eventually)
    assert (state.status, state.output["seen"]) == ("COMPLETED", ascii({"x": "\ud800\x00é"}))


def test_a_worker_that_dies_loses_its_job_once_and_then_the_job_has_failed(serve, eventually):
    emulator = serve(ping_lost_s=3)
    client = emulator.client()
    endpoint = client.create_endpoint(spec())
    state = finished(client, endpoint, {"crash": 1}, eventually)
    assert (state.status, state.error, state.retries) == ("FAILED", "job timed out after 1 retries", 1)
    health = client.health(endpoint)
    assert (health.jobs["failed"], health.jobs["retried"]) == (1, 1)


def test_a_worker_that_asks_for_it_is_replaced_and_that_is_no_crash(serve, eventually):
    emulator = serve()
    client = emulator.client()
    endpoint = client.create_endpoint(spec())
    first = finished(client, endpoint, {"refresh": 1}, eventually)
    second = finished(client, endpoint, {"refresh": 1}, eventually)
    assert first.output["pid"] != second.output["pid"]
    assert first.worker_id != second.worker_id
    assert client.health(endpoint).workers["unhealthy"] == 0


def test_a_job_out_of_time_is_told_to_stop_before_its_worker_is_killed(serve, eventually, tmp_path):
    said = tmp_path / "said"
    code = HANDLER.replace(
        'await asyncio.sleep(value["sleep"])',
        f"""try: await asyncio.sleep(value["sleep"])
        except asyncio.CancelledError: open({str(said)!r}, "w").write("stopped"); raise""",
    )
    emulator = serve()
    client = emulator.client()
    endpoint = client.create_endpoint(spec(code=code))
    job = client.submit(endpoint, {"sleep": 100}, Policy(execution_timeout_s=5, ttl_s=60))
    eventually(lambda: client.job(endpoint, job.id).status == "TIMED_OUT")
    eventually(lambda: emulator.ask("alive")["pids"] == [])
    assert said.read_text() == "stopped"


def test_what_a_worker_writes_is_streamed_from_its_log(serve, eventually):
    emulator = serve()
    client = emulator.client()
    endpoint = client.create_endpoint(spec(code="import time\nprint('hello', flush=True)\ntime.sleep(600)"))
    client.submit(endpoint, {"x": 1}, POLICY)
    one = f"{emulator.management_url}/v2/serverless/{endpoint.id}"
    worker = eventually(lambda: requests.get(f"{one}/workers", headers=BEARER, timeout=10).json()["workers"])[0]
    for source, line in (("container", "hello"), ("system", "start container")):
        url = f"{one}/workers/{worker['id']}/logs?source={source}"
        with requests.get(url, headers=BEARER, timeout=10, stream=True) as answer:
            data = next(text for text in answer.iter_lines() if text.startswith(b"data: "))
        assert json.loads(data.removeprefix(b"data: "))["line"] == line
    assert requests.get(f"{one}/workers/nobody/logs", headers=BEARER, timeout=10).status_code == 404


def test_without_a_start_command_the_image_does_nothing_for_ever(serve, eventually):
    emulator = serve()
    client = emulator.client()
    endpoint = client.create_endpoint(spec(args=""))
    job = client.submit(endpoint, {"x": 1}, POLICY)
    eventually(lambda: client.health(endpoint).workers["initializing"] == 1)
    assert client.job(endpoint, job.id).status == "IN_QUEUE"
    assert client.health(endpoint).workers["unhealthy"] == 0
