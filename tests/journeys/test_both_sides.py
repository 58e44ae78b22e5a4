"""What one side has and the other has not: found before money is spent where it can be, told in plain words where not."""

import json
import re

import pytest

PLUGIN_METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: homemade\nVersion: 1.0\n",
    "entry_points.txt": "[pytest11]\nhomemade = homemade\n",
    "direct_url.json": json.dumps({"url": "file:///somewhere/homemade", "dir_info": {}}),
}
PASSES = "def test_it(): pass\n"


def outcomes(text: str) -> list[str]:
    return [line.split("  ")[0] for line in text.splitlines() if line.startswith("test_it.py::")]


def nothing_was_created(project, done) -> bool:
    return done.returncode == 10 and not project.receipts() and project.reserved() == 0


# --- before anything is created


PYPROJECT = """
[build-system]
requires = ["setuptools"]
[project]
name = "homemade"
"""


def installed(project) -> str:
    """Let the project pass for an installed one. Returns the folder that has to stand on PYTHONPATH."""
    metadata = project.root.parent / "site" / "homemade-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: homemade\nVersion: 1.0\n")
    (metadata / "direct_url.json").write_text(
        json.dumps({"url": project.root.as_uri(), "dir_info": {"editable": True}})
    )
    return str(metadata.parent)


def test_a_project_that_needs_another_python_is_refused(project):
    project.write(test_it=PASSES, **{"pyproject.toml": PYPROJECT + 'version = "1"\nrequires-python = ">=3.99"\n'})
    done = project.run(project.remote(), PYTHONPATH=installed(project))
    assert nothing_was_created(project, done), done.stdout
    assert "the project needs Python >=3.99" in done.stdout
    assert "Nothing was created, nothing was billed." in done.stdout
    prepared = project.run(
        project.command("--runpod-prepare", *project.ours), PYTHONPATH=str(project.root.parent / "site")
    )
    assert prepared.returncode == 0
    assert "A run from here would be refused:\n  the project needs Python >=3.99" in prepared.stdout


def test_sources_that_run_here_against_their_own_demand_run_there_too(project):
    project.write(test_it=PASSES, **{"pyproject.toml": PYPROJECT + 'version = "1"\nrequires-python = ">=3.99"\n'})
    assert "1 passed" in project.run(project.remote()).stdout


@pytest.mark.parametrize(
    ("arguments", "refused"), [([], True), (["-p", "no:homemade"], False), (["--runpod-requirements=homemade"], True)]
)
def test_a_plugin_that_comes_from_no_index_is_refused_unless_it_is_switched_off(project, tmp_path, arguments, refused):
    site = tmp_path / "site"
    (site / "homemade-1.0.dist-info").mkdir(parents=True)
    (site / "homemade.py").write_text("")
    for name, text in PLUGIN_METADATA.items():
        (site / "homemade-1.0.dist-info" / name).write_text(text)
    project.write(test_it=PASSES)
    done = project.run(project.remote(*arguments), PYTHONPATH=str(site))
    if not refused:
        assert "1 passed" in done.stdout, done.stdout
    elif arguments:  # named as a requirement it is asked of the index, which has no such thing: the worker says so
        assert done.returncode == 12
        assert "homemade" in done.stdout
    else:
        assert nothing_was_created(project, done), done.stdout
        assert "homemade 1.0 is installed here from file:///somewhere/homemade" in done.stdout


def test_a_plugin_by_name_that_is_not_sent_is_refused_and_one_of_the_environment_stays_here(project, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "my_plugin.py").write_text("")
    project.write(test_it=PASSES)
    path = str(tmp_path / "elsewhere")
    done = project.run(project.remote("-p", "my_plugin"), PYTHONPATH=path)
    assert nothing_was_created(project, done), done.stdout
    assert "-p my_plugin loads" in done.stdout
    assert "1 passed" in project.run(project.remote(), PYTHONPATH=path, PYTEST_PLUGINS="my_plugin").stdout


def test_a_plugin_of_the_project_that_the_environment_loads_is_loaded_there_too(project):
    project.write(
        my_plugin="import pytest\n@pytest.fixture\ndef answer(): return 42\n",
        test_it="def test_it(answer): assert answer == 42\n",
    )
    done = project.run(project.remote(), PYTHONPATH=str(project.root), PYTEST_PLUGINS="my_plugin")
    assert "1 passed" in done.stdout, done.stdout


def test_a_file_that_the_build_reads_and_that_is_not_sent_is_named(project):
    dynamic = 'dynamic = ["version"]\n[tool.setuptools.dynamic]\nversion = {file = "VERSION"}\n'
    project.write(test_it=PASSES, **{"pyproject.toml": PYPROJECT + dynamic})
    (project.root / "VERSION").write_text("1.0")
    done = project.run(project.remote(), PYTHONPATH=installed(project))
    assert nothing_was_created(project, done), done.stdout
    assert "the project's build reads VERSION, which is not sent: runpod_include = VERSION" in done.stdout


