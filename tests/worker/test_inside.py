"""The worker's part inside of pytest: odd values, several processes, and sources left as they were."""

import json
import math

import pytest

PASS = [("setup", "passed"), ("call", "passed"), ("teardown", "passed")]
NOTEBOOK = {
    "cells": [
        {
            "cell_type": "code",
            "id": "a",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": "print('ran')",
        }
    ],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


class Unshowable:
    def __repr__(self):
        raise RuntimeError("no")


def test_a_line_is_json_whatever_a_test_has_recorded(worker_path):
    from inside import report_log

    endless: list = []
    endless.append(endless)
    for value in ({(1, 2): 3}, math.nan, endless, Unshowable(), {"s": {1}}, "\ud800", b"\xff", 10**400):
        line = report_log.line_of({"kind": "report", "value": value})
        assert line.isascii()
        assert "\n" not in line
        assert json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["kind"] == "report"


def test_properties_that_json_cannot_hold_do_not_end_the_session(bench):
    source = """
class Unshowable:
    def __repr__(self): raise RuntimeError("no")
def test_odd(record_property):
    record_property("keys", {(1, 2): float("nan")})
    record_property("unshowable", Unshowable())
def test_next(): pass
"""
    ids = ["test_o.py::test_odd", "test_o.py::test_next"]
    output = bench.run(bench.input({"test_o.py": source}, ids))
    assert output.outcomes() == dict.fromkeys(ids, PASS)


def test_a_process_of_xdist_that_dies_fails_its_test_and_the_others_run(bench):
    source = "import os, pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_it(n):\n    if n == 1: os._exit(3)\n"
    ids = [f"test_n.py::test_it[{n}]" for n in range(4)]
    output = bench.run(bench.input({"test_n.py": source}, ids, args=["-n", "2"], plugins=["xdist", "xdist.looponfail"]))
    found = output.outcomes()
    assert found[ids[1]][-1] == ("???", "failed")
    assert [found[nodeid] for nodeid in (ids[0], ids[2], ids[3])] == [PASS] * 3
    assert output.step("pytest")["exit"] == 1


def test_reports_hold_no_handle_of_xdist(bench):
    files = {"test_n.py": "def test_it(): pass\n"}
    output = bench.run(
        bench.input(files, ["test_n.py::test_it"], args=["-n", "1"], plugins=["xdist", "xdist.looponfail"])
    )
    reports = [line["report"] for line in output.lines if line["kind"] == "report"]
    assert reports
    assert all("node" not in report for report in reports)


def test_what_is_collected_is_told_by_id_in_the_order_in_which_it_runs(bench):
    files = {"test_a.py": "def test_1(): pass\ndef test_2(): pass\ndef test_3(): pass\n"}
    ids = ["test_a.py::test_3", "test_a.py::test_1"]
    output = bench.run(bench.input(files, ids))
    assert [line["ids"] for line in output.lines if line["kind"] == "collected"] == [ids]


def test_an_executed_notebook_comes_back_and_later_tests_find_its_source(bench):
    text = json.dumps(NOTEBOOK)
    check = "import pathlib\ndef test_clean():\n    assert '\"outputs\": []' in pathlib.Path('n.ipynb').read_text()\n"
    ids = ["n.ipynb::n.ipynb", "test_z.py::test_clean"]
    output = bench.run(bench.input({"n.ipynb": text, "test_z.py": check}, ids, args=["--nbmake"], plugins=["nbmake"]))
    assert output.outcomes() == dict.fromkeys(ids, PASS)
    assert "ran" in str(output.json("notebooks/n.ipynb")["cells"][0]["outputs"])


def test_a_notebook_that_fails_comes_back_with_its_error(bench):
    failing = {**NOTEBOOK, "cells": [{**NOTEBOOK["cells"][0], "source": "1 / 0"}]}
    output = bench.run(
        bench.input({"n.ipynb": json.dumps(failing)}, ["n.ipynb::n.ipynb"], args=["--nbmake"], plugins=["nbmake"])
    )
    assert output.outcomes()["n.ipynb::n.ipynb"][1] == ("call", "failed")
    assert output.json("notebooks/n.ipynb")["cells"][0]["outputs"][0]["ename"] == "ZeroDivisionError"


STRICT = (
    "[pytest]\nfilterwarnings = error\nrunpod_gpu = x\nrunpod_commands =\n    a = b\nrunpod_restarts = 1\n"
    "addopts = --strict-config --strict-markers"
)
USES_CACHE = "def test_it(cache):\n    cache.set('a/b', 1)\n    assert cache.get('a/b', 0) == 1\n"


@pytest.mark.parametrize(
    ("ini", "args", "source"),
    [
        ("\ncache_dir = .there\n", [], USES_CACHE),
        (" -p no:cacheprovider\n", ["-p", "no:cacheprovider"], "def test_it(): pass\n"),
    ],
    ids=["cache", "no cache"],
)
def test_strict_settings_with_our_keys_and_those_of_the_cache_are_accepted(bench, ini, args, source):
    files = {"pytest.ini": STRICT + ini, "test_s.py": f"import pytest\n@pytest.mark.cuda\n{source}"}
    words = ["--strict-config", "--strict-markers", *args]  # as the client sends `addopts`
    output = bench.run(bench.input(files, ["test_s.py::test_it"], args=words, inifile="pytest.ini"))
    assert output.outcomes() == {"test_s.py::test_it": PASS}, output.files["logs/pytest.txt"].decode()


def test_an_id_that_occurs_twice_runs_twice_and_is_counted(bench):
    source = "import pytest\n@pytest.mark.parametrize('n', [1, 2], ids=['same', 'same'])\ndef test_it(n): pass\n"
    pytest_makes_them_unique = "test_d.py::test_it[same0]"
    output = bench.run(bench.input({"test_d.py": source}, [pytest_makes_them_unique]))
    assert output.outcomes() == {pytest_makes_them_unique: PASS}
    twice = bench.run(
        bench.input(
            {"test_d.py": "def test_it(): pass\n"}, ["test_d.py::test_it"] * 2,
            args=["--keep-duplicates"], paths=["test_d.py", "test_d.py"],
        )
    )  # fmt: skip
    assert [(line["id"], line["n"]) for line in twice.lines if line["kind"] == "finish"] == [
        ("test_d.py::test_it", 1),
        ("test_d.py::test_it", 2),
    ]


def test_the_end_is_written_after_the_summaries_of_others(bench):
    conftest = (
        "import time\ndef pytest_terminal_summary(terminalreporter):\n"
        "    time.sleep(1.5)\n    terminalreporter.write_line('the summary is whole')\n"
    )
    files = {"conftest.py": conftest, "test_f.py": "def test_f(): pass\n"}
    output = bench.run(bench.input(files, ["test_f.py::test_f"]), exit_grace_s=0.3)
    assert b"the summary is whole" in output.files["logs/pytest.txt"]
    assert (output.step("pytest")["status"], output.step("pytest")["detail"]) == ("ok", "")


def test_without_ids_the_worker_collects_and_tells_what_it_has_found(bench):
    files = {"test_a.py": "def test_1(): pass\ndef test_2(): assert 0\n", "test_b.py": "import not_here\n"}
    output = bench.run(bench.input(files, None, args=["--continue-on-collection-errors"]))
    assert set(output.outcomes()) == {"test_a.py::test_1", "test_a.py::test_2"}
    (error,) = [line["report"] for line in output.lines if line["kind"] == "collectreport"]
    assert (error["nodeid"], error["outcome"]) == ("test_b.py", "failed")


def test_a_death_where_the_worker_collects_leaves_no_test_out(bench):
    files = {"test_a.py": "import os\ndef test_1(): pass\ndef test_2(): os._exit(1)\ndef test_3(): pass\n"}
    output = bench.run(bench.input(files, None))
    found = output.outcomes()
    assert [found[f"test_a.py::test_{n}"][-1] for n in (1, 2, 3)] == [PASS[2], ("died", "exit status 1"), PASS[2]]


def test_what_only_the_worker_collects_runs_after_the_rest_and_is_named(bench):
    files = {"test_a.py": "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_it(n): assert n == 2\n"}
    output = bench.run(bench.input(files, ["test_a.py::test_it[2]"], extras=True))
    assert [line["id"] for line in output.lines if line["kind"] == "start"] == [
        "test_a.py::test_it[2]",
        "test_a.py::test_it[1]",
    ]
    (collected,) = [line for line in output.lines if line["kind"] == "collected"]
    assert collected["extra"] == ["test_a.py::test_it[1]"]


@pytest.mark.parametrize("args", [[], ["-n", "1"]], ids=["one process", "xdist"])
def test_a_module_that_comes_from_outside_of_the_payload_is_named(bench, args):
    files = {"test_a.py": "import iniconfig\ndef test_it(): pass\n"}
    job = bench.input(
        files, ["test_a.py::test_it"], modules=["iniconfig", "test_a"], args=args, plugins=["xdist", "xdist.looponfail"]
    )
    (line,) = [line for line in bench.run(job).lines if line["kind"] == "elsewhere"]
    assert list(line["modules"]) == ["iniconfig"]


def test_another_version_of_the_tooling_is_refused_before_a_test_runs(bench, monkeypatch):
    monkeypatch.setenv("UV_OFFLINE", "1")
    job = bench.input({"test_a.py": "def test_it(): pass\n"}, ["test_a.py::test_it"], tooling={"pytest": "0.0.1"})
    output = bench.run(job)
    assert "pytest" in output.error
    assert output.lines == []


@pytest.mark.parametrize("args", [[], ["-n", "1"]], ids=["one process", "xdist"])
def test_a_rerun_is_told_as_a_further_try(bench, args):
    source = "tries = []\ndef test_flaky():\n    tries.append(1)\n    assert len(tries) == 2\n"
    plugins = ["xdist", "xdist.looponfail", "rerunfailures"]
    job = bench.input({"test_a.py": source}, ["test_a.py::test_flaky"], args=["--reruns=1", *args], plugins=plugins)
    output = bench.run(job)
    assert [(line["n"], line["try"]) for line in output.lines if line["kind"] == "finish"] == [(1, 1), (1, 2)]
    assert output.value["summary"] == {"total": 1, "passed": 1}


def test_half_a_surrogate_does_not_end_a_process_of_xdist(bench):
    source = "def test_raw(): raise RuntimeError('lone \\udcff')\ndef test_next(): pass\n"
    ids = ["test_a.py::test_raw", "test_a.py::test_next"]
    output = bench.run(bench.input({"test_a.py": source}, ids, args=["-n", "1"], plugins=["xdist", "xdist.looponfail"]))
    assert output.outcomes() == {ids[0]: [PASS[0], ("call", "failed"), PASS[2]], ids[1]: PASS}
    call = next(
        line["report"] for line in output.lines if line["kind"] == "report" and line["report"]["outcome"] == "failed"
    )
    assert call["longrepr"]["reprcrash"]["message"] == "RuntimeError: lone \\udcff"


def test_a_test_that_closes_the_output_of_its_process_is_reported_and_the_rest_runs(bench):
    source = "import os\ndef test_closes():\n    os.close(1)\n    os.close(2)\ndef test_next(): assert 0\n"
    ids = ["test_a.py::test_closes", "test_a.py::test_next"]
    output = bench.run(bench.input({"test_a.py": source}, ids))
    assert set(output.outcomes()) == set(ids)
    assert output.outcomes()[ids[1]][1] == ("call", "failed")


def test_an_exit_handler_that_ends_the_process_changes_no_verdict(bench):
    source = "import atexit, os\natexit.register(os._exit, 0)\ndef test_fails(): assert 0\n"
    output = bench.run(bench.input({"test_a.py": source}, ["test_a.py::test_fails"]))
    assert output.step("pytest")["exit"] == 1
    assert "then its process ended by exit status 0" in output.step("pytest")["detail"]
