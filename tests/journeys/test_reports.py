"""The same project, plain and remote: a user cannot tell from the reports where a test ran."""

import json
import os
import re
import signal

import pytest

MIXED = """
import logging, os, sys, unittest, warnings
import pytest

@pytest.fixture
def bad_setup():
    raise RuntimeError("setup broke")

@pytest.fixture
def bad_teardown():
    yield
    raise RuntimeError("teardown broke")

def helper(value):
    assert value == {"a": 1, "b": [1, 2, 3]}

def test_pass(): pass
def test_fail():
    print("to stdout")
    print("to stderr", file=sys.stderr)
    logging.getLogger("x").warning("logged")
    helper({"a": 1, "b": [1, 2, 4]})
def test_setup_error(bad_setup): pass
def test_teardown_error(bad_teardown): pass
def test_both(bad_teardown): assert 0
def test_skip(): pytest.skip("not today")
@pytest.mark.xfail(reason="known")
def test_xfail(): assert 0
@pytest.mark.xfail(reason="known")
def test_xpass(): pass
@pytest.mark.xfail(strict=True)
def test_strict(): pass
def test_warns(): warnings.warn("careful", UserWarning)
@pytest.mark.parametrize("value", ["a::b", "x y", "é", "\\0", ""])
def test_ids(value): assert value != "x y"
class Old(unittest.TestCase):
    def test_subtests(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertNotEqual(n, 1)
"""


def report_of(text: str) -> list[str]:
    """What pytest printed from the first section of errors on, less our own item and section, and less times."""
    text = re.sub(r"(?ms)^=+ runpod =+\n.*?(?=^=)", "", text[text.index("= ERRORS =") :])
    kept = [
        line for line in text.splitlines() if "runpod::cuda" not in line and not line.startswith("SKIPPED [1] runpod:")
    ]
    return [re.sub(r"\d+\.\d+s", "<time>", line) for line in kept[:-1]]


@pytest.mark.parametrize(
    "arguments", [["-rA", "-p", "no:cacheprovider"], ["-v", "--tb=short", "-rA", "-p", "no:cacheprovider"]]
)
def test_failures_sections_warnings_and_summary_are_those_of_plain_pytest(project, arguments):
    project.write(test_mixed=MIXED)
    plain = project.run(project.command(*arguments))
    remote = project.run(project.remote(*arguments))
    assert remote.returncode == plain.returncode == 1, remote.stdout
    assert report_of(remote.stdout) == report_of(plain.stdout)


def test_junit_on_the_client_is_that_of_plain_pytest(project):
    from junitparser.xunit2 import JUnitXml

    project.write(test_mixed=MIXED)
    project.run(project.command("--junitxml=plain.xml"))
    project.run(project.remote("--junitxml=remote.xml"))

    def cases(name):
        found = {}
        for suite in JUnitXml.fromfile(str(project.root / name)):
            for case in suite:
                if case.name != "runpod::cuda" and "runpod" not in (case.classname or ""):
                    found[case.classname, case.name] = [(type(one).__name__, one.message) for one in case.result]
        return found

    assert cases("remote.xml") == cases("plain.xml")
    assert len(cases("plain.xml")) > 10


def test_the_worker_ran_them_and_not_this_process(project):
    project.write(
        test_it="""
        import os
        def test_env():
            assert os.environ["PYTEST_RUNPOD_WORKER"] == "1"
            assert not [name for name in os.environ if name.startswith("RUNPOD_")]
        """.replace("\n        ", "\n")
    )
    done = project.run(project.remote("-v"))
    assert done.returncode == 0, done.stdout
    assert "NO CUDA validation" in done.stdout
    lines = [json.loads(line) for line in (project.root / "out" / "reports.jsonl").read_text().splitlines()]
    assert all("pid" in line and "host" in line for line in lines if line["kind"] == "report")


def test_last_failed_reruns_remotely_what_failed_remotely(project):
    project.write(test_it="def test_1(): pass\ndef test_2(): assert 0\ndef test_3(): pass\n")
    first = project.run(project.remote())
    assert "1 failed, 2 passed, 1 skipped" in first.stdout
    again = project.run(project.remote("--lf"))
    assert "1 failed, 1 skipped" in again.stdout
    assert "run-last-failure: rerun previous 1 failure" in again.stdout


