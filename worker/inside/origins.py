"""Where the code under test was imported from: the payload, or something else."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest


class Origins:
    """Looks where the modules were imported from that come out of the project on the client."""

    def __init__(self, config: pytest.Config, control: dict[str, Any]) -> None:
        self.config, self.modules, self.root = config, control["modules"], os.path.realpath(control["root"])
        self.elsewhere: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self.elsewhere.update(imported_elsewhere(self.modules, self.root))
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output["runpod_elsewhere"] = self.elsewhere

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.elsewhere.update(getattr(node, "workeroutput", {}).get("runpod_elsewhere", {}))


def imported_elsewhere(names: list[str], root: str) -> dict[str, str]:
    """Which of *names* this process has imported from outside of *root*, and from where."""
    found = {}
    for name in names:
        module = sys.modules.get(name)
        place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
        if place is not None and not os.path.realpath(place).startswith(root + os.sep):
            found[name] = place
    return found
