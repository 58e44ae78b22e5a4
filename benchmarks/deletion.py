"""How long after a signal is the endpoint gone, and confirmed? Median and worst of many runs against a served emulator.

    python benchmarks/deletion.py [--rounds 20]

The clock runs from the signal to the moment at which the receipt says `cleanup_confirmed` and the account is empty. SIGKILL is
the watchdog's work; in the last row the watchdog is killed too, and the clock runs from the start of `pytest-runpod reap`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from conftest import Project, ServedEmulator, eventually, watchdogs  # noqa: E402

LIMITS = {"SIGINT": 5, "SIGTERM": 5, "SIGHUP": 5, "SIGKILL": 10, "SIGKILL of both, reap": 10}
SLOW = "import time\ndef test_quick(): pass\ndef test_slow(): time.sleep(600)\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    for ignored in (signal.SIGINT, signal.SIGHUP):  # by nohup, or by a shell in the background; runs inherit it
        signal.signal(ignored, signal.SIG_DFL)
    found: dict[str, list[float]] = {name: [] for name in LIMITS}
    with tempfile.TemporaryDirectory(prefix="runpod-deletion-") as folder:
        root = Path(folder) / "project"
        root.mkdir()
        emulator = ServedEmulator({"foreign_endpoints": 1}, Path(folder))
        project = Project(root).write(test_it=SLOW)
        command = project.remote(f"--approved-sha={project.digest()}", "-p", "no:cacheprovider")
        try:
            for number in range(rounds):
                for name in LIMITS:  # one after the other, so that a busy minute of the machine meets all of them
                    project.state = Path(folder) / f"state-{number}-{name.split()[-1]}"
                    command = [word for word in command if not word.startswith("--runpod-state")]
                    found[name].append(once([*command, f"--runpod-state={project.state}"], name, project, emulator))
                    shutil.rmtree(project.state)
                    print(f"{number + 1:3}/{rounds} {name}: {found[name][-1]:.2f} s", file=sys.stderr)
        finally:
            emulator.end()
    print(f"{'':<24}{'rounds':>8}{'median':>9}{'worst':>9}{'limit':>8}")
    for name, times in found.items():
        print(f"{name:<24}{len(times):>8}{statistics.median(times):>7.2f} s{max(times):>7.2f} s{LIMITS[name]:>6} s")
    return int(any(max(times) > LIMITS[name] for name, times in found.items()))


def once(command: list[str], name: str, project: Project, emulator: ServedEmulator) -> float:
    """Start a run, end it once a worker has started for its job, and measure."""
    process = project.start(command, emulator)
    eventually(lambda: emulator.ask("alive")["pids"] and any(one.job_id for one in project.receipts()))
    if name.startswith("SIGKILL of both"):
        for watchdog in watchdogs(project.state):
            os.kill(watchdog, signal.SIGKILL)
        process.kill()
        process.communicate()
        began = time.monotonic()
        project.run(project.runpod("reap", f"--state={project.state}"), emulator)
    else:
        began = time.monotonic()
        process.send_signal(getattr(signal, name))
    eventually(gone(project, emulator))
    took = time.monotonic() - began
    if process.returncode is None:
        process.communicate()
    return took


def gone(project: Project, emulator: ServedEmulator) -> Callable[[], bool]:
    return lambda: all(one.cleanup_confirmed for one in project.receipts()) and emulator.ours() == []


if __name__ == "__main__":
    sys.exit(main())
