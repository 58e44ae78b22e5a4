"""The project's own tests: nothing of the user's state folder is touched, and no network but loopback."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Receipts, ledgers and approvals of the tests lie in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("PYTEST_RUNPOD_EMULATOR_OFFLINE", "1")
        for name in ("RUNPOD_API_KEY", "PYTEST_RUNPOD_MANAGEMENT_URL", "PYTEST_RUNPOD_JOBS_URL", "PYTEST_ADDOPTS"):
            patch.delenv(name, raising=False)
        yield
