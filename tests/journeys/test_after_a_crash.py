"""What is left of a run that died: its watchdog, its receipt, its result, and what the next run makes of them."""

import fcntl
import json
import os
import resource
import signal
import subprocess
import termios
from pathlib import Path

import pytest

from pytest_runpod.store.receipts import ReceiptFile

TWO = "def test_one(): pass\ndef test_two():\n    assert 1 == 2\n"
SLOW = "import time\ndef test_slow(): time.sleep(600)\n"


def started(project, emulator, eventually, *arguments, **environ):
    process = project.start(project.approved(*arguments), emulator, **environ)
    eventually(lambda: any(receipt.job_id for receipt in project.receipts()))
    return process


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def receipt_file(project):
    (path,) = project.state.glob("receipts/*.json")
    return path


# --- the watchdog


def test_the_watchdog_is_nobodys_child_leads_its_session_and_knows_nothing_of_the_runner(
    project, serve, eventually, watchdogs
):
    emulator = serve()
    project.write(test_it=SLOW)
    process = started(project, emulator, eventually, BUILD_ID="42", RUNNER_TRACKING_ID="github_1", MY_SECRET="s3cret")
    (watchdog,) = watchdogs(project.state)
    stat = Path(f"/proc/{watchdog}/stat").read_text().rpartition(")")[2].split()
    assert int(stat[1]) != process.pid
    assert int(stat[3]) == watchdog != os.getsid(process.pid)
    environ = Path(f"/proc/{watchdog}/environ").read_bytes()
    assert b"BUILD_ID" not in environ
    assert b"RUNNER_TRACKING_ID" not in environ
    assert b"s3cret" not in environ
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(watchdog, number)
    kill(process)
    eventually(lambda: emulator.ours() == [] and all(receipt.cleanup_confirmed for receipt in project.receipts()))
    eventually(lambda: not Path(f"/proc/{watchdog}").exists())
    log = receipt_file(project).with_suffix(".watchdog.txt").read_text()
    assert "the run has ended without clean-up" in log
    assert log.rstrip().endswith("clean-up is confirmed")


def test_without_a_watchdog_nothing_is_created(project, serve):
    emulator = serve()
    project.write(
        test_it="def test_it(): pass\n",
        conftest="import sys\nif '--runpod' in sys.argv:\n    sys.executable = '/bin/false'\n",
    )
    done = project.run(project.approved(), emulator)
    assert done.returncode == 12, done.stdout
    assert "did not start. Nothing was created" in done.stdout
    assert emulator.requests_seen("POST") == []


@pytest.mark.parametrize("change", [None, {"name": "somebody-else-0"}])
def test_a_receipt_that_was_damaged_meanwhile_does_not_keep_the_endpoint_alive(
    project, serve, eventually, watchdogs, change
):
    emulator = serve(foreign_endpoints=1)
    project.write(test_it=SLOW)
    process = started(project, emulator, eventually)
    path = receipt_file(project)
    damaged = "{" if change is None else json.dumps({**json.loads(path.read_text()), **change})
    path.write_text(damaged)
    kill(process)
    eventually(lambda: emulator.ours() == [])
    assert path.read_text() == damaged
    assert emulator.foreign() == 1
    for watchdog in watchdogs(project.state):
        os.kill(watchdog, signal.SIGKILL)


def test_a_full_disk_does_not_keep_the_watchdog_from_deleting(project, serve, eventually, watchdogs):
    emulator = serve()
    project.write(test_it=SLOW)
    process = started(project, emulator, eventually)
    (watchdog,) = watchdogs(project.state)
    resource.prlimit(watchdog, resource.RLIMIT_FSIZE, (0, 0))  # it cannot write a byte any more
    kill(process)
    eventually(lambda: emulator.ours() == [])
    assert Path(f"/proc/{watchdog}").exists()
    os.kill(watchdog, signal.SIGKILL)
    reaped = project.run(project.runpod("reap", f"--state={project.state}"), emulator)
    assert "cleanup_confirmed: true" in reaped.stdout


