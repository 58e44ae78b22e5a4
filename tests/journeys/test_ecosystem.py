"""What other plugins, a project's own hooks and pytest's cache do to a run is what they do to a plain one."""

import base64
import html
import json
import re

import pytest

from tests.journeys.output import calm, outcomes, reading, results


def notebook(*cells: tuple[str, str]) -> str:
    """The text of a notebook whose cells are pairs of a tag (or nothing) and code."""
    code = [
        {"cell_type": "code", "id": f"c{n}", "metadata": {"tags": [tag] if tag else []}, "execution_count": None}
        | {"outputs": [], "source": source}
        for n, (tag, source) in enumerate(cells)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps({"cells": code, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})


YAML_COLLECTOR = """
import pytest, yaml
def pytest_collect_file(parent, file_path):
    if file_path.suffix == ".yaml" and file_path.name.startswith("test"):
        return YamlFile.from_parent(parent, path=file_path)
class YamlFile(pytest.File):
    def collect(self):
        for name, spec in sorted(yaml.safe_load(self.path.read_text()).items()):
            item = YamlItem.from_parent(self, name=name, spec=spec)
            if name == "skipped": item.add_marker(pytest.mark.skip(reason="the file says so"))
            if name == "known": item.add_marker(pytest.mark.xfail(reason="the file knows"))
            yield item
class YamlItem(pytest.Item):
    def __init__(self, *, spec, **more):
        super().__init__(**more)
        self.spec = spec
    def runtest(self):
        print("running", self.name)
        for key, value in sorted(self.spec.items()):
            if key == "boom": raise RuntimeError(value)
            if key != value: raise YamlException(key, value)
    def repr_failure(self, excinfo):
        if isinstance(excinfo.value, YamlException):
            return "usecase execution failed\\n   spec failed: {!r}: {!r}".format(*excinfo.value.args)
        return super().repr_failure(excinfo)
    def reportinfo(self):
        return self.path, 0, f"usecase: {self.name}"
class YamlException(Exception): pass
"""
HOOKS = """
import pytest_html
from hypothesis import HealthCheck, settings
settings.register_profile("calm", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("calm")

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.sections.append(("From the conftest", f"{item.name} in {call.when}"))
    if report.when == "call": report.extras = [pytest_html.extras.text(f"extra of {item.name}")]
    return report
def pytest_report_teststatus(report):
    if report.when == "call" and report.passed and "special" in report.nodeid:
        return "special", "S", "SPECIAL"
def pytest_runtest_logreport(report):
    if report.when == "call" and report.user_properties: print("\\nrecorded:", report.user_properties)
def pytest_terminal_summary(terminalreporter):
    terminalreporter.section("by the project")
    for key, reports in sorted(terminalreporter.stats.items()):
        ids = sorted(report.nodeid for report in reports if getattr(report, "nodeid", "runpod::") != "runpod::cuda")
        if key: terminalreporter.write_line(f"{key}: {ids}")
"""
FILES = {
    "pytest.ini": "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    "runpod_include = *.yaml\ntestpaths = .\n",
    "conftest.py": YAML_COLLECTOR + HOOKS,
    "test_spec.yaml": "ok:\n  a: a\nbad:\n  a: b\nskipped:\n  a: b\nknown:\n  a: b\n",
    "test_hooks.py": '''
def test_special(): pass
def test_recorded(record_property, record_testsuite_property):
    record_property("pair", [1, 2])
    record_property("word", "\u00e9")
    record_testsuite_property("suite", "s")
''',
    "test_reruns.py": '''
import pytest
count = {"setup": 0, "marked": 0, "class": 0}
@pytest.fixture
def flaky_setup():
    count["setup"] += 1
    if count["setup"] < 2: raise RuntimeError("setup broke once")
def test_setup(flaky_setup): pass
@pytest.mark.flaky(reruns=3, reruns_delay=0)
def test_marked():
    count["marked"] += 1
    print("try", count["marked"])
    assert count["marked"] == 3
@pytest.mark.flaky(reruns=2, only_rerun=["ValueError"])
def test_other_error(): raise KeyError("not rerun")
@pytest.mark.flaky(reruns=2, condition=False)
def test_without_reruns(): assert 0
class TestParameters:
    @pytest.mark.parametrize("p", [1, 2])
    def test_p(self, p):
        count["class"] += 1
        assert count["class"] > 1
@pytest.fixture(scope="module")
def module_value():
    yield 1
    raise RuntimeError("module teardown broke")
def test_last_of_module(module_value): pass
''',
    "test_hypothesis.py": '''
import pytest
from hypothesis import example, given, note, settings, assume, strategies as st
@given(st.lists(st.integers(), min_size=1))
def test_falsified(values):
    note("noted")
    assert sum(values) < 1000
@settings(print_blob=True)
@given(st.integers())
def test_blob(n): assert n < 7
@example(n=5)
@given(st.integers())
def test_explicit(n): assert n != 5
@given(st.integers())
def test_two_ways(n):
    if n > 100: raise ValueError("big")
    if n < -100: raise KeyError("small")
@given(st.integers())
def test_unsatisfiable(n): assume(False)
@given(st.integers(), st.data())
def test_drawn(n, data): assert n + data.draw(st.integers(), label="m") < 50
calls = []
@given(st.integers())
def test_flaky(n):
    calls.append(n)
    assert len(calls) != 3
''',
    "test_asyncio.py": '''
import asyncio, pytest
@pytest.fixture
async def value():
    yield await asyncio.sleep(0, 3)
    raise RuntimeError("async teardown broke")
async def test_good(): assert await asyncio.sleep(0, True)
async def test_bad(): assert await asyncio.sleep(0, 3) == 4
async def test_teardown(value): assert value == 3
@pytest.mark.xfail(reason="known")
async def test_known(): assert await asyncio.sleep(0, False)
''',
    "test_unittest.py": '''
import unittest
class ClassTeardown(unittest.TestCase):
    @classmethod
    def tearDownClass(cls): raise RuntimeError("class teardown broke")
    def test_1(self): pass
    def test_2(self): self.addCleanup(lambda: 1 / 0)
class ClassSetup(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError("class setup broke")
    def test_1(self): pass
    def test_2(self): pass
class ClassSkips(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise unittest.SkipTest("class skips")
    def test_1(self): pass
@unittest.skip("whole class")
class Skipped(unittest.TestCase):
    def test_1(self): pass
class Async(unittest.IsolatedAsyncioTestCase):
    async def test_good(self): pass
    async def test_bad(self): self.assertIn(1, [2])
class Cases(unittest.TestCase):
    def setUp(self): print("set up", self.id())
    def test_lines(self): self.assertMultiLineEqual("a\\nb\\n", "a\\nc\\n")
    def test_skips(self): self.skipTest("inside")
    @unittest.expectedFailure
    def test_expected(self): self.fail("known")
    @unittest.expectedFailure
    def test_unexpected(self): pass
''',
    "test_unittest_module.py": '''
import unittest
def setUpModule(): raise RuntimeError("module setup broke")
class A(unittest.TestCase):
    def test_1(self): pass
''',
    "n/good.ipynb": notebook(("", "x = 40"), ("raises-exception", "x / 0"), ("skip-execution", "y"), ("", "print(x + 2)")),
    "n/bad.ipynb": notebook(("", "x = 1"), ("", "print('hi')\nassert x == 2, 'x is one'")),
    "docs/conftest.py": "import pytest\n@pytest.fixture(autouse=True)\n"
    "def add(doctest_namespace): doctest_namespace['three'] = 3\n",
    "docs/usage.txt": ">>> 1 + 1\n2\n>>> print('a\\nb')\na\nc\n>>> 3\n4\n",
    "docs/names.rst": ">>> three\n3\n>>> undefined\n",
    "docs/fine.md": ">>> three\n3\n",
    "sums.py": '''
def double(n):
    """
    >>> double(2)
    5
    >>> getfixture("tmp_path").exists()
    True
    """
    return 2 * n
class Kind:
    """
    >>> Kind().x  # doctest: +SKIP
    3
    >>> raise ValueError("v")
    Traceback (most recent call last):
    ValueError: v
    """
def unready():
    """
    >>> unready()  # doctest: +SKIP
    """
''',
}  # fmt: skip
ARGUMENTS = [
    "-rAR", "-vv", "--reruns=1", "--hypothesis-seed=0", "--hypothesis-show-statistics", "--doctest-modules",
    "--doctest-glob=*.rst", "--doctest-glob=*.txt", "--doctest-glob=*.md", "--nbmake", "-p", "no:cacheprovider",
]  # fmt: skip

# --- many kinds of tests, and the reporters, in one pair of runs


@pytest.fixture(scope="module")
def pair(make_project):
    """One project, run plain and then remotely."""
    project = make_project("ecosystem").write(**FILES)

    def reporters(name):
        return [f"--html={name}.html", "--self-contained-html", f"--report-log={name}.jsonl"]

    plain = project.run(project.command(*ARGUMENTS, *reporters("plain")))
    remote = project.run(project.remote(*ARGUMENTS, *reporters("remote")))
    return project, plain, remote


def test_everything_that_is_printed_is_what_plain_pytest_prints(pair):
    _, plain, remote = pair
    assert remote.returncode == plain.returncode == 1, remote.stdout
    assert reading(remote.stdout) == reading(plain.stdout)
    assert len([line for line in reading(plain.stdout) if line.startswith("RERUN ")]) == 26


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("test_reruns.py", {"PASSED": 6, "FAILED": 2, "ERROR": 1}),
        ("test_hypothesis.py", {"PASSED": 1, "FAILED": 6}),
        ("test_asyncio.py", {"PASSED": 3, "FAILED": 1, "ERROR": 1, "XFAIL": 1}),
        ("test_unittest.py", {"PASSED": 2, "FAILED": 4, "ERROR": 3, "XFAIL": 1}),
        ("test_unittest_module.py", {"ERROR": 1}),
        ("test_spec.yaml", {"PASSED": 1, "FAILED": 1, "XFAIL": 1}),
        ("n/", {"PASSED": 1, "FAILED": 1}),
        ("docs/", {"PASSED": 1, "FAILED": 2}),
        ("sums.py", {"PASSED": 1, "FAILED": 1}),
        ("test_hooks.py", {"PASSED": 1}),
    ],
)
def test_each_kind_has_the_outcomes_that_it_should_have(pair, kind, shown):
    _, plain, remote = pair

    def found(text):
        words = [line.split(" ", 2) for line in results(text)]
        of_kind = [word[0] for word in words if word[1].startswith(kind)]
        return {word: of_kind.count(word) for word in of_kind}

    assert found(remote.stdout) == found(plain.stdout)
    assert found(plain.stdout) == shown


