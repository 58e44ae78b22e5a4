"""The worker as the image sees it: its folder first on `sys.path`, its environment variables set, no SDK needed."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_runpod.core.archive import make_archive
from pytest_runpod.core.junit import report_lines
from pytest_runpod.core.manifest import PackedFile, make_payload
from pytest_runpod.core.matching import Matcher
from pytest_runpod.core.unpack import read_archive
from pytest_runpod.core.wire import BOUNDS, parse_lines

WORKER = Path(__file__).parent.parent.parent / "worker"
WORKER_SHA = "5" * 64


class Bench:
    """Runs jobs in this process as the handler would, and reads what came back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        self.monkeypatch, self.home = monkeypatch, home
        self.updates: list[dict[str, Any]] = []
        site = [entry for entry in sys.path if Path(entry).name == "site-packages"]
        for name, value in {
            "HOME": str(home),
            "PYTEST_RUNPOD_DEVICE": "cpu",
            "PYTEST_RUNPOD_WORKER_SHA256": WORKER_SHA,
            "PYTEST_RUNPOD_IMAGE_PYTHON": sys.executable,
            "PYTEST_RUNPOD_IMAGE_PATHS": ":".join(site),
            "RUNPOD_AI_API_KEY": "rpa_platform_secret",
        }.items():
            monkeypatch.setenv(name, value)

    def input(
        self, files: dict[str, str], ids: list[str], *, run: dict | None = None, env: dict | None = None, **session: Any
    ) -> dict:
        packed = [PackedFile(path, text.encode("utf-8", "surrogatepass")) for path, text in files.items()]
        spec = {
            "image": "i",
            "device": "cpu",
            "gpu": "g",
            "requirements": [],
            "env": sorted(env or {}),
            "commands": {},
            "run_commands": [],
        }
        payload = make_payload(packed, WORKER_SHA, {**spec, **(run or {})})
        self.monkeypatch.setenv("PYTEST_RUNPOD_APPROVED_SHA256", payload.sha256)
        base = {
            "root_name": "project", "invocation_dir": ".", "inifile": None, "args": [], "paths": [], "ids": ids,
            "python_path": [],
            "tooling": {"pytest": pytest.__version__}, "plugins": [], "project": None, "display_env": {}, "maxfail": 0,
            "extras": False, "deselected": "", "modules": [], "restarts": 3,
        }  # fmt: skip
        return {
            "schema": "pytest-runpod/1",
            "nonce": "n" * 32,
            "payload_sha256": payload.sha256,
            "manifest": payload.manifest.decode(),
            "archive": base64.b64encode(make_archive(payload.files)).decode(),
            "session": {**base, **session},
            "env": env or {},
        }

    def run(self, job_input: dict, **bounds: float) -> Output:
        import job

        return Output(asyncio.run(job.run_job(job_input, self.updates.append, bounds)))


class Output:
    """The output of a job, unpacked."""

    def __init__(self, value: dict) -> None:
        self.value = value
        blob = base64.b64decode(value["archive"])
        assert hashlib.sha256(blob).hexdigest() == value["archive_sha256"]
        self.files = {member.path: member.data for member in read_archive(blob, BOUNDS)} if blob else {}
        self.lines = list(parse_lines(self.files.get("reports.jsonl", b"")))

    @property
    def error(self) -> str | None:
        return self.value.get("error")

    def step(self, name: str) -> dict:
        return next(step for step in self.value["steps"] if step["name"] == name)

    def outcomes(self) -> dict[str, list[tuple[str, str]]]:
        """Node id -> (phase, outcome) of each report, read from the JUnit XML."""
        matcher = Matcher.of([])
        deaths = [line for line in self.lines if line["kind"] == "died"]
        found: dict[str, list[tuple[str, str]]] = {}
        for one in matcher.final("att", [*report_lines(self.files["junit.xml"]), *deaths]):
            phases = [
                (report["when"], "xfail" if "wasxfail" in report else report["outcome"]) for report in one.reports
            ]
            found[one.key[0]] = [*phases, ("died", one.death["cause"])] if one.death else phases
        return found

    def json(self, name: str) -> Any:
        return json.loads(self.files[name])


@pytest.fixture
def worker_path(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The worker's folder, first on `sys.path` while the test runs."""
    monkeypatch.syspath_prepend(str(WORKER))
    return WORKER


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, worker_path: Path) -> Bench:
    return Bench(monkeypatch, tmp_path)
