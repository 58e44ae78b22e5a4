"""Write `worker/sdk.lock`: the worker SDK and what it needs to serve jobs, one hash per file that some worker may take.

    python benchmarks/lock_sdk.py            # resolve runpod==1.12.0 anew; writes worker/sdk.lock and worker/uv.lock

`worker/uv.lock` is the installer, for images that do not bring it.

The SDK's own list of needs (a hundred distributions, cloud storage and a web framework among them) is not what serving jobs
takes: TRIMMED was found by importing `runpod.serverless` into an empty environment until it worked.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SDK = "runpod==1.12.0"
TRIMMED = (
    "aiohappyeyeballs", "aiohttp", "aiohttp-retry", "aiosignal", "async-timeout", "attrs", "backoff", "bcrypt", "certifi", "cffi",
    "cryptography", "frozenlist", "idna", "multidict", "paramiko", "propcache", "py-cpuinfo", "pynacl", "requests", "tomli",
    "tomlkit", "tqdm", "tqdm-loggable", "typing-extensions", "urllib3", "yarl",
)  # fmt: skip
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "linux x86_64": [f"manylinux_2_{minor}_x86_64" for minor in (34, 28, 17)] + ["manylinux2014_x86_64"],
    "linux aarch64": [f"manylinux_2_{minor}_aarch64" for minor in (34, 28, 17)] + ["manylinux2014_aarch64"],
    "macOS arm64": ["macosx_14_0_arm64", "macosx_11_0_arm64", "macosx_10_9_universal2"],
}


def resolved_pins() -> list[str]:
    """Let uv resolve the SDK as published, and keep the versions of the trimmed set."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "in.txt"
        wanted.write_text(f"{SDK}\nasync-timeout\ntomli\n")
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
        done = subprocess.run(
            [*command, "--python-version", "3.10", str(wanted)], capture_output=True, text=True, check=True
        )
    pins = dict(line.split(" ")[0].split("==") for line in done.stdout.splitlines() if "==" in line)
    return [SDK, *(f"{name}=={pins[name]}" for name in TRIMMED)]


def hashes_for(pins: list[str], python: str, tags: list[str]) -> dict[str, str]:
    """Ask pip which wheel of each pin this Python on this platform takes, and that file's SHA-256."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--dry-run",
        "--ignore-installed",
        "--no-deps",
        "--report",
        "-",
    ]
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}", "--target=unused"]
    command += [f"--platform={tag}" for tag in tags]
    done = subprocess.run([*command, *pins], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"Python {python} on {tags[0]}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    return {
        f"{entry['metadata']['name'].lower().replace('_', '-')}=={entry['metadata']['version']}": (
            entry["download_info"]["archive_info"]["hashes"]["sha256"]
        )
        for entry in report["install"]
    }


def locked(pins: list[str]) -> str:
    """One line per pin, with the hash of each file that some worker may take."""
    cells = [(python, tags) for python in PYTHONS for tags in PLATFORMS.values()]
    found: dict[str, set[str]] = {}
    with ThreadPoolExecutor(4) as pool:
        for answer in pool.map(lambda cell: hashes_for(pins, *cell), cells):
            for pin, digest in answer.items():
                found.setdefault(pin, set()).add(digest)
    lines = [" ".join([pin, *(f"--hash=sha256:{digest}" for digest in sorted(found[pin]))]) for pin in sorted(found)]
    return "\n".join(lines) + "\n"


def main() -> None:
    worker = Path(__file__).parent.parent / "worker"
    (worker / "sdk.lock").write_text(locked(resolved_pins()), encoding="utf-8")
    (worker / "uv.lock").write_text(locked([f"uv=={importlib.metadata.version('uv')}"]), encoding="utf-8")


if __name__ == "__main__":
    main()
