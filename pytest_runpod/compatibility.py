"""What would be otherwise on the worker than here, found before it costs anything; every difference at once."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from pytest_runpod.errors import PayloadRefused
from pytest_runpod.forwarding import Word
from pytest_runpod.options import RunSettings
from pytest_runpod.selection import Project, canonical, distribution_of, needed_distributions, plugins_by_name


def check(config: pytest.Config, settings: RunSettings, words: Iterable[Word], packed: frozenset[str]) -> None:
    """Refuse a run that would be another one there. Raises: PayloadRefused: with every difference."""
    problems = differences(config, settings, words, packed)
    if problems:
        raise PayloadRefused(
            "The worker would not run the same tests in the same way. Nothing was created, nothing was billed.",
            looked_at="\n             ".join(problems),
            todo="see each line",
        )


def differences(
    config: pytest.Config, settings: RunSettings, words: Iterable[Word], packed: frozenset[str]
) -> tuple[str, ...]:
    """Compare Python, pytest, its plugins and the project's build with what the worker can have.

    Args:
        packed: paths of the payload, relative to the root. Returns: one line a difference, with what to do.
    """
    project = Project(settings.root)
    return (
        *_python_differs(config, settings, words, project),
        *_tools_without_an_index(config, settings, words, project),
        *_plugins_that_stay_here(config, settings.root, words, packed),
        *_build_that_cannot_work(project, packed),
    )


def image_python(settings: RunSettings) -> str | None:
    """The Python of the image: the embedded provider's is this one, others say it in their tag; None if they do not.

    A tag tells no patch level: the highest is assumed.
    """
    if settings.provider == "emulator":
        return platform.python_version()
    found = re.search(r"py(?:thon)?(3)\.?(\d{1,2})(?!\d)", settings.image.partition("@")[0])
    return f"{found[1]}.{found[2]}.99" if found else None


def _python_differs(
    config: pytest.Config, settings: RunSettings, words: Iterable[Word], project: Project
) -> Iterator[str]:
    version = image_python(settings)
    if version is None:
        return
    wanted = {"the project": _python_of(project)}
    wanted.update(
        {name: found.metadata["Requires-Python"] for name, found in needed_distributions(config, words).items()}
    )
    for name, specifier in wanted.items():
        if specifier and not _fits(version, str(specifier)):
            shown = version.removesuffix(".99")
            yield f"{name} needs Python {specifier}, the image has {shown}: choose another image (--runpod-image)"


def _python_of(project: Project) -> str | None:
    """What the project demands; nothing if it is not installed, and this Python does not meet the demand either."""
    specifier = project.requires_python()
    if specifier and project.installed() is None and not _fits(platform.python_version(), specifier):
        return None
    return specifier


def _fits(version: str, specifier: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except InvalidSpecifier:
        return True  # the installer will say


def _tools_without_an_index(
    config: pytest.Config, settings: RunSettings, words: Iterable[Word], project: Project
) -> Iterator[str]:
    """pytest and its plugins travel as versions of an index: what was installed from elsewhere has none."""
    own = project.installed()
    skipped = {canonical(own.metadata["Name"])} if own is not None else set()
    skipped |= {name for line in settings.requirements if (name := _required(line))}
    for name, found in needed_distributions(config, words).items():
        origin = _origin(found)
        if origin is not None and name not in skipped:
            yield (
                f"{name} {found.version} is installed here from {origin}, where the worker cannot get it: name it in "
                f"runpod_requirements, or switch the plugin off (-p no:NAME)"
            )


def _origin(found: importlib.metadata.Distribution) -> str | None:
    text = found.read_text("direct_url.json")
    return None if text is None else str(json.loads(text).get("url", "an unknown place"))


def _required(line: str) -> str | None:
    try:
        return canonical(Requirement(line).name)
    except InvalidRequirement:
        return None


def _plugins_that_stay_here(
    config: pytest.Config, root: Path, words: Iterable[Word], packed: frozenset[str]
) -> Iterator[str]:
    for name, path in plugins_by_name(config, words).items():
        if path is None or distribution_of(name) is not None:
            continue
        if not path.is_relative_to(root) or path.relative_to(root).as_posix() not in packed:
            yield (
                f"-p {name} loads {path}, which is not sent: move it into the project, or name it in runpod_include; "
                "a plugin for this machine alone can be loaded by PYTEST_PLUGINS"
            )


def _build_that_cannot_work(project: Project, packed: frozenset[str]) -> Iterator[str]:
    """The project is installed there without build isolation, from the payload alone, and without version control."""
    if project.installed() is None:
        return
    for path in project.files_for_the_build():
        if path not in packed and (project.root / path).exists():
            yield f"the project's build reads {path}, which is not sent: runpod_include = {path}"
    tool: dict[str, Any] = project.table.get("tool", {})
    build = project.described() or {}
    backend = {_required(str(line)) for line in build.get("build_requires", ())}
    if "versioningit" in backend and "default-version" not in tool.get("versioningit", {}):
        yield (
            "the project's version comes from version control by versioningit, which takes it from nowhere else: "
            "set `default-version` in [tool.versioningit]"
        )
