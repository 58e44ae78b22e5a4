"""Money, endpoint, deletion: whatever happens, nothing of ours is left, and nobody else's is touched."""

import json
import os
import signal

import pytest

SLOW = "import time\ndef test_quick(): pass\ndef test_slow(): time.sleep(600)\n"


def test_a_run_leaves_nothing_behind_and_its_books_are_in_order(project, serve):
    emulator = serve(foreign_endpoints=2)
    project.write(test_it="def test_it(): pass\n")
    done = project.run(project.approved(), emulator)
    assert done.returncode == 0, done.stdout
    assert emulator.ours() == []
    assert emulator.foreign() == 2
    alive = emulator.ask("alive")
    assert (alive["pids"], alive["jobs"]) == ([], [])
    (receipt,) = project.receipts()
    assert receipt.cleanup_confirmed
    assert receipt.events == (
        "create_sent", "create_seen", "submit_sent", "submit_seen", "job_final", "result_saved", "cleanup_started",
        "cleanup_confirmed",
    )  # fmt: skip
    assert project.reserved() == 2_360_000
    assert json.loads((project.root / "out" / "cost.json").read_text())["reserved_micro_usd"] == 2_360_000
    assert KEY_OF_TESTS not in "".join(
        path.read_text(errors="replace") for path in project.state.rglob("*") if path.is_file()
    )


KEY_OF_TESTS = "rpa_test_key"


def test_a_changed_byte_is_refused_and_nobody_saw_anything(project, serve):
    emulator = serve()
    project.write(test_it="def test_it(): pass\n")
    command = project.approved()
    project.write(test_it="def test_it(): pass  # changed\n")
    done = project.run(command, emulator)
    assert done.returncode == 10
    assert "changed test_it.py" in done.stdout
    assert emulator.requests_seen() == []
    assert project.reserved() == 0


def test_a_collection_error_stops_before_anything_costs(project, serve):
    emulator = serve()
    project.write(test_it="import nothing_of_that_name\n", test_fine="def test_fine(): pass\n")
    done = project.run(project.approved(), emulator)
    assert done.returncode == 2
    assert emulator.requests_seen() == []
    assert project.reserved() == 0


def test_a_budget_that_does_not_suffice_is_refused_before_anything_is_created(project, serve):
    emulator = serve()
    project.write(test_it="def test_it(): pass\n")
    done = project.run(project.approved("--runpod-budget=0.50"), emulator)
    assert done.returncode == 11
    assert emulator.requests_seen("POST") == []
    assert project.reserved() == 0


def running(project, emulator, eventually, *arguments):
    process = project.start(project.approved(*arguments), emulator, PYTHONUNBUFFERED="1")
    eventually(lambda: emulator.ask("alive")["pids"] and any(receipt.job_id for receipt in project.receipts()))
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 2), (signal.SIGTERM, 143)])
def test_a_signal_deletes_before_pytest_ends(project, serve, eventually, number, code):
    emulator = serve()
    project.write(test_it=SLOW)
    process = running(project, emulator, eventually)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert emulator.ours() == []
    eventually(lambda: emulator.ask("alive")["pids"] == [])
    (receipt,) = project.receipts()
    assert receipt.cleanup_confirmed
    assert project.reserved() == 2_360_000


def test_under_nohup_a_hangup_is_no_reason_to_end(project, serve, eventually):
    emulator = serve()
    project.write(test_it=SLOW)
    process = project.start(["nohup", *project.approved()], emulator)
    eventually(lambda: any(receipt.job_id for receipt in project.receipts()))
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "received SIGHUP" not in output
    assert project.receipts()[0].cleanup_confirmed


EXPLODES = """
import os
def pytest_runtest_logreport(report):
    if os.environ.get("PYTEST_RUNPOD_WORKER") != "1" and report.nodeid.startswith("test_it") and report.when == "call":
        {action}
"""


@pytest.mark.parametrize(
    ("action", "options", "code"),
    [
        ("raise RuntimeError('a slip of another plugin')", [], 3),
        ("import pytest; pytest.exit('enough', returncode=7)", [], 7),
        ("pass", ["--maxfail=1"], 1),
    ],
)
def test_however_a_session_ends_its_job_is_cancelled_and_its_endpoint_deleted_at_once(
    project, serve, action, options, code
):
    emulator = serve()
    project.write(
        test_it="import time\ndef test_fails(): assert 0\ndef test_slow(): time.sleep(600)\n",
        conftest=EXPLODES.format(action=action),
    )
    done = project.run(project.approved(*options), emulator)
    assert done.returncode == code, done.stdout
    assert emulator.ours() == []
    assert all(receipt.cleanup_confirmed for receipt in project.receipts())
    if not options:  # where the worker's pytest stops by itself there may be nothing to cancel
        assert any("/cancel/" in one for one in emulator.requests_seen("POST"))
        assert "deleting the endpoint" in done.stdout