def test_at_the_deadline_the_watchdog_deletes_under_a_run_that_lives_and_the_run_says_so(project, serve, eventually):
    emulator = serve()
    project.write(test_it=SLOW)
    process = started(project, emulator, eventually)
    path = receipt_file(project)
    os.kill(process.pid, signal.SIGSTOP)  # so that nobody else writes the receipt
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "deadline_at": value["created_at"]}))
    eventually(lambda: emulator.ours() == [])
    eventually(lambda: json.loads(path.read_text())["cleanup_confirmed"])
    os.kill(process.pid, signal.SIGCONT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 12, output
    assert "INTERNALERROR" not in output
    assert "does not know it any more" in output


def test_who_holds_the_receipt_and_never_lets_go_does_not_keep_the_endpoint_alive(
    project, serve, eventually, watchdogs
):
    emulator = serve()
    project.write(test_it=SLOW)
    process = started(project, emulator, eventually)
    path = receipt_file(project)
    with ReceiptFile(path).lock():
        value = json.loads(path.read_text())
        path.write_text(json.dumps({**value, "deadline_at": value["created_at"]}))
        eventually(lambda: emulator.ours() == [])
        assert not project.receipts()[0].cleanup_confirmed
        kill(process)
    eventually(lambda: project.receipts()[0].cleanup_confirmed)


def test_a_terminal_that_is_closed_ends_the_run_and_nothing_is_left(project, serve, eventually):
    emulator = serve()
    project.write(test_it=SLOW)
    terminal, end = os.openpty()
    process = subprocess.Popen(
        project.approved(),
        cwd=project.root,
        env={**os.environ, **emulator.environ},
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(end)
    eventually(lambda: any(receipt.job_id for receipt in project.receipts()))
    os.close(terminal)
    assert process.wait(60) != 0  # to whom it would be told is gone
    assert emulator.ours() == []
    assert project.receipts()[0].cleanup_confirmed


def test_a_disk_that_is_full_under_the_run_itself_leaves_nothing_behind(project, serve, eventually):
    emulator = serve()
    gate = project.root.parent / "gate"
    project.write(
        test_it=f"import os, time\ndef test_it():\n    while not os.path.exists({str(gate)!r}):\n        time.sleep(0.1)\n"
    )
    process = started(project, emulator, eventually)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))  # it cannot write a byte any more
    gate.touch()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 13, output
    assert "INTERNALERROR" not in output
    assert "1 passed" in output, output
    eventually(lambda: emulator.ours() == [] and project.receipts()[0].cleanup_confirmed)


# --- the result of a run that died


def test_a_result_that_nobody_fetched_is_saved_and_replayed_without_paying_again(project, serve, eventually):
    emulator = serve()
    project.write(test_it=TWO)
    digest = project.digest()
    process = started(project, emulator, eventually, "-rA")
    emulator.tell("faults", {"rules": [{"kind": "hold", "path": "/v2/[^/]+/status/[^/]+"}]})
    eventually(lambda: emulator.ask("alive")["jobs"] == [])  # it has ended, and the run does not know
    kill(process)
    emulator.tell("faults", {})
    emulator.tell("release")
    eventually(lambda: all(receipt.cleanup_confirmed for receipt in project.receipts()))
    (receipt,) = project.receipts()
    assert receipt.events[-4:] == ("job_final", "result_saved", "cleanup_started", "cleanup_confirmed")
    before, reserved = len(emulator.requests_seen()), project.reserved()
    receipt_option = f"--runpod-receipt={receipt_file(project)}"
    other = project.run(project.remote(f"--approved-sha={digest}", receipt_option, "-rA", "-k", "one"), emulator)
    assert other.returncode == 4, other.stdout
    assert "was asked something else" in other.stdout
    again = project.remote(f"--approved-sha={digest}", receipt_option, "-rA")
    done = project.run(again, emulator)
    assert done.returncode == 1, done.stdout
    assert "PASSED test_it.py::test_one" in done.stdout
    assert "FAILED test_it.py::test_two - assert 1 == 2" in done.stdout
    assert "nothing was run or paid again" in done.stdout
    assert len(emulator.requests_seen()) == before
    assert project.reserved() == reserved