def test_the_hooks_of_the_project_see_the_reports(pair):
    _, _, remote = pair
    assert "recorded: [('pair', [1, 2]), ('word', '\u00e9')]" in remote.stdout
    assert "special: ['test_hooks.py::test_special']" in remote.stdout
    assert "test_good in call" in remote.stdout


def test_html_has_the_same_tests_outcomes_logs_and_extras(pair):
    project, _, _ = pair

    def told(name):
        blob = re.search(r'data-jsonblob="([^"]*)"', (project.root / name).read_text())[1]
        entries = [one for tests in json.loads(html.unescape(blob))["tests"].values() for one in tests]
        kept = [{key: one[key] for key in ("testId", "result", "log", "extras")} for one in entries]
        return json.loads(calm(json.dumps([one for one in kept if not one["testId"].startswith("runpod::")])))

    assert told("remote.html") == told("plain.html")
    assert len(told("plain.html")) > 50
    extra = base64.b64encode(b"extra of test_special").decode()
    assert extra in json.dumps([one["extras"] for one in told("plain.html")])


def test_the_report_log_has_the_same_reports_properties_and_exit_status(pair):
    project, _, _ = pair
    times = ("duration", "start", "stop")

    def told(name):
        lines = [json.loads(line) for line in (project.root / name).read_text().splitlines()]
        kept = [
            {key: value for key, value in line.items() if key not in times}
            for line in lines
            if line.get("nodeid") != "runpod::cuda" and line["$report_type"] != "CollectReport"
        ]
        return json.loads(calm(json.dumps(kept)))

    assert told("remote.jsonl") == told("plain.jsonl")
    assert ["pair", [1, 2]] in [pair for line in told("plain.jsonl") for pair in line.get("user_properties", ())]


