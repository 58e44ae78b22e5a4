"""Processes of a job: nothing outlives it."""

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

import pytest

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.01)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int, seconds: float = 5.0) -> bool:
    until = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


def test_a_cancelled_job_takes_its_processes_and_their_sessions_with_it(bench, tmp_path):
    import job

    note = tmp_path / "pids"
    source = f"""
import os, subprocess, time
def test_hangs():
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with open({str(note)!r}, "w") as file:
        file.write(f"{{os.getpid()}} {{child.pid}} .")
    time.sleep(600)
"""
    job_input = bench.input({"test_c.py": source}, ["test_c.py::test_hangs"])

    async def cancelled_in_the_middle() -> None:
        task = asyncio.ensure_future(job.run_job(job_input, bench.updates.append))
        while not note.exists() or not note.read_text().endswith("."):
            await asyncio.sleep(0.05)
            assert not task.done(), task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(cancelled_in_the_middle())
    for pid in map(int, note.read_text().split()[:2]):
        assert gone(pid)
    assert list((tmp_path / ".pytest-runpod" / "jobs").iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_daemon_that_has_left_its_group_ends_with_its_job(worker_path, tmp_path):
    import processes

    note = tmp_path / "pid"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [sys.executable, "-c", DAEMON, str(note)]
    done = asyncio.run(processes.run(command, log=tmp_path / "log", env=env, cwd=tmp_path, limit_s=20))
    assert done.exit == 0, done.output
    pid = int(note.read_text())
    assert alive(pid)
    processes.end_all_of(tmp_path / "another job")
    assert alive(pid)
    processes.end_all_of(tmp_path)
    assert gone(pid)


def test_a_command_that_does_not_end_in_time_is_ended_and_keeps_its_output(worker_path, tmp_path):
    import processes

    began = time.monotonic()
    command = ["sh", "-c", "echo said; sleep 600"]
    env = {"PATH": os.environ["PATH"]}
    done = asyncio.run(processes.run(command, log=tmp_path / "log", env=env, cwd=tmp_path, limit_s=0.5))
    assert (done.exit, done.output) == (None, "said\n")
    assert time.monotonic() - began < 10


def test_causes_are_named_as_people_do(worker_path):
    import processes

    assert [processes.cause_of(status) for status in (0, 3, -11, -99)] == [
        "exit status 0",
        "exit status 3",
        "signal SIGSEGV",
        "signal 99",
    ]
