"""What stands for the container image: a fresh environment that holds the packages of this interpreter, less editable installs.

Its `site-packages` is a folder of links to the packages of the environment that runs the emulator. What is installed there in
editable form points into a checkout, and a worker that sees the checkout would test the wrong code: it is left out, with its
metadata, and so are `.pth` files.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import platformdirs

HOST_VARIABLES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
)  # and PIP_*, UV_*: where packages come from here
CUDA_PREFIXES = ("CUDA_", "NVIDIA_", "LD_LIBRARY_PATH")


def build_image(folder: Path) -> Path:
    """Make the environment in *folder*. Returns its folder of programs, which comes first on the workers' PATH."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, capture_output=True)
    target = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    hidden = _editable_metadata()
    for source in dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))):
        for entry in Path(source).iterdir():
            link = target / entry.name
            if (
                entry.suffix != ".pth"
                and entry.name not in hidden
                and entry.name != "__pycache__"
                and not link.exists()
            ):
                link.symlink_to(entry)
    programs = folder / "bin"
    uv = _uv_program()
    if uv is not None:
        (programs / "uv").symlink_to(uv)
    return programs


def image_environment(programs: Path) -> dict[str, str]:
    """The variables that the image itself sets; the platform and the endpoint add theirs."""
    own = Path(sysconfig.get_path("scripts"))
    paths = [str(programs), str(own), "/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"]
    env = {
        "PATH": os.pathsep.join(paths),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR") or str(download_cache()),
        "UV_LINK_MODE": "symlink",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    for name, value in os.environ.items():
        if name in HOST_VARIABLES or name.startswith(("PIP_", "UV_", *CUDA_PREFIXES)):
            env[name] = value
    if os.environ.get("PYTEST_RUNPOD_EMULATOR_OFFLINE"):
        env["UV_OFFLINE"] = "1"
    return {name: value for name, value in env.items() if value}


def download_cache() -> Path:
    """Packages that workers have downloaded before: what a warm host would have at hand."""
    return Path(platformdirs.user_cache_dir("pytest-runpod", appauthor=False)) / "uv"


def _editable_metadata() -> set[str]:
    """Folder names of the metadata of distributions that are installed in editable form."""
    names = set()
    for distribution in importlib.metadata.distributions():
        text = distribution.read_text("direct_url.json")
        if text and json.loads(text).get("dir_info", {}).get("editable"):
            names.add(Path(str(distribution._path)).name)  # type: ignore[attr-defined]  # no public name for the folder
    return names


def _uv_program() -> str | None:
    beside = Path(sysconfig.get_path("scripts")) / "uv"
    return str(beside) if beside.is_file() else shutil.which("uv")


def warm_cache(lock: str) -> None:
    """Download what *lock* names, so that workers start without the network. Raises: CalledProcessError: it is not to be had."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "sdk.lock").write_text(lock, encoding="utf-8")
        programs = build_image(place / "image")
        env = {name: value for name, value in image_environment(programs).items() if name != "UV_OFFLINE"}
        python = place / "sdk" / "bin" / "python"
        for words in (
            ["venv", "--quiet", "--no-project", "--python", sys.executable, str(place / "sdk")],
            [
                "pip",
                "install",
                "--quiet",
                "--python",
                str(python),
                "--no-deps",
                "--require-hashes",
                "-r",
                str(place / "sdk.lock"),
            ],
        ):
            subprocess.run([str(programs / "uv"), *words], check=True, env={**env, "HOME": folder})
        # uv links what lies in its cache: compiled once there, the SDK is not compiled again by each worker that starts.
        subprocess.run(
            [sys.executable, "-m", "compileall", "-q", env["UV_CACHE_DIR"]], check=False, stdout=subprocess.DEVNULL
        )
