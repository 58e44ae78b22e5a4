"""The account over HTTP: two hosts, two kinds of key, and workers that are the real SDK in processes of their own."""

import json
import shlex

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
    assert (not_allowed.status_code, "GET" in not_allowed.headers["allow"]) == (405, True)


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
    assert client.bill(endpoint.id).records in (0, 1)


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
