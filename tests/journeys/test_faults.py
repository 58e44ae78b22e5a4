"""A slice of all faults, each at another step. `benchmarks/faults.py` plays them all."""

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def _loaded(name):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


faults = _loaded("fault_scenarios")
SLICE = (
    "request: create, lost after effect",
    "request: create, cut before",
    "request: submit, 500 after effect",
    "request: fresh list, garbage",
    "signal: SIGKILL after create",
    "signal: SIGTERM at reservation",
    "signal: SIGHUP at report",
    "account: our id under another name",
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory, make_project, make_emulator, watchdogs):
    return faults.Stage(make_emulator(foreign_endpoints=faults.FOREIGN), make_project("faults"), watchdogs)


@pytest.mark.parametrize("scenario", [one for one in faults.scenarios() if one.id in SLICE], ids=lambda one: one.id)
def test_nothing_is_left_nobody_else_is_touched_and_the_books_are_true(stage, scenario):
    outcome = stage.play(scenario)
    assert outcome.problems == [], outcome.output


def test_there_are_scenarios_for_every_request_signal_and_account():
    table = faults.scenarios()
    assert len(table) == len({one.id for one in table}) >= 200
    assert {one.id for one in table}.issuperset(SLICE)
