"""Errors that poison the CUDA context, played by a stub of torch: one test is blamed, the rest run in a fresh process."""

import pytest

PASS = [("setup", "passed"), ("call", "passed"), ("teardown", "passed")]
FAIL = [("setup", "passed"), ("call", "failed"), ("teardown", "passed")]

# A torch whose device fails when it is waited for, and then always.
STUB = """
import sys, types

class Cuda(types.ModuleType):
    poisoned = False
    def is_initialized(self): return True
    def _is_in_bad_fork(self): return False
    def synchronize(self):
        if self.poisoned: raise RuntimeError("CUDA error: device-side assert triggered")

torch = types.ModuleType("torch")
torch.cuda = Cuda("torch.cuda")
sys.modules["torch"] = torch
"""
TESTS = """
import os, pathlib, sys
cuda = sys.modules["torch"].cuda
def note(): pathlib.Path("pids").open("a").write(f"{os.getpid()}\\n")
def test_before(): note(); cuda.synchronize()
def test_launches(): note(); cuda.poisoned = True
def test_after(): note(); cuda.synchronize()
def test_more(): note(); cuda.synchronize()
def test_processes(): assert len(set(pathlib.Path("pids").read_text().split())) == 2
"""
NAMES = ("before", "launches", "after", "more", "processes")


def poisoned(output) -> dict:
    reports = [line["report"] for line in output.lines if line["kind"] == "report"]
    return {report["nodeid"]: report["_runpod.poisoned"] for report in reports if "_runpod.poisoned" in report}


def test_the_test_that_launched_the_kernel_is_blamed_and_the_rest_runs_in_a_fresh_process(bench):
    ids = [f"test_c.py::test_{name}" for name in NAMES]
    output = bench.run(bench.input({"conftest.py": STUB, "test_c.py": TESTS}, ids))
    assert output.outcomes() == {**dict.fromkeys(ids, PASS), ids[1]: FAIL}
    assert poisoned(output) == {ids[1]: {"message": "device-side assert triggered", "by": ids[1]}}
    assert "poisoned" in output.step("pytest")["detail"]


def test_with_x_the_session_ends_at_the_culprit_with_the_exit_status_of_a_failure(bench):
    ids = [f"test_c.py::test_{name}" for name in NAMES[:4]]
    job = bench.input({"conftest.py": STUB, "test_c.py": TESTS}, ids, args=["-x"], maxfail=1)
    output = bench.run(job)
    assert output.outcomes() == {ids[0]: PASS, ids[1]: FAIL}
    assert output.step("pytest")["exit"] in (1, 2)


def test_the_same_with_processes_of_xdist(bench):
    ids = [f"test_c.py::test_{name}" for name in NAMES[:4]]
    files = {"conftest.py": STUB, "test_c.py": TESTS}
    output = bench.run(bench.input(files, ids, args=["-n", "1"], plugins=["xdist", "xdist.looponfail"]))
    assert output.outcomes() == {**dict.fromkeys(ids, PASS), ids[1]: FAIL}


def test_without_restarts_the_tests_run_on_and_name_the_culprit(bench):
    ids = [f"test_c.py::test_{name}" for name in NAMES[:4]]
    output = bench.run(bench.input({"conftest.py": STUB, "test_c.py": TESTS}, ids, restarts=0))
    assert output.outcomes() == {ids[0]: PASS, ids[1]: FAIL, ids[2]: FAIL, ids[3]: FAIL}
    assert {report["by"] for report in poisoned(output).values()} == {ids[1]}


def test_an_error_that_only_speaks_of_it_poisons_nothing_while_the_context_works(bench):
    source = "def test_1(): raise RuntimeError('device-side assert triggered')\ndef test_2(): pass\n"
    output = bench.run(
        bench.input({"conftest.py": STUB, "test_c.py": source}, ["test_c.py::test_1", "test_c.py::test_2"])
    )
    assert poisoned(output) == {}
    assert len([line for line in output.lines if line["kind"] == "session"]) == 1


def test_where_nothing_can_be_probed_the_text_of_the_error_decides(bench):
    source = """
broken = False
def use():
    if broken: raise RuntimeError("CUDA error: an illegal memory access was encountered")
def test_1():
    global broken
    broken = True
    use()
def test_2(): use()
"""
    output = bench.run(bench.input({"test_c.py": source}, ["test_c.py::test_1", "test_c.py::test_2"]))
    assert output.outcomes() == {"test_c.py::test_1": FAIL, "test_c.py::test_2": PASS}


@pytest.mark.parametrize(
    "text", ["low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"]
)
def test_kills_for_want_of_memory_are_counted_as_the_kernel_tells_them(worker_path, tmp_path, text):
    import pytest_run

    (tmp_path / "events").write_text(text)
    assert pytest_run.out_of_memory_kills((str(tmp_path / "none"), str(tmp_path / "events"))) == 2
    assert pytest_run.out_of_memory_kills((str(tmp_path / "none"),)) == 0
