"""Read the checkout: which files are there, which git knows, and their bytes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pytest_runpod.core.choice import (
    ENVIRONMENT_MARKS,
    SKIPPED_AT_THE_ROOT,
    SKIPPED_FOLDERS,
    Candidate,
    Decision,
    decide,
)
from pytest_runpod.core.manifest import PackedFile
from pytest_runpod.core.notebook import strip_notebook
from pytest_runpod.errors import PayloadRefused


def survey(root: Path, include: tuple[str, ...], exclude: tuple[str, ...]) -> tuple[Decision, ...]:
    """Decide about every file below *root*; folders that hold no source are not entered."""
    tracked = tracked_files(root)
    return tuple(decide(candidate, include, exclude) for candidate in _candidates(root, tracked))


def pack(root: Path, decisions: tuple[Decision, ...]) -> tuple[PackedFile, ...]:
    """Read the files that were chosen, notebooks stripped.

    Raises: PayloadRefused: a file cannot be read, or its name cannot travel.
    """
    return tuple(_read(root, decision.path) for decision in decisions if decision.packed)


def tracked_files(root: Path) -> frozenset[str] | None:
    """List what git tracks below *root*; None where there is no git, or it tracks nothing there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", "--cached"],
            capture_output=True,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    names = frozenset(os.fsdecode(name) for name in done.stdout.split(b"\0") if name)
    return names or None


def _candidates(root: Path, tracked: frozenset[str] | None) -> Iterator[Candidate]:
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(name for name in folders if _holds_source(here / name, root))
        for name in sorted(names):
            path = here / name
            if path.is_file():
                relative = path.relative_to(root).as_posix()
                yield Candidate(relative, None if tracked is None else relative in tracked, _is_script(path))


def _holds_source(folder: Path, root: Path) -> bool:
    if folder.name in SKIPPED_FOLDERS or folder.name.endswith(".egg-info"):
        return False
    if folder.parent == root and folder.name in SKIPPED_AT_THE_ROOT:
        return False
    return not any((folder / mark).exists() for mark in ENVIRONMENT_MARKS)


def _is_script(path: Path) -> bool:
    if not os.access(path, os.X_OK):
        return False
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _read(root: Path, relative: str) -> PackedFile:
    path = root / relative
    try:
        relative.encode("utf-8")
        if not path.resolve().is_relative_to(root.resolve()):
            raise PayloadRefused(
                "A link leads out of the project. Nothing was created, nothing was sent.",
                looked_at=f"{relative} -> {path.resolve()}",
                todo="exclude it with runpod_exclude, or copy the file into the project",
            )
        data = path.read_bytes()
        executable = bool(path.stat().st_mode & 0o100)
    except (OSError, UnicodeEncodeError) as trouble:
        raise PayloadRefused(
            "A file that was chosen cannot be packed. Nothing was created, nothing was sent.",
            looked_at=f"{relative!r}: {trouble}",
            todo="make it readable, rename it, or exclude it with runpod_exclude",
        ) from trouble
    if relative.endswith(".ipynb"):
        data = strip_notebook(data)
    return PackedFile(relative, data, executable)
