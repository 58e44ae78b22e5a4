"""Hooks for a project's conftest.py: what it may want to change about a run. None is called without `--runpod`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_runpod.core.cloud import EndpointSpec
    from pytest_runpod.core.manifest import PackedFile


@pytest.hookspec
def pytest_runpod_payload_files(config: pytest.Config, files: list[PackedFile]) -> None:
    """Add, replace or remove files before the payload is digested: change *files* in place.

    What is added here is part of what must be approved.
    """


@pytest.hookspec(firstresult=True)
def pytest_runpod_endpoint_spec(config: pytest.Config, spec: EndpointSpec) -> EndpointSpec | None:
    """Return another endpoint than *spec* (`dataclasses.replace`): its disk, CUDA floor, excluded cards, scaler, variables.

    What the approval, the reservation and the ownership hang on is refused: name, image, start command, pool, numbers of
    workers and cards, time-outs, and the variables that begin with PYTEST_RUNPOD_.
    """


@pytest.hookspec
def pytest_runpod_test_env(config: pytest.Config, env: dict[str, str]) -> None:
    """Change the variables that the tests get on the worker, in place. Only names that `runpod_env` lists travel."""


@pytest.hookspec
def pytest_runpod_results(config: pytest.Config, folder: Path, summary: Mapping[str, object]) -> None:
    """The results lie in *folder*: upload them, compare them, tell somebody."""


def make_known(manager: pytest.PytestPluginManager) -> None:
    """Add these hooks to *manager*, once."""
    known = getattr(manager.hook, "pytest_runpod_results", None)
    if known is None or not known.has_spec():  # a conftest.py that implements it makes its name known, and no more
        manager.add_hookspecs(sys.modules[__name__])
