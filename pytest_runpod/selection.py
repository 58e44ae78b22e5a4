"""What pytest selected here, said so that a pytest elsewhere selects the same."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_runpod.core.wire import Session
from pytest_runpod.forwarding import Word, for_worker, positional, split_words

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Variables that change how pytest renders a report, and nothing else. They are no part of what is approved.
DISPLAY_VARIABLES: Final = (
    "CI", "BUILD_NUMBER", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "PYTEST_THEME", "PYTEST_THEME_MODE", "TERM",
)  # fmt: skip
OWN_PLUGIN: Final = "runpod"
# Needed on the worker in these very versions, if they are here; pytest's own needs follow from its pin.
TOOLING: Final = ("pytest", "pluggy", "nbmake", "ipykernel", "pytest-xdist", "nbclient", "nbformat")


def words_of(config: pytest.Config, arguments: Sequence[str]) -> tuple[Word, ...]:
    """Group this session's whole command line, addopts included, by pytest's own parser (there is no public way to it)."""
    return split_words(arguments, config._parser.optparser._actions)


def make_session(
    config: pytest.Config, items: Sequence[pytest.Item], words: Sequence[Word], project: Project
) -> Session:
    """Describe *items* and the way pytest was called."""
    root = config.rootpath
    invocation = config.invocation_params.dir
    return Session(
        root_name=root.name or "root",
        invocation_dir=_relative(invocation, root) or ".",
        inifile=_relative(config.inipath, root) if config.inipath else None,
        args=for_worker(words, root, invocation),
        paths=positional(words, root, invocation),
        ids=tuple(item.nodeid for item in items),
        python_path=_python_path(root, invocation),
        tooling=_tooling(config),
        plugins=_active_plugins(config),
        project=project.described(),
        display_env={name: os.environ[name] for name in DISPLAY_VARIABLES if name in os.environ},
        maxfail=int(config.getoption("maxfail", 0) or 0),
    )


class Project:
    """The root as a Python project: whether it is installed here, under which name and version, and what builds it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.table = _pyproject(root)

    def described(self) -> Mapping[str, Any] | None:
        """What the worker needs to install it as it is installed here; None if it is not installed here."""
        distribution = self.installed()
        if distribution is None:
            return None
        build = self.table.get("build-system", {})
        return {
            "name": distribution.metadata["Name"],
            "version": distribution.version,
            "build_requires": [str(line) for line in build.get("requires", ["setuptools"])],
            "backend": str(build.get("build-backend", "setuptools.build_meta:__legacy__")),
            "backend_path": [str(folder) for folder in build.get("backend-path", [])],
        }

    def installed(self) -> importlib.metadata.Distribution | None:
        if not any((self.root / name).is_file() for name in ("pyproject.toml", "setup.py", "setup.cfg")):
            return None
        name = self.table.get("project", {}).get("name") or self.table.get("tool", {}).get("poetry", {}).get("name")
        if isinstance(name, str):
            return _distribution(name)
        return next((found for found in importlib.metadata.distributions() if _installed_from(found, self.root)), None)


def _relative(path: Path, root: Path) -> str | None:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else None


def _python_path(root: Path, invocation: Path) -> tuple[str, ...]:
    """Folders below *root* that stand on `sys.path` by the way python was started: `python -m pytest`, PYTHONPATH."""
    named = [Path(entry).absolute() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if sys.path and sys.path[0] in ("", str(invocation)):
        named.insert(0, invocation)
    found = [_relative(folder, root) for folder in named]
    return tuple(dict.fromkeys(folder for folder in found if folder is not None))


def _active_plugins(config: pytest.Config) -> tuple[str, ...]:
    """Entry point names of the installed plugins that are active here, ours left out."""
    names = []
    for plugin, _ in config.pluginmanager.list_plugin_distinfo():
        name = config.pluginmanager.get_name(plugin)
        if name and name != OWN_PLUGIN:
            names.append(name)
    return tuple(sorted(set(names)))


def _tooling(config: pytest.Config) -> dict[str, str]:
    wanted = {_canonical(name) for name in TOOLING}
    wanted |= {_canonical(info.project_name) for _, info in config.pluginmanager.list_plugin_distinfo()}
    wanted.discard("pytest-runpod")
    found = ((name, _distribution(name)) for name in sorted(wanted))
    return {
        name: str(distribution.version) for name, distribution in found if distribution and _can_be_pinned(distribution)
    }


def _can_be_pinned(distribution: importlib.metadata.Distribution) -> bool:
    """A version of an index. What is installed from a folder or a repository here exists in no index."""
    return distribution.read_text("direct_url.json") is None


def _distribution(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _installed_from(distribution: importlib.metadata.Distribution, root: Path) -> bool:
    return root.as_uri() in (distribution.read_text("direct_url.json") or "")


def _pyproject(root: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def unpacked_files(items: Iterable[pytest.Item], root: Path, packed: frozenset[str]) -> tuple[str, ...]:
    """Files that hold selected items and are not in the payload, relative to *root* (absolute if they lie outside)."""
    missing: dict[str, None] = {}
    for item in items:
        relative = _relative(item.path, root)
        if relative is None or relative not in packed:
            missing[relative or str(item.path)] = None
    return tuple(missing)
