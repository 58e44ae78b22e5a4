"""What a failing request means: it never left, it was refused, or its fate is unknown. Against the emulator, over HTTP."""

import contextlib
import socket
import threading
import time
from dataclasses import replace

import pytest

from pytest_runpod.core.cloud import EndpointSpec
from pytest_runpod.errors import FateUnknown, ProviderRefused, ProviderUnreachable
from pytest_runpod.provider.runpod import RunPod, differing_settings
from pytest_runpod.provider.transport import Transport

SPEC = EndpointSpec(
    name="pytest-runpod-test", image="img@sha256:0", args="true", env={"MINE": "1"}, pool="AMPERE_16",
    excluded_types=("NVIDIA RTX A4500",), min_cuda="12.8", disk_gb=20, workers_min=0, workers_max=1, idle_timeout_s=5,
    execution_timeout_s=60, queue_delay_s=1,
)  # fmt: skip


def test_what_is_asked_for_is_what_is_read_back(serve):
    client = serve().client()
    endpoint = client.create_endpoint(SPEC)
    assert differing_settings(SPEC, client.get_endpoint(endpoint.id)) == ()
    assert differing_settings(replace(SPEC, disk_gb=30, env={"MINE": "secret"}), endpoint) == (
        "disk: asked for 30, got 20",
        "env",
    )


def test_a_card_and_its_pool_come_from_the_catalog(serve):
    cards = {gpu.id: gpu for gpu in serve().client().gpus()}
    assert (cards["NVIDIA RTX A4000"].pool, cards["NVIDIA RTX A4000"].price) == ("AMPERE_16", 580_000)


def test_an_error_names_host_and_advice_and_never_the_key(serve):
    emulator = serve(jobs_unauthorized=True)
    with pytest.raises(ProviderRefused) as refused:
        emulator.client().check_job_access()
    assert refused.value.status == 401
    text = str(refused.value)
    assert emulator.jobs_url.removeprefix("http://") in text
    assert "RUNPOD_API_KEY" in text
    assert "rpa_test_key" not in text + repr(refused.value.__cause__)


@pytest.mark.parametrize("kind", ["lose_answer", "truncate", "garbage", "fail_after"])
def test_a_lost_answer_of_a_create_is_of_unknown_fate_and_the_endpoint_is_there(serve, kind):
    emulator = serve(rules=[{"kind": kind, "method": "POST", "path": "/v2/serverless"}])
    client = emulator.client()
    with pytest.raises(FateUnknown):
        client.create_endpoint(SPEC)
    assert emulator.ours() == ["pytest-runpod-test"]


def test_an_answer_that_trickles_for_ever_is_lost_as_one_that_never_comes(serve):
    emulator = serve(rules=[{"kind": "trickle", "method": "POST", "path": "/v2/serverless", "seconds": 0.2}])
    client = RunPod(Transport("rpa_test_key", read_s=0.5), emulator.management_url, emulator.jobs_url)
    with pytest.raises(FateUnknown, match="is not sent again"):
        client.create_endpoint(SPEC)
    assert emulator.ours() == ["pytest-runpod-test"]
    assert client.list_endpoints() != ()


def test_headers_that_trickle_for_ever_are_an_answer_that_never_comes():
    def drip(connection):
        with connection, contextlib.suppress(OSError):  # the client has left
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while True:
                connection.sendall(b"X-Nothing: 1\r\n")
                time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        dripping = threading.Thread(target=lambda: drip(server.accept()[0]), daemon=True)
        dripping.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(FateUnknown):
            RunPod(Transport("k", read_s=0.5), url, url).create_endpoint(SPEC)
    dripping.join(30)  # http.client takes a hundred headers and no more
    assert not dripping.is_alive()


def test_reads_and_deletes_are_repeated_and_posts_are_not(serve):
    rules = [
        {
            "kind": "status",
            "status": 503,
            "method": "GET|DELETE",
            "path": "/v2/serverless.*",
            "nth": 1,
            "retry_after": 3,
        }
    ]
    emulator = serve(rules=[*rules, {"kind": "status", "status": 429, "method": "POST", "path": "/v2/serverless"}])
    waits = []
    client = RunPod(Transport("rpa_test_key", wait=waits.append), emulator.management_url, emulator.jobs_url)
    assert client.list_endpoints() == ()
    assert waits == [3.0]
    with pytest.raises(ProviderRefused) as refused:
        client.create_endpoint(SPEC)
    assert refused.value.status == 429
    assert emulator.requests_seen("POST") == ["POST /v2/serverless"]


def test_nobody_listening_is_a_request_that_never_left():
    client = RunPod(Transport("k", wait=lambda _: None), "http://127.0.0.1:9", "http://127.0.0.1:9")
    with pytest.raises(ProviderUnreachable, match="never left"):
        client.create_endpoint(SPEC)