def test_ctrl_c_again_is_answered_and_once_more_leaves_the_rest_to_the_watchdog(project, serve, eventually):
    emulator = serve(rules=[{"kind": "hold", "method": "DELETE", "path": ".*", "nth": 1}])
    project.write(test_it=SLOW)
    process = running(project, emulator, eventually)
    process.send_signal(signal.SIGINT)
    eventually(lambda: any(one["held"] for one in emulator.ask("log")["requests"]))
    process.send_signal(signal.SIGINT)
    eventually(lambda: b"deleting the endpoint first" in said(process))
    process.send_signal(signal.SIGINT)
    eventually(lambda: process.poll() is not None)
    text = said(process).decode()
    process.stdout.close()
    assert process.returncode == 13, text
    assert "leaving the rest of the deletion to the watchdog" in text
    assert "the watchdog goes on deleting" in text
    eventually(lambda: emulator.ours() == [] and all(receipt.cleanup_confirmed for receipt in project.receipts()))
    emulator.tell("release")


def said(process, heard={}):  # noqa: B006 - what was read of each process, so far
    """What a process has written until now, without waiting for more."""
    os.set_blocking(process.stdout.fileno(), False)
    heard[process.pid] = heard.get(process.pid, b"") + (process.stdout.buffer.raw.read() or b"")
    return heard[process.pid]


def test_setup_health_run_and_cleanup_share_one_receipt(project, serve):
    emulator = serve()
    project.write(test_it="def test_it(): pass\n")
    ours = [f"--approved-sha={project.digest()}", *project.ours]
    made = project.run(project.runpod("setup", *ours), emulator)
    assert made.returncode == 0, made.stdout + made.stderr
    path = made.stdout.split("receipt: ")[1].split("\n")[0]
    assert len(emulator.ours()) == 1
    assert "inQueue" in project.run(project.runpod("health", "--receipt", path), emulator).stdout
    done = project.run(project.remote(ours[0], f"--runpod-receipt={path}"), emulator)
    assert done.returncode == 0, done.stdout
    assert emulator.ours() == []
    again = project.run(project.runpod("cleanup", "--receipt", path), emulator)
    assert (again.returncode, "cleanup_confirmed: true" in again.stdout) == (0, True)
    book = project.run(project.runpod("ledger", "--ledger", str(project.state / "ledger.json")), emulator)
    assert "2 entries" in book.stdout
    assert "$2.36 count" in book.stdout


@pytest.mark.parametrize(
    ("faults", "code", "says"),
    [
        ({"jobs_unauthorized": True}, 12, "works for management, but not for jobs"),
        ({"price_factor": 2}, 11, "above the ceiling"),
        ({"quota_used": 5}, 12, "quota of workers is taken"),
        ({"stored_workers_max": 3}, 12, "workers.max: asked for 1, got 3"),
        ({"lose_result": True}, 12, "COMPLETED without a result"),
    ],
)
def test_trouble_is_one_readable_error_and_nothing_is_left(project, serve, faults, code, says):
    emulator = serve(foreign_endpoints=1, **faults)
    project.write(test_it="def test_it(): pass\n")
    done = project.run(project.approved(), emulator)
    assert done.returncode == code, done.stdout
    assert says in done.stdout
    assert emulator.ours() == []
    assert emulator.foreign() == 1
    assert all(receipt.cleanup_confirmed for receipt in project.receipts())
    assert "Traceback" not in done.stdout + done.stderr


def test_a_conftest_may_replace_a_session_fixture(project, serve):
    emulator = serve()
    project.write(
        test_it="def test_it(): pass\n",
        conftest="import pytest\n@pytest.fixture(scope='session')\n"
        "def runpod_endpoint(runpod_endpoint):\n    print('mine', runpod_endpoint.name)\n    yield runpod_endpoint\n",
    )
    done = project.run(project.approved("-s"), emulator)
    assert done.returncode == 0, done.stdout
    assert "mine pytest-runpod-" in done.stdout


def test_fixtures_of_the_run_can_be_overridden_in_a_conftest(project):
    project.write(
        test_it="def test_it(): pass\n",
        conftest="""
import pytest

@pytest.fixture(scope="session")
def runpod_payload(request, runpod_settings):
    from pytest_runpod.session import pack_payload
    return pack_payload(request.config, runpod_settings).payload
""",
    )
    done = project.run(project.remote())
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
