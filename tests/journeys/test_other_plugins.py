"""Other plugins and other kinds of tests, plain and remote in one pair of runs: what a user reads is the same."""

import html
import json
import re

import pytest

FILES = {
    "pytest.ini": "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nrunpod_include = *.case\n",
    "conftest.py": '''
import pytest
class CaseFailed(Exception): pass
class CaseFile(pytest.File):
    def collect(self):
        for number, line in enumerate(self.path.read_text().split(), 1):
            yield CaseItem.from_parent(self, name=f"line {number}", word=line)
class CaseItem(pytest.Item):
    def __init__(self, *, word, **more):
        super().__init__(**more)
        self.word = word
    def runtest(self):
        if self.word != "good": raise CaseFailed(self.word)
    def repr_failure(self, excinfo):
        return f"the word was {excinfo.value}\\nand not good"
    def reportinfo(self):
        return self.path, 0, f"case {self.name}"
def pytest_collect_file(parent, file_path):
    return CaseFile.from_parent(parent, path=file_path) if file_path.suffix == ".case" else None
''',
    "words.case": "good bad\n",
    "test_reruns.py": '''
import pytest
tries = []
def test_flaky():
    tries.append(1)
    assert len(tries) == 2
def test_always(): assert 0
@pytest.fixture
def breaks():
    yield
    raise RuntimeError("teardown broke")
def test_teardown(breaks): pass
''',
    "test_asyncio.py": '''
import asyncio, pytest
@pytest.fixture
async def loop_value(): return await asyncio.sleep(0, 3)
async def test_good(loop_value): assert loop_value == 3
async def test_bad(loop_value): assert loop_value == 4
''',
    "test_hypothesis.py": '''
from hypothesis import given, settings, strategies as st
@settings(derandomize=True, database=None, deadline=None)
@given(st.integers())
def test_falsified(n): assert n < 100
@settings(derandomize=True, database=None, deadline=None)
@given(st.lists(st.integers()))
def test_holds(values): assert sorted(sorted(values)) == sorted(values)
''',
    "test_timeouts.py": '''
import time, pytest
@pytest.mark.timeout(0.5, method="signal")
def test_slow(): time.sleep(2)
@pytest.mark.timeout(20)
def test_quick(): pass
''',
    "test_old.py": '''
import unittest
class Broken(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError("no class")
    def test_never(self): pass
class Cases(unittest.TestCase):
    @unittest.expectedFailure
    def test_expected(self): self.fail("known")
    @unittest.expectedFailure
    def test_unexpected(self): pass
    @unittest.skip("not now")
    def test_skipped(self): pass
    def test_equal(self): self.assertEqual([1, 2], [1, 3])
''',
    "sums.py": '''
def double(n):
    """
    >>> double(2)
    4
    >>> double(3)
    7
    """
    return 2 * n
''',
    "usage.rst": ">>> from sums import double\n>>> double(1)\n2\n",
}  # fmt: skip
NOISE = re.compile(r"\d+\.\d+s|0x[0-9a-f]+|\(\d{6,}\)")  # times, addresses, threads
ARGUMENTS = [
    "-rA", "--reruns=1", "--doctest-modules", "--doctest-glob=*.rst", "-p", "no:cacheprovider", "--durations=1", "-vv",
]  # fmt: skip


def reading(text: str) -> list[str]:
    """What pytest printed from the first test on, less our own item and section, and less times."""
    text = re.sub(r"(?ms)^=+ runpod =+\n.*?(?=^=)", "", text[text.index("collected ") :])
    lines = [line for line in text.splitlines() if not re.match(r"runpod:|SKIPPED \[1\] runpod|-+ [Gg]enerated", line)]
    lines = [re.sub(r" *\[ *\d+%\]", "", line) for line in lines]
    return [NOISE.sub("<>", line) for line in lines if line][1:-1]


@pytest.fixture(scope="module")
def pair(make_project):
    """One project, run plain and then remotely, with every reporter at work."""
    project = make_project("everything").write(**FILES)

    def reporters(name):
        return [f"--html={name}.html", "--self-contained-html", f"--report-log={name}.jsonl"]

    plain = project.run(project.command(*ARGUMENTS, *reporters("plain")))
    remote = project.run(project.remote(*ARGUMENTS, *reporters("remote")))
    return project, plain, remote


def test_outcomes_texts_reruns_and_summaries_read_as_in_plain_pytest(pair):
    _, plain, remote = pair
    assert remote.returncode == plain.returncode == 1, remote.stdout
    assert len(reading(plain.stdout)) > 100
    slowest = [line for line in reading(plain.stdout) if "test_slow" in line and "<> call" in line]
    assert slowest  # of the durations
    assert reading(remote.stdout) == reading(plain.stdout)


def test_the_html_report_tells_the_same_tests_outcomes_and_logs(pair):
    project, _, _ = pair

    def told(name):
        blob = re.search(r'data-jsonblob="([^"]*)"', (project.root / name).read_text())[1]
        tests = json.loads(html.unescape(blob))["tests"]
        return {
            nodeid: [(one["result"], NOISE.sub("<>", one["log"])) for one in entries]
            for nodeid, entries in tests.items()
            if "runpod::cuda" not in nodeid
        }

    assert told("remote.html") == told("plain.html")
    assert len(told("plain.html")) > 15


def test_the_report_log_holds_the_same_reports(pair):
    project, _, _ = pair
    times = {"duration", "start", "stop", "_hypothesis_stats", "extra", "extras"}

    def told(name):
        lines = [json.loads(line) for line in (project.root / name).read_text().splitlines()]
        reports = [
            {key: value for key, value in line.items() if key not in times}
            for line in lines
            if line.get("$report_type") == "TestReport" and line["nodeid"] != "runpod::cuda"
        ]
        return json.loads(NOISE.sub("<>", json.dumps(reports)))

    assert told("remote.jsonl") == told("plain.jsonl")


def test_a_timeout_that_ends_the_process_is_one_failure_and_the_rest_runs(project):
    project.write(test_it="import time\ndef test_1(): pass\ndef test_2(): time.sleep(20)\ndef test_3(): pass\n")
    done = project.run(project.remote("--timeout=1", "--timeout-method=thread", "-v"))
    assert done.returncode == 1
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "ended in the middle of it: exit status 1" in done.stdout


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
