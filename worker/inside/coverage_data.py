"""The data of pytest-cov, kept for the client to combine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest


class Coverage:
    """Keeps the data that pytest-cov has measured here."""

    def __init__(self, control: dict[str, Any]) -> None:
        self.folder = Path(control["coverage"])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Outside of pytest-cov's own: by then the data of all processes are combined."""
        try:
            return (yield)
        finally:
            plugin = session.config.pluginmanager.get_plugin("_cov")
            controller = getattr(plugin, "cov_controller", None)
            if controller is not None:
                data = Path(controller.cov.get_data().data_filename())
                if data.is_file():
                    self.folder.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(data, self.folder / f"data-{os.getpid()}")
