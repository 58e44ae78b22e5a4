"""One lock per file that several processes write: a separate file beside it, so that replacing the file keeps the lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_runpod.errors import RunpodError

WAIT_S = 30.0


@contextmanager
def locked(path: Path, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock of *path*; the operating system releases it when the process dies.

    Raises: RunpodError: another process holds it for longer than *wait_s* seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{path}.lock", timeout=wait_s):
            yield
    except Timeout:
        raise RunpodError(
            f"{path.name} is locked by another process. Nothing was changed.",
            looked_at=f"{path}.lock, for {wait_s:g} s",
            todo="wait for the other run, or end it",
        ) from None
