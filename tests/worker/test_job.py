"""Whole jobs, without the SDK: what goes in, what runs, what comes back."""

import base64
import json

import pytest

PASS = [("setup", "passed"), ("call", "passed"), ("teardown", "passed")]


def test_every_phase_of_every_test_comes_back(bench):
    output = bench.run(
        bench.input(
            {
                "test_it.py": """
import pytest, unittest

@pytest.fixture
def broken():
    yield
    raise RuntimeError("teardown broke")

def test_pass(): pass
def test_fail(): assert 1 == 2
def test_both(broken): assert 1 == 2
@pytest.mark.xfail
def test_xfail(): assert False
@pytest.mark.xfail
def test_xpass(): pass
class Old(unittest.TestCase):
    def test_sub(self):
        for n in range(3):
            with self.subTest(n=n):
                assert n != 1
"""
            },
            [
                f"test_it.py::{name}"
                for name in ("test_pass", "test_fail", "test_both", "test_xfail", "test_xpass", "Old::test_sub")
            ],
        )
    )
    assert output.error is None
    found = output.outcomes()
    assert found["test_it.py::test_pass"] == PASS
    assert found["test_it.py::test_fail"] == [("setup", "passed"), ("call", "failed"), ("teardown", "passed")]
    assert found["test_it.py::test_both"] == [("setup", "passed"), ("call", "failed"), ("teardown", "failed")]
    assert found["test_it.py::test_xfail"][1] == ("call", "xfail")
    assert found["test_it.py::test_xpass"][1] == ("call", "xfail")
    assert len(found["test_it.py::Old::test_sub"]) > 3
    assert output.step("pytest")["exit"] == 1
    assert output.value["summary"]["total"] == 6
    assert output.json("hardware.json")["cpus"]


def test_only_what_was_selected_runs_and_in_that_order(bench):
    files = {"test_a.py": "def test_1(): pass\ndef test_2(): pass\ndef test_3(): pass\n"}
    output = bench.run(bench.input(files, ["test_a.py::test_3", "test_a.py::test_1"]))
    assert [line["id"] for line in output.lines if line["kind"] == "start"] == [
        "test_a.py::test_3",
        "test_a.py::test_1",
    ]


ODD = ["a::b", "a/b", "[x]", "a]b[c", "é", "日本", "\0", "\x1b[31m", "two\nlines", "", " ", "<&>\"'", "]]>", "\ud800"]


def test_odd_ids_texts_and_properties_survive(bench):
    source = f"""
import pytest
ODD = {ODD!a}
@pytest.mark.parametrize("value", ODD)
def test_odd(value, record_property):
    print(value.encode("utf-8", "surrogatepass"), "\\0 \\x1b[31m ]]> </testcase>")
    record_property("key \\0", value)
    record_property("object", object())
    raise ValueError(value)
"""
    import pytest as local

    ids = [f"test_odd.py::test_odd[{local.param(value).id or _id(value)}]" for value in ODD]
    output = bench.run(bench.input({"test_odd.py": source}, ids))
    assert output.error is None
    assert set(output.outcomes()) == set(ids)
    assert {phase for phases in output.outcomes().values() for phase in phases} == {
        ("setup", "passed"),
        ("call", "failed"),
        ("teardown", "passed"),
    }


def _id(value: str) -> str:
    from _pytest.python import _ascii_escaped_by_config  # the ids that pytest makes of strings

    return _ascii_escaped_by_config(value, None)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("os._exit(0)", "exit status 0"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "signal SIGSEGV"),
        ("os._exit(7)", "exit status 7"),
    ],
)
def test_a_test_that_ends_its_process_is_blamed_and_the_rest_runs(bench, body, cause):
    source = f"import os, signal\ndef test_before(): pass\ndef test_dies(): {body}\ndef test_after(): assert 0\n"
    ids = [f"test_d.py::{name}" for name in ("test_before", "test_dies", "test_after")]
    output = bench.run(bench.input({"test_d.py": source}, ids))
    found = output.outcomes()
    assert found[ids[0]] == PASS
    assert found[ids[1]][-1] == ("died", cause)
    assert found[ids[2]][1] == ("call", "failed")
    assert cause in output.step("pytest")["detail"]


def test_restarts_are_bounded(bench):
    source = "import os, pytest\n@pytest.mark.parametrize('n', range(5))\ndef test_dies(n): os._exit(1)\n"
    ids = [f"test_d.py::test_dies[{n}]" for n in range(5)]
    output = bench.run(bench.input({"test_d.py": source}, ids, restarts=1))
    assert len(output.outcomes()) == 2


