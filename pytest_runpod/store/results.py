"""The folder of results: it ignores itself in git, and holds what came back, checked, one file per member."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pytest_runpod.core.choice import CACHE_MARK
from pytest_runpod.core.unpack import Member
from pytest_runpod.errors import ResultsUnwritable
from pytest_runpod.store.atomic import write_atomic

CACHE_TEXT: Final = "Signature: 8a477f597d28d172789f06886806bc55\n# The results of a run of pytest-runpod.\n"


def save(folder: Path, name: str, data: bytes) -> None:
    """Write one file of ours into *folder*; make the folder, and let git ignore it, if it is new. Raises: ResultsUnwritable."""
    with _told(folder):
        prepare(folder)
        write_atomic(folder / name, data, mode=0o644)


def save_members(folder: Path, members: Iterable[Member]) -> None:
    """Write the members of a checked archive below *folder*. Their paths were checked by `core.unpack`.

    Raises: ResultsUnwritable: no room, no permission, or a link in *folder* leads out of it.
    """
    with _told(folder):
        prepare(folder)
        root = folder.resolve()
        for member in members:
            target = folder / member.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.parent.resolve().is_relative_to(root) or target.is_symlink():
                raise PermissionError(f"{member.path} would leave {folder} through a link")
            target.write_bytes(member.data)


def prepare(folder: Path) -> None:
    """Let git and everybody who packs folders, us too, pass this one by."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in ((".gitignore", "*\n"), (CACHE_MARK, CACHE_TEXT)):
        if not (folder / name).exists():
            (folder / name).write_text(text, encoding="utf-8")


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as no:
        raise ResultsUnwritable(
            "The results cannot all be written here. The job was billed.",
            looked_at=f"{folder}: {no}",
            todo="make room, or name another --runpod-output",
        ) from no
