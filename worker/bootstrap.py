"""First code on the image: may rely on Python 3.10 and its standard library, nothing else. Run by the loader, with `BUNDLE`.

Writes the worker's files, starts the wall timer, installs the SDK into an environment of its own, and becomes the SDK's
process: nothing stays above it that would hide a crash.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path


def main(bundle: Mapping[str, str]) -> None:
    """Install and become the worker. Ends the process with status 1 and one clear line if that cannot be done."""
    base = Path.home() / ".pytest-runpod"
    worker = write_files(bundle, base / "worker")
    sys.path.insert(0, str(worker))
    import limits

    os.environ["PYTEST_RUNPOD_WALL_AT"] = str(time.time() + limits.WORKER_WALL_S)
    start_wall_timer(limits.WORKER_WALL_S)
    before = torch_identity()
    began = time.monotonic()
    try:
        python = install_sdk(base, worker, limits.SDK_INSTALL_S)
    except (OSError, subprocess.SubprocessError, ValueError) as trouble:
        sys.exit(f"pytest-runpod: the SDK could not be installed: {describe(trouble)}")
    if torch_identity() != before:
        sys.exit("pytest-runpod: installing the SDK changed the image's torch")
    print(f"pytest-runpod: SDK ready after {time.monotonic() - began:.1f} s", flush=True)
    os.environ["PYTEST_RUNPOD_IMAGE_PYTHON"] = sys.executable
    os.environ["PYTEST_RUNPOD_IMAGE_PATHS"] = os.pathsep.join(package_folders())
    os.execv(python, [str(python), "-u", str(worker / "handler.py")])


def write_files(bundle: Mapping[str, str], folder: Path) -> Path:
    for name, text in bundle.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder


def start_wall_timer(seconds: float) -> None:
    """End this process from inside: signals with a default action do not reach process 1 of a container."""

    def expire() -> None:
        time.sleep(max(0.0, seconds))
        sys.stderr.write("pytest-runpod: the wall timer has expired\n")
        os._exit(1)

    threading.Thread(target=expire, daemon=True, name="wall-timer").start()


def install_sdk(base: Path, worker: Path, limit_s: float) -> Path:
    """Make the SDK's environment from the hash-locked list. Returns its python.

    Raises: OSError, SubprocessError: the list cannot be installed, or not within *limit_s* seconds.
    """
    until = time.monotonic() + limit_s
    uv = shutil.which("uv") or install_uv(base, worker, limit_s)
    folder = base / "sdk"
    python = folder / "bin" / "python"
    run([uv, "venv", "--quiet", "--no-project", "--python", sys.executable, str(folder)], until)
    lock = str(worker / "sdk.lock")
    run([uv, "pip", "install", "--quiet", "--python", str(python), "--no-deps", "--require-hashes", "-r", lock], until)
    return python


def install_uv(base: Path, worker: Path, limit_s: float) -> str:
    """Bring uv with the image's pip, by hash, into a folder of its own."""
    target = base / "uv"
    lock = str(worker / "uv.lock")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    run([*pip, "--target", str(target), "-r", lock], time.monotonic() + limit_s)
    return str(target / "bin" / "uv")


def run(command: list[str], until: float) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=max(1.0, until - time.monotonic()))


def describe(trouble: Exception) -> str:
    output = getattr(trouble, "stderr", None) or ""
    return f"{trouble}\n{output.strip()[-2000:]}" if output else str(trouble)


def torch_identity() -> tuple[str, str] | None:
    """Version and place of the image's torch, without importing it."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    spec = importlib.util.find_spec("torch")
    return version, str(spec.origin if spec else "")


def package_folders() -> list[str]:
    return [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]


if __name__ == "__main__":
    main(BUNDLE)  # type: ignore[name-defined]  # noqa: F821 - the loader defines it
