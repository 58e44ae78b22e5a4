"""Where keys are, and where they are not: looked for in every file, argument and environment of a whole run."""

import signal
from pathlib import Path

GATED = """
import os, time

def test_it():
    print("environment:", sorted(os.environ.items()))
    while not os.path.exists({gate!r}):
        time.sleep(0.1)
    assert 1 == 2
"""


def proc(pid, name):
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""  # it has ended meanwhile


def test_no_key_is_in_a_file_an_argument_or_an_environment_where_it_does_not_belong(
    project, serve, eventually, watchdogs, tmp_path
):
    emulator, gate = serve(), tmp_path / "gate"
    project.write(test_it=GATED.format(gate=str(gate)))
    command = project.remote(f"--approved-sha={project.digest()}", "-vv", "--junitxml=junit-here.xml")
    process = project.start(command, emulator)
    testing = eventually(
        lambda: [pid for pid in emulator.ask("alive")["pids"] if b"PYTEST_RUNPOD_WORKER=1" in proc(pid, "environ")]
    )
    key = emulator.key.encode()
    workers = emulator.ask("alive")["pids"]
    worker_keys = {
        word.partition(b"=")[2]
        for pid in workers
        for word in proc(pid, "environ").split(b"\0")
        if word.startswith(b"RUNPOD_AI_API_KEY=")
    }
    assert len(worker_keys) == 1
    secrets = [key, *worker_keys, b"emulator-endpoint-secret", b"emulator-pod-scoped-key"]

    everybody = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    assert [pid for pid in everybody if any(secret in proc(pid, "cmdline") for secret in secrets)] == []
    assert [pid for pid in workers if key in proc(pid, "environ")] == []
    assert [pid for pid in testing if any(secret in proc(pid, "environ") for secret in secrets)] == []
    assert [key in proc(pid, "environ") for pid in watchdogs(project.state)] == [True]

    gate.touch()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert "environment: [(" in output
    approvals = [*project.state.rglob("*"), *project.root.rglob("*")]
    files = [path for path in approvals if path.is_file()]
    assert {"manifest.json", "reports.jsonl", "ledger.json", "response.json", "junit-here.xml"} <= {
        path.name for path in files
    }
    assert any(path.name.endswith(".watchdog.txt") for path in files)
    holding = [str(path) for path in files if any(secret in path.read_bytes() for secret in secrets)]
    assert holding == []
    assert not any(secret.decode() in output for secret in secrets)


def test_a_traceback_with_every_frame_and_its_variables_shows_no_key(project, serve):
    emulator = serve()
    project.write(
        test_it="def test_it(): pass\n",
        conftest="def pytest_runpod_endpoint_spec(config, spec): raise RuntimeError('a slip of the project')\n",
    )
    command = project.approved("-l", "--full-trace", "-vv", "--tb=long")
    done = project.run(command, emulator)
    assert done.returncode == 12, done.stdout
    assert "a slip of the project" in done.stdout
    assert "connection " in done.stdout  # the frames of ours, with what they hold
    assert emulator.key not in done.stdout + done.stderr


def test_the_log_of_a_watchdog_that_had_to_act_holds_no_key(project, serve, eventually):
    emulator = serve(rules=[{"kind": "status", "method": "DELETE", "path": ".*", "nth": 1, "status": 403}])
    project.write(test_it="import time\ndef test_it(): time.sleep(600)\n")
    process = project.start(project.remote(f"--approved-sha={project.digest()}"), emulator)
    eventually(lambda: any(receipt.job_id for receipt in project.receipts()))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    eventually(lambda: all(receipt.cleanup_confirmed for receipt in project.receipts()))
    texts = [path.read_text() for path in project.state.glob("receipts/*")]
    assert any("the run has ended without clean-up" in text for text in texts)
    assert not any(emulator.key in text for text in texts)
