"""Options that choose tests: the same tests run, in the same order, as without --runpod."""

import re

import pytest

TESTS = """
import time, pytest
def test_1(): pass
def test_2(): assert 0
@pytest.mark.slow
def test_3(): time.sleep(0.3)
def test_4(): assert 0
def test_5(): pass
"""
INI = "[pytest]\nmarkers = slow\n"


def order(text: str) -> list[str]:
    return re.findall(r"^(test_\w+\.py::\w+ (?:PASSED|FAILED|SKIPPED|ERROR))", text, re.MULTILINE)


@pytest.fixture(scope="module")
def pair(make_project):
    """Two copies of a project, both with a cache of an earlier run: of a plain one, and of a remote one."""
    plain, remote = (make_project(name).write(test_it=TESTS, **{"pytest.ini": INI}) for name in ("plain", "remote"))
    first = plain.run(plain.command("-v")), remote.run(remote.remote("-v"))
    assert order(first[0].stdout) == order(first[1].stdout)
    return plain, remote


@pytest.mark.parametrize(
    "arguments",
    [
        ["--lf"],
        ["--ff", "--maxfail=1"],
        ["--nf", "-k", "not 5", "-m", "not slow", "--deselect=test_it.py::test_2", "-p", "no:doctest"],
        ["--sw"],
    ],
    ids=" ".join,
)
def test_what_is_chosen_by_the_cache_and_by_hand_runs_in_the_same_order(pair, arguments):
    plain, remote = pair
    if "--nf" in arguments:
        for one in pair:
            one.write(test_new="def test_new(): pass\n")
    there = remote.run(remote.remote("-v", "--runpod-budget-total=100", *arguments))
    here = plain.run(plain.command("-v", *arguments))
    assert order(there.stdout) == order(here.stdout), there.stdout
    assert order(here.stdout)
    assert there.returncode == here.returncode


def test_a_mere_collection_creates_nothing(project):
    project.write(test_it=TESTS, **{"pytest.ini": INI})
    done = project.run(project.remote("--collect-only", "-q"))
    assert "5 tests collected" in done.stdout
    assert not project.receipts()
    assert project.reserved() == 0
