"""Nothing that a worker has started outlives it, or the emulator: however deep, and however the emulator ends."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_runpod.emulator import processes
from pytest_runpod.provider.api import EndpointSpec, Policy

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no /proc to look into")
# A worker that leaves a process behind in a session of its own, without our variables, and then another whose parent has ended.
NESTED = """
import subprocess, sys, time
plain = {"PATH": "/usr/bin:/bin"}
subprocess.Popen(["sleep", "600"], start_new_session=True, env=plain)
subprocess.run(["sh", "-c", "sleep 600 &"], start_new_session=True, env=plain)
time.sleep(600)
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def busy(emulator, eventually, args):
    """An endpoint whose worker has started three processes."""
    client = emulator.client()
    spec = EndpointSpec(
        name="pytest-runpod-test", image="i", args=args, env={}, pool="AMPERE_16", excluded_types=(), min_cuda=None, disk_gb=20,
        workers_min=0, workers_max=1, idle_timeout_s=5, execution_timeout_s=60, queue_delay_s=1,
    )  # fmt: skip
    endpoint = client.create_endpoint(spec)
    client.submit(endpoint, {"x": 1}, Policy(execution_timeout_s=60, ttl_s=120))
    return endpoint, eventually(lambda: len(pids := emulator.ask("alive")["pids"]) >= 3 and pids)


@linux
@pytest.mark.parametrize("end", ["delete", "terminate", "kill"])
def test_descendants_end_with_their_endpoint_and_with_the_emulator_however_it_ends(serve, eventually, end):
    emulator = serve()
    endpoint, pids = busy(emulator, eventually, shlex.join(["python3", "-c", NESTED]))
    folder = next(
        parent
        for parent in Path(f"/proc/{pids[0]}/cwd").readlink().parents
        if parent.name.startswith("runpod-emulator-")
    )
    if end == "delete":
        emulator.client().delete_endpoint(endpoint.id)
        eventually(lambda: list((folder / "workers").iterdir()) == [])
    else:
        emulator.process.send_signal({"terminate": signal.SIGTERM, "kill": signal.SIGKILL}[end])
        assert emulator.process.wait(30) == (0 if end == "terminate" else -signal.SIGKILL)
        eventually(lambda: not folder.exists())
    eventually(lambda: not any(alive(pid) for pid in pids))


@linux
def test_a_process_that_only_knows_the_folder_is_left_alone(tmp_path):
    home = tmp_path / "worker"
    (home / "below").mkdir(parents=True)
    stranger = subprocess.Popen(["sleep", "600"], cwd=tmp_path, env={"OLDPWD": str(home), "HOME": f"{home}-other"})
    member = subprocess.Popen(["sleep", "600"], cwd=home / "below", env={})
    try:
        assert processes.belonging(home) == [member.pid]
        assert processes.end(home) is True
        assert member.wait(10) == -signal.SIGKILL
        assert stranger.poll() is None
    finally:
        for one in (stranger, member):
            one.kill()
            one.wait(10)


@linux
def test_a_process_whose_folder_was_removed_is_still_found(tmp_path):
    home = tmp_path / "worker"
    home.mkdir()
    member = subprocess.Popen(["sleep", "600"], cwd=home, env={})
    try:
        home.rmdir()
        assert processes.belonging(home) == [member.pid]
    finally:
        member.kill()
        member.wait(10)


@linux
def test_this_process_never_belongs_to_what_it_ends(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert os.getpid() not in processes.belonging(tmp_path)


def test_the_guardian_removes_the_folder_when_it_is_let_go(tmp_path):
    folder = tmp_path / "emulator"
    (folder / "workers" / "w").mkdir(parents=True)
    guardian = processes.Guardian(folder)
    guardian.close()
    assert not folder.exists()
