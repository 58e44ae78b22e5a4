"""One lock per file that several processes write: a separate file beside it, so that replacing the file keeps the lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_runpod.errors import StillLocked

WAIT_S = 30.0


@contextmanager
def locked(path: Path, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock of *path*; the operating system releases it when the process dies.

    Raises: StillLocked: another process holds it for longer than *wait_s* seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A singleton, so that this process cannot lock itself out: a signal may end it between taking and entering.
        with FileLock(f"{path}.lock", timeout=wait_s, is_singleton=True):
            yield
    except Timeout:
        raise StillLocked(
            f"{path.name} is locked by another process. Nothing was changed.",
            looked_at=f"{path}.lock, for {wait_s:g} s",
            todo="wait for the other run, or end it",
        ) from None


@contextmanager
def marked(path: Path) -> Iterator[None]:
    """Hold *path* as a sign of life, for `is_marked` of other processes; it goes with the process, however that ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path, timeout=WAIT_S):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def is_marked(path: Path) -> bool:
    """Whether a living process holds *path*. The file is left: somebody may be about to hold it."""
    try:
        with FileLock(path, timeout=0):
            pass
    except Timeout:
        return True
    return False
