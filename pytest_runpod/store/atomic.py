"""Make a durable file one way: write beside it, flush to the disk, rename over it, flush the folder."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
from pathlib import Path


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace *path* by *data*, so that any reader and any crash sees the old file or the new one, whole.

    Raises: OSError: the folder cannot be written; *path* is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)  # noqa: PTH105 - the rename is the point, and os.replace is its name
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
        raise
    _sync_folder(path.parent)


def remove_leftovers(path: Path) -> None:
    """Remove what killed writers of *path* have left beside it. Only who holds the lock of *path* may call this."""
    for beside in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 12}"):
        beside.unlink(missing_ok=True)


def create_new(path: Path, data: bytes) -> None:
    """Write *path* durably, whole or not at all, if nothing is there yet.

    Raises: FileExistsError: something is; it was not touched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    write_atomic(beside, data)
    try:
        os.link(beside, path)
    finally:
        beside.unlink()
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # a folder cannot be opened there; NTFS journals the rename
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
