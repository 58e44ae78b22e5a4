"""Tests that are cut, or run in several processes: what a user reads is what a plain run tells him."""

import re

from tests.journeys.output import calm, outcomes, reading

# --- timeouts

TIMEOUTS = """
import time, pytest
def test_quick(): pass
def test_slow():
    print("before")
    time.sleep(30)
@pytest.fixture
def slow_setup(): time.sleep(30)
def test_setup(slow_setup): pass
@pytest.fixture
def slow_teardown():
    yield
    time.sleep(30)
def test_teardown(slow_teardown): pass
@pytest.mark.timeout(0)
def test_without_a_timeout(): time.sleep(1.5)
"""


def test_a_timeout_by_signal_fails_the_phase_that_was_slow_and_durations_name_the_slowest(project):
    project.write(test_it=TIMEOUTS)
    arguments = ["-rA", "-v", "--timeout=1", "--timeout-method=signal", "--durations=7", "--durations-min=0.9"]
    plain = project.run(project.command(*arguments, "-p", "no:cacheprovider"))
    remote = project.run(project.remote(*arguments, "-p", "no:cacheprovider"))
    assert remote.returncode == plain.returncode == 1, remote.stdout

    def slowest(text):
        return [
            line for line in re.findall(r"(?m)^<> (?:setup|call|teardown) .*", calm(text)) if "runpod::" not in line
        ]

    def others(
        text,
    ):  # three tests were cut after the same second, in what order is chance; how many are hidden is ours
        section = re.compile(r"<> (setup|call|teardown) |\(\d+ durations < |=+ slowest ")
        return [line for line in reading(text) if not section.match(line)]

    assert slowest(remote.stdout)[0] == slowest(plain.stdout)[0] == "<> call     test_it.py::test_without_a_timeout"
    assert sorted(slowest(remote.stdout)) == sorted(slowest(plain.stdout))
    assert len(slowest(plain.stdout)) == 4
    assert others(remote.stdout) == others(plain.stdout)
    assert outcomes(remote.stdout) == outcomes(plain.stdout) == {"failed": 1, "passed": 3, "errors": 2}


def test_a_timeout_by_thread_shows_its_stacks_and_what_the_test_had_printed(project):
    project.write(
        test_it="import time\ndef test_1(): pass\ndef test_2():\n    print('printed before')\n    time.sleep(30)\n"
        "def test_3(): pass\n"
    )
    arguments = ["-rA", "--timeout=1", "--timeout-method=thread", "-p", "no:cacheprovider"]
    plain, remote = project.run(project.command(*arguments)), project.run(project.remote(*arguments))
    assert remote.returncode == plain.returncode == 1
    for told in ("+ Timeout +", "printed before", 'test_it.py", line 5, in test_2'):
        assert told in plain.stdout + plain.stderr
        assert told in remote.stdout
    assert "ended in the middle of it: exit status 1" in remote.stdout
    assert outcomes(remote.stdout) == {"failed": 1, "passed": 2}


# --- processes of xdist


def test_groups_of_xdist_leave_no_trace_in_the_ids(project):
    project.write(
        test_it="import pytest\n@pytest.mark.xdist_group('one')\n@pytest.mark.parametrize('a', ['x@y', 'z'])\n"
        "def test_it(a): assert a == 'z'\n@pytest.mark.xdist_group('two')\ndef test_other(): pass\n"
    )
    arguments = ["-n", "2", "--dist", "loadgroup", "-v"]
    done = project.run(project.remote(*arguments))
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "@one" not in done.stdout
    again = project.run(project.remote(*arguments, "--lf"))
    assert "test_it.py::test_it[x@y] FAILED" in again.stdout, again.stdout
    assert "1 failed, 1 skipped" in again.stdout
    there = project.run(project.remote(*arguments, "--runpod-collect=worker"))
    assert "1 failed, 2 passed" in there.stdout, there.stdout
    assert "@one" not in there.stdout


def test_the_death_of_a_process_of_xdist_loses_no_result(project):
    project.write(
        test_it="import os, pytest\n@pytest.mark.parametrize('n', range(10))\ndef test_it(n):\n    if n == 3: os._exit(1)\n"
    )
    plain = project.run(project.command("-n", "2"))
    remote = project.run(project.remote("-n", "2"))
    assert remote.returncode == plain.returncode == 1
    assert "1 failed, 9 passed" in plain.stdout
    assert "1 failed, 9 passed" in remote.stdout, remote.stdout