def test_a_job_that_still_runs_is_followed_by_the_next_run_if_its_endpoint_lives(
    project, serve, eventually, tmp_path, watchdogs
):
    emulator = serve()
    gate = tmp_path / "gate"
    project.write(
        test_it=f"import os, time\ndef test_it():\n    while not os.path.exists({str(gate)!r}):\n        time.sleep(0.1)\n"
    )
    digest = project.digest()
    process = started(project, emulator, eventually)
    for watchdog in watchdogs(project.state):
        os.kill(watchdog, signal.SIGKILL)
    kill(process)
    gate.touch()
    receipt = f"--runpod-receipt={receipt_file(project)}"
    done = project.run(project.remote(f"--approved-sha={digest}", receipt), emulator)
    assert done.returncode == 0, done.stdout
    assert "following its job" in done.stdout
    assert len([one for one in emulator.requests_seen("POST") if one.endswith("/run")]) == 1
    assert project.reserved() == 2_360_000
    assert emulator.ours() == []
    assert project.receipts()[0].cleanup_confirmed


def test_a_job_of_other_source_and_a_job_that_is_gone_are_refused_and_nothing_is_asked(project, serve, eventually):
    emulator = serve()
    project.write(test_it=SLOW)
    process = started(project, emulator, eventually)
    kill(process)
    eventually(lambda: all(receipt.cleanup_confirmed for receipt in project.receipts()))
    receipt = f"--runpod-receipt={receipt_file(project)}"
    gone = project.run(project.approved(receipt), emulator)
    assert gone.returncode == 12, gone.stdout
    assert "nobody has saved its result. Nothing was run" in gone.stdout
    project.write(test_it="def test_it(): pass\n")
    other = project.run(project.approved(receipt), emulator)
    assert other.returncode == 10, other.stdout
    assert "ran other source than what is here" in other.stdout
    assert len([one for one in emulator.requests_seen("POST") if one.endswith("/run")]) == 1
    assert project.reserved() == 2_360_000


# --- reap, cleanup, doctor


def test_a_receipt_of_an_emulator_that_has_ended_is_closed_by_a_persons_word(project, serve, eventually, watchdogs):
    emulator = serve()
    project.write(test_it=SLOW)
    process = started(project, emulator, eventually)
    for watchdog in watchdogs(project.state):
        os.kill(watchdog, signal.SIGKILL)
    kill(process)
    emulator.end()
    reap = project.runpod("reap", f"--state={project.state}")
    asked = project.run(reap)
    assert asked.returncode == 13
    assert "has ended, so nobody can be asked. Nothing was changed" in asked.stderr
    cleanup = project.runpod("cleanup", f"--receipt={receipt_file(project)}", "--absent", "--reason=I have stopped it")
    said = project.run(cleanup)
    assert said.returncode == 0, said.stderr
    assert project.receipts()[0].cleanup_confirmed
    assert project.run(reap).returncode == 0


def test_reap_leaves_living_runs_alone_and_deletes_what_a_killed_watchdog_has_left(
    project, serve, eventually, watchdogs
):
    emulator = serve(foreign_endpoints=2)
    project.write(test_it=SLOW)
    process = started(project, emulator, eventually)
    reap = project.runpod("reap", f"--state={project.state}")
    busy = project.run(reap, emulator)
    assert busy.returncode == 0
    assert "in use by a run" in busy.stdout
    assert len(emulator.ours()) == 1
    (watchdog,) = watchdogs(project.state)
    os.kill(watchdog, signal.SIGKILL)
    kill(process)
    blocked = project.run(project.approved(), emulator)
    assert blocked.returncode == 13, blocked.stdout
    assert "Nothing was created, nothing was billed" in blocked.stdout
    assert project.reserved() == 2_360_000
    reaped = project.run(reap, emulator)
    assert reaped.returncode == 0, reaped.stderr
    assert "cleanup_confirmed: true" in reaped.stdout
    assert emulator.ours() == []
    assert emulator.foreign() == 2
    assert "clean" in project.run(reap, emulator).stdout


