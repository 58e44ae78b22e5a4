"""Executed notebooks go to the results, their sources stay as they were sent."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest


class Notebooks:
    """Takes each executed notebook away and puts its source back: later tests find what was sent."""

    def __init__(self, control: dict[str, Any]) -> None:
        self.root, self.folder = Path(control["root"]), Path(control["notebooks"])
        self.source: bytes | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        path = item.path
        is_ours = path.suffix == ".ipynb" and path.is_relative_to(self.root) and path.is_file()
        self.source = path.read_bytes() if is_ours else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
        if call.when == "call" and self.source is not None:
            self._keep(item.path, self.source)
            self.source = None
        return (yield)

    def _keep(self, path: Path, source: bytes) -> None:
        executed = path.read_bytes() if path.is_file() else source
        if executed != source:
            target = self.folder / path.relative_to(self.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(executed)
            path.write_bytes(source)