def test_a_test_in_a_file_of_the_projects_own_kind_that_is_not_packed_is_refused(project):
    project.write(conftest=YAML_COLLECTOR, test_it="def test_it(): pass\n", **{"test_spec.yaml": "ok:\n  a: a\n"})
    done = project.run(project.remote())
    assert done.returncode == 10, done.stdout
    assert "Selected tests lie in files that are not packed. Nothing was created, nothing was billed." in done.stdout
    assert "looked at: test_spec.yaml" in done.stdout
    assert "runpod_include" in done.stdout
    assert not project.receipts()
    assert project.reserved() == 0


def test_a_test_that_a_package_defines_has_the_location_that_it_has_here(project):
    project.write(
        test_it="from hypothesis import settings\n"
        "from hypothesis.stateful import RuleBasedStateMachine, rule\n"
        "class Machine(RuleBasedStateMachine):\n    @rule()\n    def act(self): pass\n"
        "Machine.TestCase.settings = settings(database=None, deadline=None, max_examples=2)\n"
        "TestMachine = Machine.TestCase\n"
    )
    project.run(project.command("--report-log=plain.jsonl"))
    project.run(project.remote("--report-log=remote.jsonl"))

    def locations(name):
        lines = [json.loads(line) for line in (project.root / name).read_text().splitlines()]
        return [line["location"] for line in lines if "location" in line and line["nodeid"] != "runpod::cuda"]

    assert locations("remote.jsonl") == locations("plain.jsonl")
    assert any(path.startswith("..") for path, _, _ in locations("plain.jsonl"))