def test_one_of_two_tests_with_one_id_cannot_be_told_from_the_other_and_is_refused(project):
    project.write(
        test_it=PASSES,
        conftest="def pytest_collection_modifyitems(config, items):\n"
        "    config.hook.pytest_deselected(items=items[:1])\n    del items[:1]\n",
    )
    done = project.run(project.remote("--keep-duplicates", "test_it.py", "test_it.py"))
    assert done.returncode == 4
    assert "Several tests have one node id" in done.stderr + done.stdout
    assert not project.receipts()


def test_two_tests_with_one_id_both_run(project):
    project.write(test_it=PASSES)
    done = project.run(project.remote("--keep-duplicates", "test_it.py", "test_it.py"))
    assert "2 passed" in done.stdout, done.stdout


# --- found by the run


def test_what_only_the_worker_collects_is_shown_and_its_failures_count(project):
    project.write(
        test_it="import os, pytest\n"
        "@pytest.mark.parametrize('where', ['both'] + (['there only'] if os.environ.get('PYTEST_RUNPOD_WORKER') else []))\n"
        "def test_it(where): assert where == 'both'\n"
        "@pytest.mark.skipif('not os.environ.get(\"PYTEST_RUNPOD_WORKER\")')\n"
        "def test_other(): pass\n"
    )
    done = project.run(project.remote("-v"))
    assert done.returncode == 1
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "extra:    1 tests were collected there and not here: test_it.py::test_it[there only]" in done.stdout
    selected = project.run(project.remote("-k", "both"))
    assert "1 passed, 1 deselected" in selected.stdout or "1 passed, 1 skipped, 1 deselected" in selected.stdout


def test_what_a_plugin_has_deselected_here_is_not_extra_there(project):
    project.write(
        test_it="def test_1(): pass\ndef test_2(): assert 0\n",
        conftest="import os\ndef pytest_collection_modifyitems(config, items):\n"
        "    if not os.environ.get('PYTEST_RUNPOD_WORKER'):\n"
        "        config.hook.pytest_deselected(items=items[1:])\n        del items[1:]\n",
    )
    done = project.run(project.remote())
    assert done.returncode == 0, done.stdout
    assert "extra:" not in done.stdout


@pytest.mark.parametrize("order", ["", "test_it.py::test_it[b] test_it.py::test_it[a]"])
def test_the_order_of_parameters_does_not_matter(project, order):
    project.write(
        test_it="import os, pytest\nPLACES = ['a', 'b', 'c']\n"
        "@pytest.mark.parametrize('p', PLACES[::-1] if os.environ.get('PYTEST_RUNPOD_WORKER') else PLACES)\n"
        "def test_it(p): assert p != 'b'\n"
    )
    plain = project.run(project.command(*order.split(), "-v"))
    remote = project.run(project.remote(*order.split(), "-v"))
    assert outcomes(remote.stdout) == outcomes(plain.stdout), remote.stdout
    assert "test_it.py::test_it[b] FAILED" in outcomes(plain.stdout)
    assert remote.returncode == plain.returncode == 1


def test_a_failure_names_the_file_that_was_not_sent_and_sending_it_helps(project):
    project.write(test_it="def test_it():\n    with open('data/points.bin') as file: assert file.read()\n")
    (project.root / "data").mkdir()
    (project.root / "data" / "points.bin").write_text("x")
    done = project.run(project.remote())
    assert done.returncode == 1
    assert "data/points.bin is here, and was not sent" in done.stdout
    assert "runpod_include = data/points.bin" in done.stdout
    assert "1 passed" in project.run(project.remote("--runpod-include=data/points.bin")).stdout


def test_tests_that_ran_against_other_code_than_what_was_sent_are_not_green(project):
    project.write(
        conftest="import os, sys\nif not os.environ.get('PYTEST_RUNPOD_WORKER'):\n"
        "    sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'src'))\n",
        test_it="import editables\ndef test_it(): assert editables\n",
        **{"src/editables.py": ""},
    )
    done = project.run(project.remote())
    assert done.returncode == 14, done.stdout
    assert "The tests ran against other code than what was sent" in done.stdout
    assert "editables from" in done.stdout


def test_a_text_that_is_too_long_is_cut_and_says_how_much(project):
    project.write(test_it="def test_it():\n    print('x' * 3_000_000)\n    assert 0\n")
    done = project.run(project.remote())
    assert "1 failed" in done.stdout
    assert "[... pytest-runpod cut 2,000,001 characters here ...]" in done.stdout


def test_the_tests_find_the_same_versions_as_here(project):
    project.write(
        test_it="import importlib.metadata, sys\n"
        "def test_it(record_property):\n"
        "    for name in ('pytest', 'pluggy', 'pytest-xdist', 'nbmake', 'torch', 'pytest-rerunfailures'):\n"
        "        record_property(name, importlib.metadata.version(name))\n"
        "    record_property('python', sys.version)\n"
        "    assert importlib.metadata.version('idna')\n"
    )

    def properties(name):
        return re.findall(r'<property name="(.*?)" value="(.*?)"', (project.root / name).read_text())

    project.run(project.command("--junitxml=plain.xml"))
    project.run(project.remote("--junitxml=remote.xml", "--runpod-requirements=idna>=2"))
    assert properties("remote.xml") == properties("plain.xml")
    assert len(properties("plain.xml")) == 7


