"""Coverage that pytest-cov has measured on the worker, handed to the pytest-cov of this session with local paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def measuring(config: pytest.Config) -> Any | None:
    """pytest-cov's controller of this session, if it measures."""
    return getattr(config.pluginmanager.get_plugin("_cov"), "cov_controller", None)


def expect_data_from_elsewhere(config: pytest.Config) -> None:
    """Keep coverage from warning that little was measured in this process, as pytest-cov does where xdist measures."""
    controller = measuring(config)
    if controller is not None:
        for name in ("_warn_no_data", "_warn_unimported_source", "_warn_preimported_source"):
            setattr(controller.cov, name, False)


def hand_over(config: pytest.Config, folder: Path, run: str, local: Callable[[str], str]) -> int:
    """Put what lies in *folder* where pytest-cov combines data at the end of its session. Returns how many files.

    Args:
        run: a name that no other data file has. local: turns a path of the worker into one here.
    """
    controller = measuring(config)
    found = sorted(folder.glob("data-*"))
    if controller is None:
        return 0
    base, branches = Path(controller.combining_cov.config.data_file), bool(controller.cov.config.branch)
    for number, source in enumerate(found):
        target = base.with_name(f"{base.name}.runpod-{run}-{number}")
        _localize(source, target, local, branches=branches)
    return len(found)


def _localize(source: Path, target: Path, local: Callable[[str], str], *, branches: bool) -> None:
    """Write *source* again as *target*. coverage insists that files which it combines are alike in measuring branches."""
    from coverage import CoverageData

    theirs, ours = CoverageData(basename=str(source)), CoverageData(basename=str(target))
    theirs.read()
    for context in sorted(theirs.measured_contexts()) or [""]:
        theirs.set_query_context(context)
        ours.set_context(context or None)
        for path in theirs.measured_files():
            if branches:
                ours.add_arcs({local(path): theirs.arcs(path) or []})
            else:
                ours.add_lines({local(path): theirs.lines(path) or []})
    ours.add_file_tracers(
        {local(path): tracer for path in theirs.measured_files() if (tracer := theirs.file_tracer(path))}
    )
    ours.write()
    theirs.close(force=True)
    ours.close(force=True)
