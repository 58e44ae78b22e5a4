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


def hand_over(config: pytest.Config, folder: Path, run: str, local: Callable[[str], str]) -> str | None:
    """Put what lies in *folder* where pytest-cov combines data at the end of its session.

    Args:
        run: a name that no other data file has. local: turns a path of the worker into one here.
    Returns: what is wrong with the figures that pytest-cov will show; None if nothing is, or if it does not measure.
    """
    controller = measuring(config)
    if controller is None:
        return None
    from coverage.exceptions import CoverageException

    base, branches = Path(controller.combining_cov.config.data_file), bool(controller.cov.config.branch)
    found = sorted(folder.glob("data-*"))
    for number, source in enumerate(found):
        target = base.with_name(f"{base.name}.runpod-{run}-{number}")
        try:
            _localize(source, target, local, branches=branches)
        except CoverageException as damage:
            target.unlink(missing_ok=True)
            return f"data of the worker cannot be read: {damage}; the figures lack them"
    return None if found else "no data came back from the worker; the figures are of the collection here only"


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
