"""One job, top to bottom: check, unpack, make the environment, prove, test, run commands, pack."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import os
import platform
import shlex
import shutil
import socket
import time
import traceback
import uuid
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import environment
import limits
import processes
import pytest_run
import results
import unpack
from environment import Places, StepFailed

NO_CUDA = "device=cpu: no CUDA validation"
PACKING_S = 30.0  # of the deadline, kept for commands to end and results to be packed
PROGRESS_S = 1.0
OVERLAP = 4  # updates that a window reaches back
ARCHIVE = unpack.Bounds(limits.MAX_MEMBERS, limits.MAX_MEMBER, limits.MAX_UNPACKED, limits.MAX_PATH)
SESSION_KEYS = {
    "root_name", "invocation_dir", "inifile", "args", "paths", "ids", "python_path", "tooling", "plugins", "project",
    "display_env", "maxfail", "extras", "deselected", "modules", "restarts",
}  # fmt: skip
Publish = Callable[[dict[str, Any]], None]


class JobRefused(Exception):
    """The input is not what was approved. Nothing was executed."""


@dataclass
class Step:
    """What is told of one step."""

    name: str
    status: str = "ok"
    exit: int | None = None
    seconds: float = 0.0
    detail: str = ""


@dataclass
class Report:
    """What the output will say."""

    nonce: str
    payload_sha256: str
    device: str
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    steps: list[Step] = field(default_factory=list)
    proof: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    total: int = 0


async def run_job(
    job_input: Mapping[str, Any], publish: Publish, bounds: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Run one job and return its output (docs/wire.md, section 5). Infrastructure trouble is the key `error` of it.

    Args:
        publish: Takes progress updates. bounds: seconds and counts that replace those of `limits`, by lower-case name.
    """
    report = Report(
        str(job_input.get("nonce")), str(job_input.get("payload_sha256")), os.environ["PYTEST_RUNPOD_DEVICE"]
    )
    try:
        manifest, members = checked(job_input)
    except (JobRefused, unpack.ArchiveRefused, KeyError, TypeError, ValueError) as refused:
        report.error = f"refused, nothing was executed: {refused}"
        return output_of(report, results.Packed(b"", []), {})
    base = Path.home() / ".pytest-runpod" / "jobs" / report.attempt
    places = Places(base, str(job_input["session"]["root_name"]).replace("/", "_").strip(".") or "root")
    try:
        job = Job(places, manifest, job_input["session"], job_input["env"], report, publish, dict(bounds or {}))
        return await job.run(members)
    finally:
        processes.end_all_of(base)
        shutil.rmtree(base, ignore_errors=True)


def checked(job_input: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[unpack.Member, ...]]:
    """Insist on the approved payload, step by step, before anything is written.

    Raises: JobRefused, ArchiveRefused: what differs.
    """
    if job_input["schema"] != limits.SCHEMA:
        raise JobRefused(f"schema {job_input['schema']!r} is not {limits.SCHEMA!r}")
    text = str(job_input["manifest"]).encode("ascii")
    digest = hashlib.sha256(text).hexdigest()
    if not digest == job_input["payload_sha256"] == os.environ["PYTEST_RUNPOD_APPROVED_SHA256"]:
        raise JobRefused(f"the manifest has digest {digest}, which is not the approved one")
    manifest = json.loads(text)
    if manifest["worker_sha256"] != os.environ["PYTEST_RUNPOD_WORKER_SHA256"]:
        raise JobRefused("the manifest was approved for another worker")
    if manifest["run"]["device"] != os.environ["PYTEST_RUNPOD_DEVICE"]:
        raise JobRefused("the manifest was approved for another device")
    if not set(job_input["env"]) <= set(manifest["run"]["env"]):
        raise JobRefused("variables that were not approved by name")
    if any(name.startswith("RUNPOD_") for name in job_input["env"]):
        raise JobRefused("variables of RUNPOD_* never reach the tests")
    if not set(job_input["session"]) >= SESSION_KEYS:
        raise JobRefused(f"the session lacks {', '.join(sorted(SESSION_KEYS - set(job_input['session'])))}")
    try:
        blob = base64.b64decode(job_input["archive"], validate=True)
    except binascii.Error as damage:
        raise JobRefused(f"the archive is not base64: {damage}") from damage
    members = unpack.read_archive(blob, ARCHIVE)
    listed = {entry["path"]: (entry["sha256"], entry["size"], entry["mode"] == "0755") for entry in manifest["files"]}
    found = {one.path: (hashlib.sha256(one.data).hexdigest(), len(one.data), one.executable) for one in members}
    if listed != found:
        different = sorted(path for path in listed.keys() | found.keys() if listed.get(path) != found.get(path))
        raise JobRefused(f"the archive does not hold what the manifest states: {', '.join(different[:5])}")
    return manifest, members