def test_reap_list_shows_what_is_named_as_ours_and_deletes_nothing(project, serve, eventually):
    emulator = serve(foreign_endpoints=2)
    project.write(test_it=SLOW)
    process = started(project, emulator, eventually)
    listed = project.run(project.runpod("reap", "--list", f"--state={project.state}"), emulator)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert listed.returncode == 0, listed.stderr
    assert f"named by {receipt_file(project)}" in listed.stdout
    assert "pytest-runpod-of-somebody-else-1  workers.max 0  no receipt here names it" in listed.stdout
    assert "2 endpoints named pytest-runpod-*" in listed.stdout
    assert emulator.foreign() == 2


def test_a_create_that_stays_in_doubt_is_ended_by_a_persons_word_and_an_agreeing_list(project, serve):
    emulator = serve(rules=[{"kind": "disconnect", "method": "POST", "path": "/v2/serverless", "nth": 1}])
    project.write(test_it="def test_it(): pass\n")
    lost = project.run(project.approved(), emulator)
    assert lost.returncode == 13, lost.stdout
    assert "the watchdog goes on deleting" in lost.stdout
    assert project.receipts()[0].phase.value == "unresolved"
    cleanup = project.runpod("cleanup", f"--receipt={receipt_file(project)}")
    still = project.run(cleanup, emulator)
    assert still.returncode == 13
    assert "not known whether the endpoint" in still.stderr
    without = project.run([*cleanup, "--absent"], emulator)
    assert without.returncode == 4
    said = project.run([*cleanup, "--absent", "--reason=not in the console"], emulator)
    assert said.returncode == 0, said.stderr
    (receipt,) = project.receipts()
    assert receipt.cleanup_confirmed
    assert any(line.endswith("absence_stated not in the console") for line in receipt.log)
    assert project.run(project.approved(), emulator).returncode == 0


def test_nobodys_word_counts_against_a_list_that_shows_the_endpoint(project, serve, eventually, watchdogs):
    emulator = serve(
        unlisted_s=8, rules=[{"kind": "lose_answer", "method": "POST", "path": "/v2/serverless", "nth": 1}]
    )
    project.write(test_it="def test_it(): pass\n")
    lost = project.run(project.approved(), emulator)
    assert lost.returncode == 13, lost.stdout
    for watchdog in watchdogs(project.state):
        os.kill(watchdog, signal.SIGKILL)
    eventually(lambda: len(emulator.client().list_endpoints()) == 1)
    cleanup = project.runpod("cleanup", f"--receipt={receipt_file(project)}")
    said = project.run([*cleanup, "--absent", "--reason=I think so"], emulator)
    assert said.returncode == 13
    assert "exists. Nothing was changed" in said.stderr
    assert project.run(cleanup, emulator).returncode == 0
    assert emulator.ours() == []


def test_doctor_changes_nothing_and_names_everything_that_is_not_well(project, serve):
    emulator = serve(foreign_endpoints=2)
    doctor = project.runpod("doctor", *project.ours)
    well = project.run(doctor, emulator)
    assert well.returncode == 0, well.stdout + well.stderr
    lines = [line for line in well.stdout.splitlines() if line.startswith(("ok ", "!! "))]
    assert len(lines) == 7
    assert all(line.startswith("ok ") for line in lines)
    assert "pytest-runpod-of-somebody-else-1" in well.stdout
    emulator.tell("faults", {"jobs_unauthorized": True, "price_factor": 2})
    (project.state / "receipts").mkdir(parents=True)
    (project.state / "receipts" / "torn.json").write_text("{")
    (project.state / "ledger.json").write_text("{")
    ill = project.run(doctor, emulator)
    assert ill.returncode == 13
    for word in ("!! job API", "!! price", "!! receipts", "!! ledger", "ok management API", "torn.json"):
        assert word in ill.stdout
    assert [one for one in emulator.requests_seen() if not one.startswith("GET")] == []


@pytest.mark.parametrize("word", ["doctor", "setup"])
def test_commands_that_need_a_lasting_provider_say_so(project, word):
    project.write(test_it="def test_it(): pass\n")
    arguments = ["--approved-sha=" + project.digest()] if word == "setup" else []
    done = project.run(project.runpod(word, *project.ours, *arguments))
    assert done.returncode == 4
    assert "needs a provider that outlives it" in done.stderr