def test_a_process_that_does_not_end_is_ended_and_its_verdict_kept(bench):
    source = "import threading, time\ndef test_it():\n    threading.Thread(target=time.sleep, args=(600,)).start()\n"
    output = bench.run(bench.input({"test_h.py": source}, ["test_h.py::test_it"]), exit_grace_s=0.5)
    assert output.outcomes() == {"test_h.py::test_it": PASS}
    assert output.step("pytest")["exit"] == 0
    assert "had to be ended" in output.step("pytest")["detail"]


def test_the_deadline_ends_a_test_that_hangs_and_keeps_the_others(bench):
    source = "import time\ndef test_quick(): pass\ndef test_hangs(): time.sleep(600)\n"
    ids = ["test_h.py::test_quick", "test_h.py::test_hangs"]
    output = bench.run(bench.input({"test_h.py": source}, ids), worker_deadline_s=36)
    assert output.outcomes()[ids[0]] == PASS
    assert output.outcomes()[ids[1]][-1] == ("died", "deadline")
    assert output.step("pytest")["status"] == "deadline"


def test_tests_see_no_secret_of_the_platform_and_what_was_passed_by_name(bench):
    source = """
import os
def test_env(device, runpod_artifacts):
    assert not [name for name in os.environ if name.startswith("RUNPOD_")]
    assert "rpa_platform_secret" not in str(dict(os.environ))
    assert os.environ["MODE"] == "fast"
    assert os.environ["PYTEST_RUNPOD_WORKER"] == "1"
    assert device == os.environ["PYTEST_RUNPOD_DEVICE"] == "cpu"
    (runpod_artifacts / "note.txt").write_text("kept")
"""
    output = bench.run(bench.input({"test_e.py": source}, ["test_e.py::test_env"], env={"MODE": "fast"}))
    assert output.outcomes() == {"test_e.py::test_env": PASS}
    assert [
        data for path, data in output.files.items() if path.startswith("artifacts/") and path.endswith("note.txt")
    ] == [b"kept"]


def test_nothing_is_executed_that_was_not_approved(bench, tmp_path):
    mark = tmp_path / "executed"
    files = {"test_x.py": f"open({str(mark)!r}, 'w')\ndef test_x(): pass\n"}

    def changed(**changes):
        value = bench.input(files, ["test_x.py::test_x"])
        value.update(changes)
        return value

    good = bench.input(files, ["test_x.py::test_x"])
    from pytest_runpod.core.archive import make_archive
    from pytest_runpod.core.manifest import PackedFile

    other = base64.b64encode(make_archive([PackedFile("test_x.py", b"import os\n")])).decode()
    more = base64.b64encode(
        make_archive([PackedFile("test_x.py", files["test_x.py"].encode()), PackedFile("more.py", b"")])
    ).decode()
    manifest = json.loads(good["manifest"])
    manifest["run"]["image"] = "another"
    wrong = [
        changed(archive=other),
        changed(archive=more),
        changed(archive="!"),
        changed(archive=""),
        changed(manifest=json.dumps(manifest)),
        changed(schema="pytest-runpod/2"),
        changed(env={"SECRET": "x"}),
    ]
    for value in wrong:
        output = bench.run(value)
        assert output.error is not None
        assert output.error.startswith("refused, nothing was executed")
    bench.input({"test_x.py": "other"}, [])  # another digest is the approved one now
    assert bench.run(good).error.startswith("refused")
    assert not mark.exists()


