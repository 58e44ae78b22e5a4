"""What pytest selected here, said so that a pytest elsewhere selects the same."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_runpod.core.wire import Session
from pytest_runpod.forwarding import Word, for_worker, positional, split_words
from pytest_runpod.options import RunSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Variables that change how pytest renders a report, and nothing else. They are no part of what is approved.
DISPLAY_VARIABLES: Final = (
    "CI", "BUILD_NUMBER", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "PYTEST_THEME", "PYTEST_THEME_MODE", "TERM",
)  # fmt: skip
# Selections by what an earlier run has left in the cache here: the worker must not add to them.
CACHE_SELECTION: Final = ("lf", "stepwise")
OWN_PLUGIN: Final = "runpod"
# Needed on the worker in these very versions, if they are here; pytest's own needs follow from its pin.
TOOLING: Final = ("pytest", "pluggy", "nbmake", "ipykernel", "pytest-xdist", "nbclient", "nbformat")


def words_of(config: pytest.Config, arguments: Sequence[str]) -> tuple[Word, ...]:
    """Group this session's whole command line, addopts included, by pytest's own parser (there is no public way to it)."""
    return split_words(arguments, config._parser.optparser._actions)


def make_session(
    config: pytest.Config,
    settings: RunSettings,
    items: Sequence[pytest.Item],
    words: Sequence[Word],
    packed: frozenset[str],
    deselected: Iterable[str],
) -> Session:
    """Describe *items* and the way pytest was called.

    Args:
        packed: paths of the payload, relative to the root. deselected: ids that were collected here and are not to run.
    """
    root = config.rootpath
    invocation = config.invocation_params.dir
    there = settings.collect == "worker"
    return Session(
        root_name=root.name or "root",
        invocation_dir=_relative(invocation, root) or ".",
        inifile=_relative(config.inipath, root) if config.inipath else None,
        args=(*for_worker(words, root, invocation), *_plugins_of_the_environment(config, root, packed)),
        paths=positional(words, root, invocation),
        ids=None if there else tuple(item.nodeid for item in items),
        python_path=_python_path(root, invocation),
        tooling=_tooling(config, words),
        plugins=_active_plugins(config),
        project=Project(root).described(),
        display_env={name: os.environ[name] for name in DISPLAY_VARIABLES if name in os.environ},
        maxfail=int(config.getoption("maxfail", 0) or 0),
        extras=not there and not any(config.getoption(name, False) for name in CACHE_SELECTION),
        deselected=tuple(deselected),
        modules=_project_modules(root, packed),
        restarts=settings.restarts,
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

    def requires_python(self) -> str | None:
        """Of the sources if they say so, else of what is installed."""
        stated = self.table.get("project", {}).get("requires-python")
        installed = self.installed()
        return stated or (installed.metadata["Requires-Python"] if installed is not None else None)

    def files_for_the_build(self) -> tuple[str, ...]:
        """Files that `pyproject.toml` names and a build backend reads; paths relative to the root."""
        project, tool = self.table.get("project", {}), self.table.get("tool", {})
        named: list[Any] = [project.get("readme"), project.get("license")]
        named += tool.get("setuptools", {}).get("dynamic", {}).values()
        named.append({"file": tool.get("hatch", {}).get("version", {}).get("path")})
        files: list[Any] = [project["readme"]] if isinstance(project.get("readme"), str) else []
        for entry in named:
            file = entry.get("file") if isinstance(entry, dict) else None
            files += file if isinstance(file, list) else [file]
        return tuple(str(file) for file in files if file)

    def installed(self) -> importlib.metadata.Distribution | None:
        """The distribution that was installed from this root; one of the same name from an index is none of it."""
        if not any((self.root / name).is_file() for name in ("pyproject.toml", "setup.py", "setup.cfg")):
            return None
        name = self.table.get("project", {}).get("name") or self.table.get("tool", {}).get("poetry", {}).get("name")
        if isinstance(name, str):
            named = _distribution(name)
            return named if named is not None and _is_local(named, self.root) else None
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


def plugins_by_name(config: pytest.Config, words: Iterable[Word]) -> dict[str, Path | None]:
    """Plugins that `-p` loads, with their files; None for one that comes with an entry point or that has no file."""
    names = [word.tokens[-1].removeprefix("-p").strip() for word in words if word.dest == "plugins"]
    known = {id(plugin) for plugin, _ in config.pluginmanager.list_plugin_distinfo()}
    found: dict[str, Path | None] = {}
    for name in names:
        plugin = config.pluginmanager.get_plugin(name)
        if plugin is not None and not name.startswith("no:"):
            file = None if id(plugin) in known else getattr(plugin, "__file__", None)
            found[name] = Path(file) if file else None
    return found


def distribution_of(module: str) -> str | None:
    """The distribution that *module* comes from, if it comes from one."""
    names = importlib.metadata.packages_distributions().get(module.partition(".")[0], ())
    return next(iter(names), None)


def needed_distributions(config: pytest.Config, words: Iterable[Word]) -> dict[str, importlib.metadata.Distribution]:
    """pytest, its tools and every distribution of an active plugin, by name: the worker needs them in these versions."""
    wanted = {canonical(name) for name in TOOLING}
    wanted |= {canonical(info.project_name) for _, info in config.pluginmanager.list_plugin_distinfo()}
    named = (distribution_of(name) for name, path in plugins_by_name(config, words).items() if path is not None)
    wanted |= {canonical(name) for name in named if name is not None}
    wanted.discard("pytest-runpod")
    found = ((name, _distribution(name)) for name in sorted(wanted))
    return {name: distribution for name, distribution in found if distribution is not None}


def _tooling(config: pytest.Config, words: Iterable[Word]) -> dict[str, str]:
    needed = needed_distributions(config, words)
    return {name: str(found.version) for name, found in needed.items() if _can_be_pinned(found)}


def _plugins_of_the_environment(config: pytest.Config, root: Path, packed: frozenset[str]) -> Iterator[str]:
    """`-p NAME` for what the variable PYTEST_PLUGINS loads here, as far as it is sent or installed there."""
    for name in filter(None, (part.strip() for part in os.environ.get("PYTEST_PLUGINS", "").split(","))):
        file = getattr(config.pluginmanager.get_plugin(name), "__file__", None)
        sent = file is not None and _relative(Path(file), root) in packed
        if sent or distribution_of(name) is not None:
            yield from ("-p", name)


def _project_modules(root: Path, packed: frozenset[str]) -> tuple[str, ...]:
    """Top-level modules that this process has imported out of files that are sent."""
    names = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." not in name and name != "__main__" and file and _relative(Path(file), root) in packed:
            names.append(name)
    return tuple(sorted(names))


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


def _is_local(distribution: importlib.metadata.Distribution, root: Path) -> bool:
    """From the root, or from a wheel that was built of it, or (`setup.py develop`) with its metadata in the root."""
    origin = distribution.read_text("direct_url.json") or ""
    return '"file:' in origin or Path(str(distribution.locate_file(""))).is_relative_to(root)


def _pyproject(root: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def unpacked_files(items: Iterable[pytest.Item], root: Path, packed: frozenset[str]) -> tuple[str, ...]:
    """Files that hold selected items and are not in the payload, relative to *root* (absolute if they lie outside)."""
    missing: dict[str, None] = {}
    for item in items:
        relative = _relative(item.path, root)
        if relative is None or relative not in packed:
            missing[relative or str(item.path)] = None
    return tuple(missing)