class Job:
    """The steps of one checked job."""

    def __init__(
        self, places: Places, manifest: Mapping[str, Any], session: Mapping[str, Any], passed: Mapping[str, str], report: Report,
        publish: Publish, bounds: Mapping[str, float],
    ) -> None:  # fmt: skip
        self.places, self.manifest, self.session, self.report, self.publish = places, manifest, session, report, publish
        self.bounds = {name.lower(): value for name, value in vars(limits).items() if name.isupper()} | dict(bounds)
        self.deadline = time.monotonic() + self.bounds["worker_deadline_s"]
        self.env = environment.tests_env(places, session, passed, report.device)
        self.run_spec: Mapping[str, Any] = manifest["run"]
        self.report.total = len(session["ids"] or ())

    async def run(self, members: tuple[unpack.Member, ...]) -> dict[str, Any]:
        """Every step in order; the first that the rest depends on ends the run, and what is there goes back."""
        lines = pytest_run.Lines(self.places.out / "reports.jsonl")
        try:
            self._unpack(members)
            tests = await self._make_environment()
            await self._facts(tests)
            await self._prove()
            await self._test(tests, lines)
            await self._run_commands()
        except StepFailed as failed:
            self.report.error = str(failed).replace("\n", " | ")[:1500]
        except Exception as slip:  # noqa: BLE001 - a slip of the worker itself: what there is goes back, and says so
            self.report.error = f"the worker stumbled: {type(slip).__name__}: {slip}"[:1500]
            self.places.log("worker").write_text(traceback.format_exc(), encoding="utf-8")
        return self._packed(lines)

    def _unpack(self, members: tuple[unpack.Member, ...]) -> None:
        for folder in (self.places.root, self.places.out / "logs", self.places.out / "artifacts", self.places.home):
            folder.mkdir(parents=True, exist_ok=True)
        for member in members:
            target = self.places.root / member.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(member.data)
            target.chmod(0o755 if member.executable else 0o644)

    async def _make_environment(self) -> environment.TestEnvironment:
        tests = environment.TestEnvironment(self.places, self.session, list(self.run_spec["requirements"]), self._left)
        with self._step("environment") as step:
            await tests.make()
            step.detail = f"installed {', '.join(tests.installed)}" if tests.installed else ""
        return tests

    async def _facts(self, tests: environment.TestEnvironment) -> None:
        hardware = {
            "host": socket.gethostname(),
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "torch": (tests.found["torch"] or {}).get("version"),
            "gpus": await self._nvidia_smi(),
            "worker_id": os.environ.get("RUNPOD_POD_ID"),
            "data_center": os.environ.get("RUNPOD_DC_ID"),
        }
        runtime = {
            **tests.found,
            "image": self.run_spec["image"],
            "image_python": os.environ["PYTEST_RUNPOD_IMAGE_PYTHON"],
        }
        self._save("hardware.json", hardware)
        self._save("runtime.json", runtime)

    async def _nvidia_smi(self) -> list[str]:
        tool = shutil.which("nvidia-smi")
        if tool is None:
            return []
        query = [
            tool,
            "--query-gpu=name,driver_version,memory.total,temperature.gpu,clocks.sm",
            "--format=csv,noheader",
        ]
        log = self.places.log("nvidia-smi")
        done = await processes.run(query, log=log, env=self.env, cwd=self.places.base, limit_s=30)
        return done.output.strip().splitlines()

    async def _prove(self) -> None:
        """Raises: StepFailed: no kernel ran; the suite is then not started."""
        if self.report.device == "cpu":
            self.report.proof = {"device": "cpu", "cuda_executed": False, "skipped": NO_CUDA}
            self.report.steps.append(Step("cuda_proof", "skipped", detail=NO_CUDA))
        else:
            with self._step("cuda_proof") as step:
                script = Path(__file__).parent / "cuda_proof.py"
                command = [str(self.places.python), str(script), self.report.nonce, str(self.run_spec["gpu"])]
                log = self.places.log("cuda_proof")
                done = await processes.run(command, log=log, env=self.env, cwd=self.places.base, limit_s=self._left())
                step.exit = done.exit
                self.report.proof = proof_in(done.output, self.report.nonce)
                if done.exit != 0 or self.report.proof["cuda_executed"] is not True:
                    raise StepFailed("cuda_proof", done.exit, str(self.report.proof.get("error") or done.output))

    async def _test(self, tests: environment.TestEnvironment, lines: pytest_run.Lines) -> None:
        bounds = pytest_run.Bounds(
            deadline=self.deadline - PACKING_S,
            grace_s=self.bounds["exit_grace_s"],
            restarts=int(self.session["restarts"]),
            max_text=int(self.bounds["max_text"]),
        )
        run = pytest_run.PytestRun(self.places, self.session, tests.found["pytest11"], self.env, bounds, lines)
        window = Window(self.report, self.publish)
        with self._step("pytest") as step:
            outcome = await run.run(window.update)
            step.exit, step.detail = outcome.exit, "; ".join(outcome.notes)
            if outcome.deadline:
                step.status = "deadline"
            elif outcome.exit != 0 or outcome.notes:
                step.status = "failed"

    async def _run_commands(self) -> None:
        for name in self.run_spec["run_commands"]:
            words = shlex.split(str(self.run_spec["commands"][name]).replace("{device}", self.report.device))
            if words[0] in ("python", "python3"):
                words[0] = str(self.places.python)
            artifacts = self.places.out / "artifacts" / "commands" / name
            artifacts.mkdir(parents=True, exist_ok=True)
            with self._step(name) as step:
                done = await processes.run(
                    words,
                    log=self.places.log(name),
                    env={**self.env, "PYTEST_RUNPOD_ARTIFACTS": str(artifacts)},
                    cwd=self.places.root,
                    limit_s=self._left(),
                )
                step.exit = done.exit
                step.status = "ok" if done.exit == 0 else "deadline" if done.exit is None else "failed"
                step.detail = "" if done.exit == 0 else done.output.strip()[-500:]

    def _packed(self, lines: pytest_run.Lines) -> dict[str, Any]:
        out = self.places.out
        self._save("proof.json", self.report.proof)
        self._save("steps.json", [vars(step) for step in self.report.steps])
        for log in (out / "logs").glob("*.txt"):
            results.shorten_log(log, int(self.bounds["max_text"]))
        parsed = [json.loads(text) for text in lines.texts]
        packed, cases = results.pack_outcomes(out, parsed, int(self.bounds["max_result"]), ARCHIVE)
        if packed.blob is None:
            self.report.error = (
                f"the outcomes alone are larger than {self.bounds['max_result']} bytes; only their summary came back"
            )
        return output_of(self.report, packed, results.summary_of(cases, self.report.total or len(cases)))

    def _left(self) -> float:
        return float(max(1.0, self.deadline - PACKING_S - time.monotonic()))

    def _save(self, name: str, value: Any) -> None:
        (self.places.out / name).write_text(json.dumps(value, indent=1), encoding="utf-8")

    @contextlib.contextmanager
    def _step(self, name: str) -> Any:
        step = Step(name)
        self.report.steps.append(step)
        self.publish(
            {
                **head(self.report, "progress"),
                "step": name,
                "done": 0,
                "total": self.report.total,
                "first": 0,
                "lines": "",
            }
        )
        began = time.monotonic()
        try:
            yield step
        except StepFailed as failed:
            step.status = "failed" if failed.exit_status is not None else "deadline"
            step.exit, step.detail = failed.exit_status, str(failed)[-1500:]
            raise
        finally:
            step.seconds = round(time.monotonic() - began, 3)


