"""pytest's door: options, the marker and two fixtures for everybody; the remote run only with `--runpod`.

This module is loaded in every pytest run of every user: it imports the standard library and pytest, nothing of ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, Literal

import pytest
from _pytest.config import ConftestImportFailure

# name, metavar (None: a switch), help. All exist as ini key `runpod_*` and variable `PYTEST_RUNPOD_*` too.
OPTIONS = (
    ("provider", "NAME", "runpod (default), or emulator: the embedded provider, which needs no account"),
    ("device", "DEVICE", "cuda (default), or cpu: with the emulator only, and no CUDA validation"),
    ("gpu", "CARD", "GPU type, as the provider's catalog calls it (default: NVIDIA RTX A4000)"),
    ("image", "IMAGE", "container image, pinned by digest"),
    ("workers", "N", "most workers of the endpoint (default: 1)"),
    ("budget", "USD", "most that this run may reserve (default: 3)"),
    ("budget-total", "USD", "most that all runs in the ledger may use (default: 10)"),
    ("state", "FOLDER", "receipts, approvals and ledger (default: the user's state folder)"),
    ("ledger", "FILE", "the ledger (default: ledger.json in the state folder)"),
    ("receipt", "FILE", "use the endpoint that `pytest-runpod setup` made, or fetch the result of a run that died"),
    ("output", "FOLDER", "results (default: .pytest_runpod/<run>)"),
    ("accuracy", None, "also run the command named accuracy of runpod_commands"),
    ("collect", "WHERE", "local (default), or worker: where the tests' imports exist on the worker only"),
    ("restarts", "N", "fresh processes after a test has ended its own (default: 3)"),
    ("queue-timeout", "SECONDS", "longest wait for a worker to take the job (default: 600)"),
    ("request-timeout", "SECONDS", "longest wait for one answer of the provider (default: 60)"),
    ("include", "GLOB", "files to pack besides the usual kinds (may be repeated)"),
    ("exclude", "GLOB", "files not to pack (may be repeated)"),
    ("requirements", "REQ", "what the tests need on the worker, besides the project (may be repeated)"),
    ("env", "NAME", "environment variable to pass to the tests by name (may be repeated)"),
)
LISTS = ("include", "exclude", "requirements", "env")
TEXT: Literal["string"] = "string"
LINES: Literal["linelist"] = "linelist"
COMMANDS_HELP = "commands for the worker, one `name = command` a line; {device} is replaced"

HOOKS = (
    "pytest_runpod_payload_files",
    "pytest_runpod_endpoint_spec",
    "pytest_runpod_test_env",
    "pytest_runpod_results",
)

ARGUMENTS = pytest.StashKey[tuple[str, ...]]()
CUDA_REASON = "cuda: torch has no CUDA here"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("runpod", "run the collected tests on a CUDA worker of RunPod Serverless")
    group.addoption("--runpod", action="store_true", default=False, help="run the collected tests on the worker")
    group.addoption(
        "--approved-sha",
        dest="approved_sha",
        metavar="SHA256",
        help="digest of the payload that was reviewed and may run",
    )
    group.addoption(
        "--runpod-prepare",
        action="store_true",
        default=False,
        help="pack, print the digests and what would be sent, and stop: no network, nothing is created",
    )
    parser.addini("runpod_approved_sha", "digest of the payload that was reviewed", default=None)
    for name, metavar, text in OPTIONS:
        dest = f"runpod_{name.replace('-', '_')}"
        arguments: dict[str, Any] = {"dest": dest, "help": text}
        if metavar is None:
            arguments.update(action="store_true", default=False)
        else:
            arguments.update(action="append" if name in LISTS else "store", metavar=metavar, default=None)
        group.addoption(f"--runpod-{name}", **arguments)
        parser.addini(dest, text, type=LINES if name in LISTS else TEXT, default=None)
    parser.addini("runpod_commands", COMMANDS_HELP, type=LINES, default=None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> Generator[None, None, None]:
    early_config.stash[ARGUMENTS] = tuple(args)
    try:
        yield
    except ConftestImportFailure:
        if not early_config.known_args_namespace.runpod:
            raise
        if not _collects_on_the_worker(early_config):
            from pytest_runpod.errors import COLLECTION_FAILED_HERE

            sys.stderr.write(f"{COLLECTION_FAILED_HERE}\n")
            raise


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    """Make our hooks known once somebody implements one of them, so that nobody else pays for their import."""
    if any(hasattr(plugin, name) for name in HOOKS):
        from pytest_runpod import hookspecs

        hookspecs.make_known(manager)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "cuda: needs a CUDA device; skipped here where torch has none, and must run with --runpod"
    )
    if _wanted(config):
        from pytest_runpod import remote

        remote.enter(config, config.stash[ARGUMENTS])


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if config.getoption("runpod_prepare"):
        from pytest_runpod import remote

        return remote.prepare(config, config.stash[ARGUMENTS])
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is not None and _torch_device() != "cuda":
        raise pytest.skip.Exception(CUDA_REASON, _use_item_location=True)


@pytest.fixture(scope="session")
def device() -> str:
    """The device to test on: `cuda` on the worker, here what torch offers."""
    return _torch_device()


@pytest.fixture
def runpod_artifacts(request: pytest.FixtureRequest) -> Path:
    """A folder of this test's own; what is written there comes back from the worker. Here it is a temporary one."""
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    return factory.mktemp("artifacts")


def _wanted(config: pytest.Config) -> bool:
    return bool(config.getoption("runpod")) and not config.getoption("runpod_prepare")


def _collects_on_the_worker(early_config: pytest.Config) -> bool:
    """Where a conftest.py imports what only the worker has, that is no error here."""
    chosen = early_config.known_args_namespace.runpod_collect or os.environ.get("PYTEST_RUNPOD_COLLECT")
    return bool((chosen or early_config.getini("runpod_collect")) == "worker")


def _torch_device() -> str:
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"
