"""pytest's door on the worker: may rely on pytest 8 or newer. Copied, with its folder, into the tests' environment.

The control file (docs/wire.md, section 7) says what is wanted.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from . import hooks
from .coverage_data import Coverage
from .cuda_context import CudaContext
from .encodable import Encodable
from .notebooks import Notebooks
from .origins import Origins
from .report_log import ReportLog
from .selection import Selection

CONTROL_VARIABLE = "PYTEST_RUNPOD_CONTROL"
INI_KEYS = (
    "provider", "device", "gpu", "image", "workers", "budget", "budget_total", "approved_sha", "accuracy", "state", "ledger",
    "receipt", "output", "collect", "against", "restarts", "queue_timeout", "request_timeout",
)  # fmt: skip
INI_LISTS = ("include", "exclude", "requirements", "env", "commands")
CONTROL_PATH = os.environ.pop(CONTROL_VARIABLE, "")  # not for the tests, and not for a pytest that they start


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    for key in INI_KEYS:
        parser.addini(f"runpod_{key}", "read by the client", default=None)
    for key in INI_LISTS:
        parser.addini(f"runpod_{key}", "read by the client", type="linelist", default=None)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda: needs a CUDA device")
    workerinput = getattr(config, "workerinput", None)
    path = workerinput["runpod_control"] if workerinput is not None else CONTROL_PATH
    if path:
        control = json.loads(Path(path).read_text(encoding="ascii"))
        config.pluginmanager.register(Selection(control), "runpod-selection")
        config.pluginmanager.register(Notebooks(control), "runpod-notebooks")
        config.pluginmanager.register(CudaContext(control), "runpod-cuda-context")
        origins = Origins(config, control)
        config.pluginmanager.register(origins, "runpod-origins")
        if workerinput is None:
            config.pluginmanager.register(ReportLog(config, control, path, origins), "runpod-report-log")
            config.pluginmanager.register(Coverage(control), "runpod-coverage")
        else:
            config.pluginmanager.register(Encodable(), "runpod-encodable")


@pytest.fixture(scope="session")
def device() -> str:
    """The device to test on."""
    return os.environ["PYTEST_RUNPOD_DEVICE"]


@pytest.fixture
def runpod_artifacts(request: pytest.FixtureRequest) -> Path:
    """A folder of this test's own; what is written there comes back."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", request.node.nodeid).strip("._")[:120] or "test"
    base = Path(os.environ["PYTEST_RUNPOD_ARTIFACTS"])
    folder = next(
        path for path in (base / f"{name}{'' if n == 1 else f'_{n}'}" for n in range(1, 10_000)) if not path.exists()
    )
    folder.mkdir(parents=True)
    return folder