class Window:
    """A cumulative window of report lines, published once a second at most."""

    def __init__(self, report: Report, publish: Publish) -> None:
        self.report, self.publish = report, publish
        self.marks: list[int] = [0]
        self.last = 0.0

    def update(self, lines: pytest_run.Lines) -> None:
        now = time.monotonic()
        if now - self.last < PROGRESS_S or len(lines.texts) == self.marks[-1]:
            return
        self.last = now
        first = self.marks[max(0, len(self.marks) - OVERLAP)]
        encoded = self._encoded(lines.texts[first:])
        while len(encoded) > limits.MAX_PROGRESS and first < len(lines.texts):
            first += (len(lines.texts) - first + 1) // 2
            encoded = self._encoded(lines.texts[first:])
        self.marks.append(len(lines.texts))
        done, total = len(lines.finished), self.report.total
        self.publish(
            {
                **head(self.report, "progress"),
                "step": "pytest",
                "done": done,
                "total": total,
                "first": first,
                "lines": encoded,
            }
        )

    @staticmethod
    def _encoded(texts: list[bytes]) -> str:
        return base64.b64encode(zlib.compress(b"\n".join(texts), 1)).decode("ascii")


def head(report: Report, kind: str) -> dict[str, Any]:
    return {"schema": limits.SCHEMA, "kind": kind, "nonce": report.nonce, "attempt": report.attempt}


def output_of(report: Report, packed: results.Packed, summary: Mapping[str, int]) -> dict[str, Any]:
    """The job's output: JSON that any reader takes. The SDK writes it as UTF-8, so half a surrogate would lose the job."""
    output: dict[str, Any] = {
        **head(report, "result"),
        "payload_sha256": report.payload_sha256,
        "device": report.device,
        "steps": [vars(step) for step in report.steps],
        "proof": report.proof,
        "summary": dict(summary),
        **packed.fields(),
    }
    if report.error:
        output["error"] = report.error
    text = json.dumps(output, ensure_ascii=False, allow_nan=False)
    checked_output: dict[str, Any] = json.loads(text.encode("utf-8", "replace"))
    return checked_output


def proof_in(output: str, nonce: str) -> dict[str, Any]:
    """Find the proof among what its process has said: the line of this nonce; without one nothing was proved."""
    for line in reversed(output.splitlines()):
        with contextlib.suppress(ValueError):
            proof = json.loads(line)
            if isinstance(proof, dict) and proof.get("nonce") == nonce and "cuda_executed" in proof:
                return proof
    return {"device": "cuda", "cuda_executed": False, "nonce": nonce, "error": None}
