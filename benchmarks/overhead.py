"""What the plugin costs in time: unused, per test, per run, and for the worker to boot. Ratios, measured side by side in one run.

    python benchmarks/overhead.py [--rounds 9] [--tests 5000] [--json FILE]

Each comparison runs its two commands in turn, A B A B ...; medians and ratios of medians are printed. Needs the extras
`emulator` and `xdist`, no account and, once the emulator is warm, no network.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
REMOTE = ["--runpod", "--runpod-provider=emulator", "--runpod-device=cpu"]


def timed(command: Sequence[str], cwd: Path) -> float:
    """Wall seconds of one whole process. Raises: CalledProcessError: it failed."""
    began = time.perf_counter()
    subprocess.run(command, cwd=cwd, check=True, capture_output=True)
    return time.perf_counter() - began


def in_turn(rounds: int, **runs: Callable[[], float]) -> dict[str, list[float]]:
    """Run each of *runs* once, uncounted, then all of them in turn, *rounds* times."""
    for run in runs.values():
        run()
    figures: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            figures[name].append(run())
    return figures


def unused(folder: Path, rounds: int) -> dict[str, Any]:
    """Start-up with the plugin installed and unused, against `-p no:runpod`."""
    (folder / "test_one.py").write_text("def test_one(): pass\n")
    runs = in_turn(
        rounds,
        installed=lambda: timed([*PYTEST, "test_one.py"], folder),
        blocked=lambda: timed([*PYTEST, "-p", "no:runpod", "test_one.py"], folder),
    )
    pairs = [one - other for one, other in zip(runs["installed"], runs["blocked"], strict=True)]
    return {**medians(runs), "median_difference_ms": round(statistics.median(pairs) * 1000, 2)}


def many_tests(folder: Path, count: int, rounds: int) -> dict[str, Any]:
    """*count* trivial tests: plain, in one xdist process, and on the warm emulator."""
    (folder / "test_many.py").write_text(
        f"import pytest\n@pytest.mark.parametrize('n', range({count}))\ndef test_many(n): pass\n"
    )
    runs = in_turn(
        rounds,
        plain=lambda: timed([*PYTEST, "test_many.py"], folder),
        xdist_n1=lambda: timed([*PYTEST, "-n", "1", "test_many.py"], folder),
        emulator=lambda: timed([*PYTEST, *REMOTE, "test_many.py"], folder),
    )
    figures = medians(runs)
    figures["emulator/plain"] = round(figures["emulator"] / figures["plain"], 2)
    figures["emulator/xdist_n1"] = round(figures["emulator"] / figures["xdist_n1"], 2)
    return figures


def fixed_start(folder: Path, rounds: int) -> dict[str, Any]:
    """From the command to the start of the first remote test, and to the end of the command, with one trivial test."""
    (folder / "test_one.py").write_text("def test_one(): pass\n")
    first: list[float] = []
    whole: list[float] = []
    for number in range(rounds + 1):
        out = folder / f"out-{number}"
        began = time.time()
        took = timed([*PYTEST, *REMOTE, f"--runpod-output={out}", "test_one.py"], folder)
        lines = [json.loads(line) for line in (out / "reports.jsonl").read_text().splitlines()]
        setup = next(line["report"] for line in lines if line["kind"] == "report")
        if number:
            first.append(setup["start"] - began)
            whole.append(took)
    return medians({"command_to_first_test": first, "whole_command": whole})


def boot(folder: Path, rounds: int) -> dict[str, Any]:
    """The SDK's environment as the worker makes it (uv, hash-locked), against venv and pip. Caches are warm."""
    lock = Path(__file__).parent.parent / "worker" / "sdk.lock"
    number = iter(range(10_000))

    def with_uv() -> float:
        target = folder / f"uv-{next(number)}"
        python = str(target / "bin" / "python")
        began = time.perf_counter()
        uv = [sys.executable, "-m", "uv"]
        quiet = {"check": True, "capture_output": True}
        subprocess.run([*uv, "venv", "--no-project", "--python", sys.executable, str(target)], **quiet)
        subprocess.run(
            [*uv, "pip", "install", "--python", python, "--no-deps", "--require-hashes", "-r", str(lock)], **quiet
        )
        return time.perf_counter() - began

    def with_pip() -> float:
        target = folder / f"pip-{next(number)}"
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "venv", str(target)], check=True, capture_output=True)
        command = [
            str(target / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--require-hashes",
            "-r",
            str(lock),
        ]
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began

    figures = medians(in_turn(rounds, uv=with_uv, pip=with_pip))
    figures["uv/pip"] = round(figures["uv"] / figures["pip"], 3)
    return figures


def medians(runs: dict[str, list[float]]) -> dict[str, Any]:
    return {name: round(statistics.median(values), 3) for name, values in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tests", type=int, default=5000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    few = max(3, options.rounds // 3)
    figures: dict[str, Any] = {"python": platform.python_version(), "cores": os.cpu_count(), "rounds": options.rounds}
    parts: dict[str, Callable[[Path], dict[str, Any]]] = {
        "unused plugin, start-up (s)": lambda folder: unused(folder, 2 * options.rounds),
        f"{options.tests} trivial tests (s)": lambda folder: many_tests(folder, options.tests, few),
        "fixed start of a run (s)": lambda folder: fixed_start(folder, few),
        "environment of the worker's SDK (s)": lambda folder: boot(folder, few),
    }
    for title, part in parts.items():
        with tempfile.TemporaryDirectory() as folder:
            figures[title] = part(Path(folder))
        print(f"{title}: {json.dumps(figures[title])}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