# --- selection and the cache

FIVE = (
    "def test_1(): pass\ndef test_2(): assert 0\ndef test_3(): pass\ndef test_4(): assert 0\ndef test_5(): assert 0\n"
)


def order(text: str) -> list[str]:
    return re.findall(r"^(test_\w+\.py::\w+ (?:PASSED|FAILED|SKIPPED|ERROR))", text, re.MULTILINE)


def test_stepwise_goes_on_where_it_stopped_and_skips_one_as_in_plain_runs(make_project):
    plain, remote = (make_project(name).write(test_it=FIVE) for name in ("stepwise-plain", "stepwise-remote"))
    for argument, last in [("--sw", 2), ("--sw-skip", 4)]:
        here = plain.run(plain.command("-v", argument))
        there = remote.run(remote.remote("-v", argument))
        assert (there.returncode, order(there.stdout)) == (here.returncode, order(here.stdout)), there.stdout
        assert order(here.stdout)[-1] == f"test_it.py::test_{last} FAILED"
        told = [re.findall(r"^stepwise: .*", calm(done.stdout), re.MULTILINE) for done in (here, there)]
        assert told[0] == told[1] != []


def test_maxfail_stops_after_the_same_test_among_those_that_k_m_and_deselect_leave(project):
    project.write(
        test_it="import pytest\n@pytest.mark.slow\ndef test_slow(): assert 0\n" + FIVE,
        test_more="def test_6(): pass\n",
        **{"pytest.ini": "[pytest]\nmarkers = slow\n"},
    )
    arguments = ["-rA", "-v", "--maxfail=2", "-m", "not slow", "-k", "not 3", "--deselect=test_it.py::test_1"]
    plain = project.run(project.command(*arguments, "-p", "no:cacheprovider"))
    remote = project.run(project.remote(*arguments, "-p", "no:cacheprovider"))
    assert remote.returncode == plain.returncode
    assert reading(remote.stdout) == reading(plain.stdout)
    assert order(remote.stdout) == order(plain.stdout) == ["test_it.py::test_2 FAILED", "test_it.py::test_4 FAILED"]
    assert outcomes(plain.stdout) == {"failed": 2, "deselected": 3}
    assert outcomes(remote.stdout) == outcomes(plain.stdout)


@pytest.mark.parametrize(
    ("arguments", "exit_status"),
    [("-k nothing_of_that_name", 5), ("--lf --lfnf=none", 5), ("--deselect=test_it.py", 5), ("--co -q", 0)],
)
def test_a_selection_without_tests_creates_nothing(project, arguments, exit_status):
    project.write(test_it="def test_1(): pass\ndef test_2(): pass\n")
    plain = project.run(project.command(*arguments.split()))
    remote = project.run(project.remote(*arguments.split()))
    assert remote.returncode == plain.returncode == exit_status, remote.stdout

    def told(text):
        return [calm(line) for line in text.splitlines() if "plugins: " not in line]

    assert told(remote.stdout) == told(plain.stdout)
    assert not project.receipts()
    assert project.reserved() == 0
