"""A served emulator, and pytest in a process of its own against it: what the journeys and the provider's tests share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from pytest_runpod.core.receipt import Receipt
from pytest_runpod.provider.runpod import RunPod
from pytest_runpod.provider.transport import Transport

KEY = "rpa_test_key"


class ServedEmulator:
    """`pytest-runpod emulator` as a process: its URLs, and what it shows of itself."""

    def __init__(self, faults: dict[str, Any], folder: Path) -> None:
        file = folder / "faults.json"
        file.write_text(json.dumps(faults))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest_runpod", "emulator", "--lifeline", "--faults", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "RUNPOD_API_KEY": KEY},
            start_new_session=True,
        )
        ready = json.loads(self.process.stdout.readline())
        self.management_url, self.jobs_url = ready["management_url"], ready["jobs_url"]

    @property
    def environ(self) -> dict[str, str]:
        urls = {"PYTEST_RUNPOD_MANAGEMENT_URL": self.management_url, "PYTEST_RUNPOD_JOBS_URL": self.jobs_url}
        return {**urls, "RUNPOD_API_KEY": KEY}

    def client(self) -> RunPod:
        return RunPod(Transport(KEY, wait=lambda _: None), self.management_url, self.jobs_url)

    @property
    def key(self) -> str:
        return KEY

    def tell(self, what: str, value: Any = None) -> None:
        """Tell it `faults` to inject from now on, or to `release` what is held."""
        answer = requests.post(
            f"{self.management_url}/_emulator/{what}",
            json=value,
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=30,
        )
        assert answer.status_code == 204, answer.text

    def ask(self, what: str) -> dict[str, Any]:
        answer = requests.get(
            f"{self.management_url}/_emulator/{what}", headers={"Authorization": f"Bearer {KEY}"}, timeout=30
        )
        return answer.json()

    def ours(self) -> list[str]:
        return [one["name"] for one in self.ask("alive")["endpoints"] if not one["foreign"]]

    def foreign(self) -> int:
        return sum(one["foreign"] for one in self.ask("alive")["endpoints"])

    def requests_seen(self, method: str = "") -> list[str]:
        return [
            f"{one['method']} {one['path']}" for one in self.ask("log")["requests"] if one["method"].startswith(method)
        ]

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Serve an emulator with the given faults; it ends with the test."""
    with _serving(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="module")
def make_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Serve an emulator that several tests of a module share."""
    with _serving(tmp_path_factory) as start:
        yield start


@contextmanager
def _serving(folders: pytest.TempPathFactory) -> Iterator[Callable[..., ServedEmulator]]:
    served: list[ServedEmulator] = []

    def start(**faults: Any) -> ServedEmulator:
        served.append(ServedEmulator(faults, folders.mktemp("emulator")))
        return served[-1]

    yield start
    for one in served:
        one.end()


class Project:
    """A small project of a user, and pytest runs in it, each in a process of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root.parent / f"{root.name}-state"

    def write(self, **files: str) -> Project:
        for name, text in files.items():
            path = self.root / name.replace("__", "/")
            path = path if path.suffix else path.with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return self

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "pytest", "-p", "no:randomly", *arguments]

    @property
    def ours(self) -> list[str]:
        return ["--runpod-provider=emulator", "--runpod-device=cpu", f"--runpod-state={self.state}"]

    def remote(self, *arguments: str) -> list[str]:
        return self.command("--runpod", *self.ours, "--runpod-output=out", *arguments)

    def approved(self, *arguments: str) -> list[str]:
        """A remote run of what lies here now, approved."""
        return self.remote(f"--approved-sha={self.digest(*arguments)}", *arguments)

    def runpod(self, *words: str) -> list[str]:
        """The command `pytest-runpod`."""
        return [sys.executable, "-m", "pytest_runpod", *words]

    def run(
        self, command: list[str], emulator: ServedEmulator | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(emulator.environ if emulator else {}), **environ}
        return subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, timeout=300, check=False)

    def start(self, command: list[str], emulator: ServedEmulator, **environ: str) -> subprocess.Popen[str]:
        env = {**os.environ, **emulator.environ, **environ}
        return subprocess.Popen(
            command, cwd=self.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def digest(self, *arguments: str) -> str:
        done = self.run(self.command("--runpod-prepare", *self.ours, *arguments))
        return next(line.split(": ")[1] for line in done.stdout.splitlines() if line.startswith("payload_sha256: "))

    def receipts(self) -> list[Receipt]:
        return [Receipt.from_json(json.loads(path.read_text())) for path in sorted(self.state.glob("receipts/*.json"))]

    def reserved(self) -> int:
        ledger = self.state / "ledger.json"
        return (
            sum(entry["reserved_micro_usd"] for entry in json.loads(ledger.read_text())["entries"])
            if ledger.exists()
            else 0
        )


def watchdogs(folder: Path) -> list[int]:
    """Processes that watch a receipt in *folder*."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended meanwhile
        if b"pytest_runpod.watchdog" in words and any(word.startswith(f"{folder}/".encode()) for word in words):
            found.append(int(process.name))
    return found


@pytest.fixture(name="watchdogs", scope="session")
def _watchdogs() -> Any:
    return watchdogs


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "project"
    root.mkdir()
    return Project(root)


@pytest.fixture(scope="module")
def make_project(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Make a project that several tests of a module share."""
    return lambda name: Project(tmp_path_factory.mktemp(name, numbered=False))


def eventually(look: Any, limit_s: float = 60.0) -> Any:
    """Look again until *look* gives something true; fail if it never does."""
    until = time.monotonic() + limit_s
    while not (found := look()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)
    return found


@pytest.fixture(name="eventually")
def _eventually() -> Any:
    return eventually