# --- a collection that is impossible here

THERE_ONLY = """
import os
if not os.environ.get("PYTEST_RUNPOD_WORKER"):
    import what_only_the_worker_has
"""


def test_a_collection_that_fails_here_says_so_and_costs_nothing(project):
    project.write(test_it=THERE_ONLY + PASSES)
    done = project.run(project.remote())
    assert done.returncode == 2
    assert "The collection failed on this machine. Nothing was created, nothing was billed." in done.stdout
    assert "--runpod-collect=worker" in done.stdout
    assert not project.receipts()


def test_the_worker_can_collect_and_its_tests_become_items_here(project):
    project.write(
        conftest=THERE_ONLY + "import pytest\n@pytest.fixture\ndef two(): return 2\n",
        test_it=THERE_ONLY
        + "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_it(n, two): assert n == two\n"
        "def test_skipped(): pytest.skip('no')\n",
    )
    arguments = ["-v", "-p", "no:cacheprovider"]
    plain = project.run(project.command(*arguments), PYTEST_RUNPOD_WORKER="1")
    there = project.run(project.remote("--runpod-collect=worker", "--junitxml=junit.xml", *arguments))
    assert there.returncode == plain.returncode == 1, there.stdout
    assert outcomes(there.stdout) == outcomes(plain.stdout)
    assert "collected 3 items" in there.stdout
    assert 'tests="4"' in (project.root / "junit.xml").read_text()


def test_an_error_of_the_collection_there_reads_as_one_here(project):
    project.write(test_it=THERE_ONLY + PASSES, test_broken="import nothing_of_that_name\n")
    done = project.run(project.remote("--runpod-collect=worker"))
    assert done.returncode == 2, done.stdout
    assert "ERROR collecting test_broken.py" in done.stdout
    assert "Interrupted: 1 error during collection" in done.stdout
    assert "without a result" not in done.stdout


def test_what_needs_a_collection_here_is_refused_where_the_worker_collects(project):
    project.write(test_it=PASSES)
    done = project.run(project.remote("--runpod-collect=worker", "--lf", "--collect-only"))
    assert done.returncode == 4
    assert "--lf, --collect-only needs a collection here" in done.stderr
    assert not project.receipts()


# --- coverage, and the CUDA context


def test_coverage_of_the_worker_is_that_of_a_plain_run(project):
    project.write(
        pkg="def a(x):\n    if x:\n        return 1\n    return 2\n\ndef b():\n    return 3\n",
        test_it="import pkg\ndef test_a(): assert pkg.a(1) == 1\ndef test_b(): assert pkg.b() == 3\n",
    )

    def table(text):
        return [line for line in text.splitlines() if line.startswith(("pkg", "TOTAL"))]

    arguments = ["--cov=pkg", "--cov-branch", "--cov-report=term-missing", "--cov-fail-under=99"]
    plain = project.run(project.command(*arguments))
    for more in ([], ["-n", "2"]):
        remote = project.run(project.remote(*arguments, *more))
        assert table(remote.stdout) == table(plain.stdout), remote.stdout
        assert remote.returncode == plain.returncode == 1
    assert len(table(plain.stdout)) == 2


def test_coverage_that_cannot_be_read_is_told_and_costs_no_result(project):
    project.write(
        pkg="def a():\n    return 1\n",
        test_it="import pkg\ndef test_a(): assert pkg.a() == 1\n",
        conftest="import os, pathlib\n"
        "def pytest_unconfigure():\n"
        "    if os.environ.get('PYTEST_RUNPOD_WORKER'):\n"
        "        for path in pathlib.Path(os.environ['PYTEST_RUNPOD_ARTIFACTS']).parent.glob('coverage/*'):\n"
        "            path.write_bytes(b'no data')\n",
    )
    done = project.run(project.remote("--cov=pkg"))
    assert "1 passed" in done.stdout, done.stdout
    assert "coverage: data of the worker cannot be read" in done.stdout


def test_a_poisoned_context_is_one_failure_that_is_blamed_on_its_test(project):
    project.write(
        test_it="""
broken = False
def use():
    if broken: raise RuntimeError("CUDA error: device-side assert triggered")
def test_before(): use()
def test_culprit():
    global broken
    broken = True
    use()
def test_after(): use()
"""
    )
    done = project.run(project.remote())
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "The CUDA context cannot be used after this test (device-side assert triggered)" in done.stdout
    plain = project.run(project.command())
    on = project.run(project.remote("--runpod-restarts=0"))
    assert "2 failed, 1 passed" in plain.stdout
    assert "2 failed, 1 passed" in on.stdout, on.stdout
    assert "This may be a consequence: test_it.py::test_culprit had poisoned the CUDA context" in on.stdout
