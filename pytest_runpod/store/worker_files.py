"""Find the worker: data inside the wheel, or the folder beside the package in a checkout."""

from __future__ import annotations

from pathlib import Path

from pytest_runpod.errors import PayloadRefused

PACKAGE = Path(__file__).resolve().parent.parent


def worker_files() -> dict[str, str]:
    """Return the worker's files, relative POSIX path to text, line ends as LF.

    Raises: PayloadRefused: the installation has lost them.
    """
    for folder in (PACKAGE / "_worker", PACKAGE.parent / "worker"):
        if (folder / "bootstrap.py").is_file():
            return {
                path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
                for path in sorted(folder.rglob("*"))
                if path.is_file() and "__pycache__" not in path.parts
            }
    raise PayloadRefused(
        "The worker's files are missing from this installation. Nothing was created, nothing was sent.",
        looked_at=str(PACKAGE / "_worker"),
        todo="install pytest-runpod again",
    )