def test_reports_appear_while_the_job_still_runs(project, serve):
    emulator = serve()
    project.write(test_it="import time\ndef test_quick(): pass\ndef test_slow(): time.sleep(600)\n")
    process = project.start(project.remote("-v", f"--approved-sha={project.digest()}"), emulator)
    seen = ""
    while "test_quick PASSED" not in seen:  # no line end follows before the next test has ended
        piece = os.read(process.stdout.fileno(), 4096).decode()
        assert piece, seen
        seen += piece
    assert emulator.ask("alive")["jobs"] != []
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert "1 passed" in output
    assert "test_slow" not in output


def test_x_stops_the_worker_and_what_was_not_run_has_no_result(project):
    project.write(test_it="import time\ndef test_1(): pass\ndef test_2(): assert 0\ndef test_3(): time.sleep(600)\n")
    done = project.run(project.remote("-x"))
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "test_3" not in done.stdout
    assert "cleanup:  confirmed" in done.stdout


def test_processes_of_xdist_run_there_and_one_job_is_submitted(project, serve):
    emulator = serve()
    project.write(
        test_it="import pytest\n@pytest.mark.parametrize('n', range(8))\n"
        "def test_it(n, worker_id): assert worker_id[:2] == 'gw'\n"
    )
    done = project.run(project.remote("-n", "2", f"--approved-sha={project.digest()}"), emulator)
    assert "8 passed, 1 skipped" in done.stdout, done.stdout
    assert [one for one in emulator.requests_seen("POST") if one.endswith("/run")] != []
    assert (
        len([one for one in emulator.requests_seen("POST") if one.endswith("/run") or one == "POST /v2/serverless"])
        == 2
    )


def test_a_test_that_ends_its_process_is_one_failure_and_the_rest_runs(project):
    project.write(test_it="import os\ndef test_1(): pass\ndef test_2(): os._exit(0)\ndef test_3(): pass\n")
    done = project.run(project.remote("-v"))
    assert done.returncode == 1
    assert "1 failed, 2 passed" in done.stdout
    assert "ended in the middle of it: exit status 0" in done.stdout


def test_an_id_that_the_worker_does_not_find_is_an_error_that_says_so(project):
    project.write(
        test_it="import os, pytest\n"
        "@pytest.mark.parametrize('where', ['both'] + ([] if os.environ.get('PYTEST_RUNPOD_WORKER') else ['here only']))\n"
        "def test_it(where): pass\n"
    )
    done = project.run(project.remote())
    assert done.returncode == 14
    assert "1 failed, 1 passed, 1 error" in done.stdout, done.stdout
    assert "the worker did not collect it" in done.stdout


def test_a_notebook_comes_back_executed_and_the_source_is_untouched(project):
    cell = {
        "cell_type": "code",
        "id": "a",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": "print(6 * 7)",
    }
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    source = json.dumps({"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})
    project.write(
        **{
            "n/demo.ipynb": source,
            "test_art.py": "def test_art(runpod_artifacts): (runpod_artifacts / 'a.txt').write_text('x')\n",
        }
    )
    done = project.run(project.remote("--nbmake"))
    assert "2 passed" in done.stdout, done.stdout
    assert "42" in (project.root / "out" / "notebooks" / "n" / "demo.ipynb").read_text()
    assert (project.root / "n" / "demo.ipynb").read_text() == source
    assert [path.name for path in (project.root / "out" / "artifacts").rglob("*.txt")] == ["a.txt"]


def test_warnings_as_errors_find_none_of_ours(project):
    project.write(
        test_it="def test_it(): pass\n",
        conftest="import gc\ndef pytest_sessionfinish(): gc.collect()\n",
        **{"pytest.ini": "[pytest]\nfilterwarnings = error\n"},
    )
    done = project.run(project.remote("-W", "error", "-p", "no:asyncio"), PYTHONWARNDEFAULTENCODING="1")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "warnings summary" not in done.stdout