def test_a_notebook_runs_in_its_own_folder_and_comes_back_executed(bench):
    notebook = {
        "cells": [
            {"cell_type": "code", "id": "a", "metadata": {}, "execution_count": None, "outputs": [],
             "source": "import os\nprint(open('beside.txt').read(), os.environ['PYTEST_RUNPOD_DEVICE'])"},
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "nbformat": 4, "nbformat_minor": 5,
    }  # fmt: skip
    files = {"n/é b.ipynb": json.dumps(notebook), "n/beside.txt": "beside"}
    output = bench.run(bench.input(files, ["n/é b.ipynb::é b.ipynb"], args=["--nbmake"], plugins=["nbmake"]))
    assert output.outcomes() == {"n/é b.ipynb::é b.ipynb": PASS}
    (stream,) = output.json("notebooks/n/é b.ipynb")["cells"][0]["outputs"]
    assert "".join(stream["text"]) == "beside cpu\n"


def test_processes_of_xdist_run_on_the_worker(bench):
    source = "import pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_it(n, worker_id): assert worker_id[:2] == 'gw'\n"
    ids = [f"test_n.py::test_it[{n}]" for n in range(6)]
    output = bench.run(
        bench.input({"test_n.py": source}, ids[:4], args=["-n", "2"], plugins=["xdist", "xdist.looponfail"])
    )
    assert output.outcomes() == dict.fromkeys(ids[:4], PASS)


def test_an_id_that_is_not_there_is_named_with_the_error_of_its_file(bench):
    files = {"test_b.py": "import nothing_of_that_name\n", "test_f.py": "def test_f(): pass\n"}
    output = bench.run(bench.input(files, ["test_b.py::test_b", "test_f.py::test_f"]))
    assert output.outcomes() == {"test_f.py::test_f": PASS}
    (collected,) = [line for line in output.lines if line["kind"] == "collected"]
    assert collected["missing"] == ["test_b.py::test_b"]
    assert "nothing_of_that_name" in collected["errors"][0]["longrepr"]


def test_a_command_keeps_its_status_output_and_artifacts(bench):
    files = {
        "test_f.py": "def test_f(): pass\n",
        "tool.py": "import os, sys\nopen(os.environ['PYTEST_RUNPOD_ARTIFACTS'] + '/out.json', 'w').write('{}')\n"
        "print('said', sys.argv[1])\nsys.exit(3)\n",
    }
    run = {"commands": {"tool": "python tool.py {device}"}, "run_commands": ["tool"]}
    output = bench.run(bench.input(files, ["test_f.py::test_f"], run=run))
    assert (output.step("tool")["status"], output.step("tool")["exit"]) == ("failed", 3)
    assert output.files["artifacts/commands/tool/out.json"] == b"{}"
    assert b"said cpu" in output.files["logs/tool.txt"]
    assert output.error is None


def test_an_oversized_result_leaves_out_artifacts_first_and_names_them(bench):
    source = "import os\ndef test_big(runpod_artifacts):\n    (runpod_artifacts / 'big.bin').write_bytes(os.urandom(300_000))\n"
    output = bench.run(bench.input({"test_b.py": source}, ["test_b.py::test_big"]), max_result=100_000)
    assert output.outcomes() == {"test_b.py::test_big": PASS}
    assert [entry["path"].endswith("big.bin") for entry in output.value["left_out"]] == [True]


BIG = "import os\ndef test_big(): print(os.urandom(200_000).hex()); assert 0\ndef test_next(): pass\n"


def test_outcomes_that_would_not_fit_lose_the_middle_of_long_texts_and_say_how_much(bench):
    ids = ["test_b.py::test_big", "test_b.py::test_next"]
    output = bench.run(bench.input({"test_b.py": BIG}, ids), max_result=50_000)
    assert output.error is None
    assert output.outcomes() == {
        ids[0]: [("setup", "passed"), ("call", "failed"), ("teardown", "passed")],
        ids[1]: PASS,
    }
    reports = [line["report"] for line in output.lines if line["kind"] == "report"]
    (section,) = {content for report in reports for _, content in report["sections"]}
    assert "[... pytest-runpod cut 390,001 characters here ...]" in section
    assert len(section) < 10_100


def test_a_text_that_is_too_long_is_cut_while_it_is_reported_and_a_log_with_it(bench):
    source = "def test_big():\n    print('x' * 50_000)\n    assert 'a' * 60_000 == 'b'\n"
    output = bench.run(bench.input({"test_b.py": source}, ["test_b.py::test_big"]), max_text=20_000)
    call = next(
        line["report"] for line in output.lines if line["kind"] == "report" and line["report"]["when"] == "call"
    )
    assert len(call["sections"][0][1]) < 21_000
    assert call["_runpod.cut"] > 30_000
    log = output.files["logs/pytest.txt"]
    assert len(log) < 21_000
    assert b"bytes here ...]" in log
    assert log.rstrip().endswith(b"=")  # the end, with the summary, is kept


def test_outcomes_that_do_not_fit_at_all_are_an_error_with_a_summary(bench):
    ids = ["test_b.py::test_big", "test_b.py::test_next"]
    output = bench.run(bench.input({"test_b.py": BIG}, ids), max_result=500)
    assert "outcomes alone" in output.error
    assert output.value["summary"] == {"total": 2, "failed": 1, "passed": 1}


def test_progress_windows_hold_what_has_finished(bench):
    source = "import time\ndef test_1(): pass\ndef test_2(): time.sleep(1.5)\n"
    ids = ["test_p.py::test_1", "test_p.py::test_2"]
    bench.run(bench.input({"test_p.py": source}, ids))
    from pytest_runpod.core.wire import read_progress

    seen = [read_progress(update, "n" * 32) for update in bench.updates]
    assert None not in seen
    assert any(update.step == "pytest" and update.done == 1 for update in seen)


def test_the_project_is_installed_from_the_payload_and_imported_from_there(bench):
    files = {
        "pyproject.toml": '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "mypkg"\nversion = "9.9"\n[tool.hatch.build.targets.wheel]\npackages = ["src/mypkg"]\n',
        "src/mypkg/__init__.py": "",
        "tests/test_m.py": "import importlib.metadata, mypkg\ndef test_m(request):\n"
        "    assert mypkg.__file__.startswith(str(request.config.rootpath))\n"
        "    assert importlib.metadata.version('mypkg') == '9.9'\n",
    }
    project = {
        "name": "mypkg",
        "version": "9.9",
        "build_requires": ["hatchling"],
        "backend": "hatchling.build",
        "backend_path": [],
    }
    output = bench.run(bench.input(files, ["tests/test_m.py::test_m"], project=project))
    assert output.error is None
    assert output.outcomes() == {"tests/test_m.py::test_m": PASS}


def test_an_install_that_fails_is_an_infrastructure_error_with_its_words(bench):
    files = {"test_f.py": "def test_f(): pass\n"}
    project = {"name": "x", "version": "1", "build_requires": [], "backend": "no_such_backend", "backend_path": []}
    output = bench.run(bench.input(files, ["test_f.py::test_f"], project=project))
    assert "no_such_backend" in output.error
    assert output.step("environment")["status"] == "failed"
    assert b"no_such_backend" in output.files["logs/build_needs.txt"]
    assert output.outcomes() == {}


def test_the_death_of_the_last_test_starts_nothing_more(bench):
    source = "import os\ndef test_before(): pass\ndef test_dies(): os._exit(7)\n"
    ids = ["test_d.py::test_before", "test_d.py::test_dies"]
    output = bench.run(bench.input({"test_d.py": source}, ids))
    assert output.outcomes()[ids[1]][-1] == ("died", "exit status 7")
    assert [line["kind"] for line in output.lines].count("session") == 1
    assert output.step("pytest")["exit"] == 7


def test_a_fresh_process_that_passes_does_not_make_a_death_look_green(bench):
    source = "import os\ndef test_dies(): os._exit(0)\ndef test_after(): pass\n"
    ids = ["test_d.py::test_dies", "test_d.py::test_after"]
    output = bench.run(bench.input({"test_d.py": source}, ids))
    assert output.outcomes()[ids[1]] == PASS
    assert (output.step("pytest")["status"], output.step("pytest")["exit"]) == ("failed", 1)


@pytest.mark.parametrize(("maxfail", "ran"), [(1, 1), (2, 3), (3, 4)])
def test_a_death_counts_for_maxfail_and_what_is_left_of_it_goes_to_the_next_process(bench, maxfail, ran):
    source = "import os\ndef test_0(): os._exit(1)\ndef test_1(): pass\ndef test_2(): assert 0\ndef test_3(): pass\n"
    ids = [f"test_m.py::test_{n}" for n in range(4)]
    output = bench.run(bench.input({"test_m.py": source}, ids, args=[f"--maxfail={maxfail}"], maxfail=maxfail))
    assert sorted(output.outcomes()) == ids[:ran]


def test_a_finished_test_is_told_while_a_long_one_runs(bench):
    source = "import time\ndef test_1(): pass\ndef test_2(): pass\ndef test_3(): time.sleep(3)\n"
    ids = [f"test_p.py::test_{n}" for n in (1, 2, 3)]
    bench.run(bench.input({"test_p.py": source}, ids))
    assert any(update["step"] == "pytest" and update["done"] == 2 for update in bench.updates)


def test_a_session_that_lacks_something_is_refused(bench):
    value = bench.input({"test_f.py": "def test_f(): pass\n"}, ["test_f.py::test_f"])
    del value["session"]["display_env"]
    output = bench.run(value)
    assert output.error == "refused, nothing was executed: the session lacks display_env"
    assert output.value["schema"] == "pytest-runpod/1"


def test_nothing_named_like_the_platforms_own_reaches_the_tests(bench):
    files = {"test_f.py": "import os\ndef test_f(): assert not [n for n in os.environ if n.startswith('RUNPOD_')]\n"}
    refused = bench.run(bench.input(files, ["test_f.py::test_f"], env={"RUNPOD_API_KEY": "x"}))
    assert refused.error.startswith("refused")
    dropped = bench.run(bench.input(files, ["test_f.py::test_f"], display_env={"RUNPOD_API_KEY": "x"}))
    assert dropped.outcomes() == {"test_f.py::test_f": PASS}
