"""Whose endpoint is it? Only the account, the name and the run that made it may touch it."""

import os
import signal

import pytest

QUICK = "def test_it(): pass\n"
SLOW = "import time\ndef test_slow(): time.sleep(600)\n"


def set_up(project, emulator, *arguments):
    done = project.run(
        project.runpod("setup", f"--approved-sha={project.digest()}", *project.ours, *arguments), emulator
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split("receipt: ")[1].split("\n")[0]


def test_a_receipt_is_of_no_use_at_another_provider_or_with_another_key(project, serve):
    mine, other = serve(), serve()
    project.write(test_it=QUICK)
    path = set_up(project, mine)
    elsewhere = project.run(project.approved(f"--runpod-receipt={path}"), other)
    assert elsewhere.returncode == 4, elsewhere.stdout
    assert "of another provider or another key. Nothing was asked" in elsewhere.stdout
    cleanup = project.runpod("cleanup", f"--receipt={path}")
    wrong_host = project.run(cleanup, other)
    assert wrong_host.returncode == 4
    assert "The key was not sent there" in wrong_host.stderr
    wrong_key = project.run(cleanup, mine, RUNPOD_API_KEY="rpa_of_somebody_else")
    assert wrong_key.returncode == 4
    assert len(mine.ours()) == 1
    assert not project.receipts()[0].cleanup_confirmed
    assert project.run(cleanup, mine).returncode == 0
    assert mine.ours() == []


def test_one_run_at_a_time_uses_an_endpoint(project, serve, eventually):
    emulator = serve()
    project.write(test_it=SLOW)
    path = set_up(project, emulator)
    run = project.approved(f"--runpod-receipt={path}", "--runpod-budget=9")
    first = project.start(run, emulator)
    eventually(lambda: project.receipts()[0].job_id)
    second = project.run(run, emulator)
    assert second.returncode == 4, second.stdout
    assert "Another run uses the endpoint" in second.stdout
    assert len(emulator.ours()) == 1
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    first.communicate()
    assert [one for one in emulator.requests_seen("POST") if one.endswith("/run")] != []
    assert len([one for one in emulator.requests_seen("POST") if one.endswith("/run")]) == 1
    assert emulator.ours() == []


@pytest.mark.parametrize("change", ['name="somebody-else-0"', "workers_max=3"])
def test_a_hook_cannot_change_what_ownership_money_or_approval_hang_on(project, serve, change):
    emulator = serve(foreign_endpoints=1)
    project.write(
        test_it=QUICK,
        conftest="from dataclasses import replace\n"
        f"def pytest_runpod_endpoint_spec(config, spec): return replace(spec, {change})\n",
    )
    done = project.run(project.approved(), emulator)
    assert done.returncode == 4, done.stdout
    assert f"must not change {change.partition('=')[0]}" in done.stdout
    assert emulator.requests_seen("POST") == []
    assert emulator.foreign() == 1


def test_a_hook_may_change_the_rest_and_the_worker_does_not_stumble_over_it(project, serve):
    emulator = serve()
    project.write(
        test_it=QUICK,
        conftest="def pytest_runpod_endpoint_spec(config, spec):\n"
        "    from dataclasses import replace\n    return replace(spec, disk_gb=30)\n",
    )
    done = project.run(project.approved(), emulator)
    assert done.returncode == 0, done.stdout


def test_a_receipt_that_lies_elsewhere_is_found_by_reap_and_keeps_the_next_run_from_starting(
    project, serve, watchdogs, tmp_path
):
    emulator = serve()
    project.write(test_it=QUICK)
    path = set_up(project, emulator, f"--runpod-receipt={tmp_path / 'mine.json'}")
    for folder in (tmp_path, project.state):
        for watchdog in watchdogs(folder):
            os.kill(watchdog, signal.SIGKILL)
    assert project.run(project.approved(), emulator).returncode == 13
    reaped = project.run(project.runpod("reap", f"--state={project.state}"), emulator)
    assert "cleanup_confirmed: true" in reaped.stdout, path
    assert emulator.ours() == []


def test_interrupted_and_unresolved_says_so_and_ends_with_its_own_exit_code(project, serve, eventually):
    emulator = serve(undeletable=True)
    project.write(test_it=SLOW)
    process = project.start(project.approved(), emulator)
    eventually(lambda: any(receipt.job_id for receipt in project.receipts()))
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 13, output
    assert "Traceback" not in output
    assert "the watchdog goes on deleting" in output
    emulator.tell("faults", {})
    eventually(lambda: emulator.ours() == [] and project.receipts()[0].cleanup_confirmed)


def test_results_that_cannot_be_written_are_found_out_before_anything_is_created(project, serve):
    emulator = serve()
    project.write(test_it=QUICK)
    (project.root / "out").write_text("a file")
    done = project.run(project.approved(), emulator)
    assert done.returncode == 4, done.stdout
    assert "the folder of results cannot be written" in done.stdout
    assert emulator.requests_seen("POST") == []


def test_a_netrc_of_the_user_does_not_replace_the_key(project, serve, tmp_path):
    emulator = serve()
    project.write(test_it=QUICK)
    (tmp_path / ".netrc").write_text("default login somebody password elses\n")
    (tmp_path / ".netrc").chmod(0o600)
    done = project.run(project.approved(), emulator, HOME=str(tmp_path), NETRC=str(tmp_path / ".netrc"))
    assert done.returncode == 0, done.stdout
