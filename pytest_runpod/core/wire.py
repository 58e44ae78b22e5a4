"""Speak the wire format of docs/wire.md: make a job's input, read progress and results. Values and bytes only."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import shlex
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_runpod.core import unpack
from pytest_runpod.core.archive import make_archive
from pytest_runpod.core.canonical import canonical_json, worker_digest
from pytest_runpod.core.limits import (
    MAX_MEMBER,
    MAX_MEMBERS,
    MAX_PATH,
    MAX_RESULT,
    MAX_UNPACKED,
    PYTEST_RESTARTS,
    SCHEMA,
)
from pytest_runpod.core.manifest import Payload
from pytest_runpod.errors import ResultsUntrusted

BOUNDS: Final = unpack.Bounds(members=MAX_MEMBERS, member=MAX_MEMBER, total=MAX_UNPACKED, path=MAX_PATH)

LOADER: Final = (
    "import base64,hashlib,json,os,sys,zlib;"
    "b=zlib.decompress(base64.b64decode(os.environ['PYTEST_RUNPOD_BUNDLE']));"
    "hashlib.sha256(b).hexdigest()==os.environ['PYTEST_RUNPOD_WORKER_SHA256']"
    " or sys.exit('pytest-runpod: the bundle is not the approved one');"
    "f=json.loads(b);"
    "exec(compile(f['bootstrap.py'],'bootstrap.py','exec'),{'__name__':'__main__','BUNDLE':f})"
)


@dataclass(frozen=True, slots=True)
class Session:
    """What was selected here, and how pytest was called: everything that the worker's pytest needs. Keys as in docs/wire.md."""

    root_name: str
    invocation_dir: str
    inifile: str | None
    args: tuple[str, ...]
    paths: tuple[str, ...]
    ids: tuple[str, ...] | None
    python_path: tuple[str, ...]
    tooling: Mapping[str, str]
    plugins: tuple[str, ...]
    project: Mapping[str, Any] | None
    display_env: Mapping[str, str]
    maxfail: int = 0
    extras: bool = True
    deselected: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    restarts: int = PYTEST_RESTARTS

    def to_json(self) -> dict[str, Any]:
        return {
            "root_name": self.root_name,
            "invocation_dir": self.invocation_dir,
            "inifile": self.inifile,
            "args": list(self.args),
            "paths": list(self.paths),
            "ids": None if self.ids is None else list(self.ids),
            "python_path": list(self.python_path),
            "tooling": dict(self.tooling),
            "plugins": list(self.plugins),
            "project": None if self.project is None else dict(self.project),
            "display_env": dict(self.display_env),
            "maxfail": self.maxfail,
            "extras": self.extras,
            "deselected": id_digests(self.deselected),
            "modules": list(self.modules),
            "restarts": self.restarts,
        }


def id_digests(ids: Iterable[str]) -> str:
    """Name many node ids in little room: base64 of the first four bytes of the SHA-256 of each.

    >>> len(id_digests(["a", "b", "a"]))
    12
    """
    digests = {hashlib.sha256(nodeid.encode("utf-8", "surrogatepass")).digest()[:4] for nodeid in ids}
    return base64.b64encode(b"".join(sorted(digests))).decode("ascii")


def start_command() -> str:
    """The endpoint's `args`: one string, split by the provider as a shell would."""
    return shlex.join(["python3", "-u", "-c", LOADER])


def endpoint_env(files: Mapping[str, str], approved_sha256: str, device: str) -> dict[str, str]:
    """The endpoint's environment: the worker itself, and the one digest that it will execute."""
    bundle = canonical_json(dict(files))
    return {
        "PYTEST_RUNPOD_BUNDLE": base64.b64encode(zlib.compress(bundle, 9)).decode("ascii"),
        "PYTEST_RUNPOD_WORKER_SHA256": worker_digest(files),
        "PYTEST_RUNPOD_APPROVED_SHA256": approved_sha256,
        "PYTEST_RUNPOD_DEVICE": device,
        "RUNPOD_SKIP_GPU_CHECK": "true",
    }


def job_input(payload: Payload, session: Session, env: Mapping[str, str], nonce: str) -> dict[str, Any]:
    """Make the input of a job. *env*: values of the variables that the run spec names."""
    return {
        "schema": SCHEMA,
        "nonce": nonce,
        "payload_sha256": payload.sha256,
        "manifest": payload.manifest.decode("ascii"),
        "archive": base64.b64encode(make_archive(payload.files)).decode("ascii"),
        "session": session.to_json(),
        "env": dict(env),
    }


def session_digest(session: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """The digest of what a job is asked to run: by it a later run knows whether a result answers its own question."""
    return hashlib.sha256(canonical_json({"session": dict(session), "env": dict(env)})).hexdigest()


@dataclass(frozen=True, slots=True)
class Progress:
    """A window of report lines of a running attempt, and where it stands."""

    attempt: str
    step: str
    done: int
    total: int
    first: int
    lines: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A verified result: it is of this payload and this submission, and its archive is whole."""

    attempt: str
    device: str
    steps: tuple[Mapping[str, Any], ...]
    proof: Mapping[str, Any]
    summary: Mapping[str, Any]
    left_out: tuple[Mapping[str, Any], ...]
    error: str | None
    members: tuple[unpack.Member, ...] = field(default=())

    def member(self, path: str) -> bytes | None:
        return next((member.data for member in self.members if member.path == path), None)


def read_progress(output: Any, nonce: str) -> Progress | None:
    """Read a progress update; None if this is none of ours. Damage is no error: the final archive decides."""
    if not _ours(output, "progress", nonce):
        return None
    try:
        text = zlib.decompress(base64.b64decode(output["lines"], validate=True)) if output["lines"] else b""
        lines = tuple(parse_lines(text))
        return Progress(
            attempt=str(output["attempt"]),
            step=str(output["step"]),
            done=int(output["done"]),
            total=int(output["total"]),
            first=int(output["first"]),
            lines=lines,
        )
    except (KeyError, TypeError, ValueError, zlib.error, binascii.Error, ResultsUntrusted):
        return None


def is_result(output: Any, nonce: str) -> bool:
    """Whether an output is the final one of this submission, whatever the state of the job says."""
    return _ours(output, "result", nonce)


def read_result(output: Any, payload_sha256: str, nonce: str, error: str | None) -> Result:
    """Check a final output step by step, and unpack its archive.

    Raises: ResultsUntrusted: not of this schema, payload or submission; or its archive is damaged.
    """
    if not isinstance(output, Mapping) or output.get("schema") != SCHEMA or output.get("kind") != "result":
        raise _untrusted("the output is not a result of schema " + SCHEMA)
    if output.get("nonce") != nonce:
        raise _untrusted("the result answers another submission (nonce)")
    if output.get("payload_sha256") != payload_sha256:
        raise _untrusted("the result is of another payload (payload_sha256)")
    try:
        members = _members(output)
        return Result(
            attempt=str(output["attempt"]),
            device=str(output["device"]),
            steps=tuple(output["steps"]),
            proof=dict(output["proof"]),
            summary=dict(output["summary"]),
            left_out=tuple(output["left_out"]),
            error=error,
            members=members,
        )
    except (KeyError, TypeError, ValueError) as slip:
        raise _untrusted(f"the result lacks something: {slip!r}") from slip


def parse_lines(text: bytes) -> Sequence[dict[str, Any]]:
    """Parse report lines. Raises: ResultsUntrusted: one of them is not a JSON object."""
    lines = []
    for number, raw in enumerate(text.split(b"\n"), 1):
        if not raw:
            continue
        try:
            line = json.loads(raw)
        except ValueError:
            raise _untrusted(f"report line {number} is not JSON") from None
        if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
            raise _untrusted(f"report line {number} is not a report line")
        lines.append(line)
    return lines


def _members(output: Mapping[str, Any]) -> tuple[unpack.Member, ...]:
    encoded = output.get("archive")
    if not encoded:
        return ()
    if len(encoded) > MAX_RESULT * 4 // 3 + 4:
        raise _untrusted(f"the archive is larger than {MAX_RESULT} bytes")
    try:
        blob = base64.b64decode(encoded, validate=True)
        if hashlib.sha256(blob).hexdigest() != output["archive_sha256"]:
            raise _untrusted("the archive does not have the digest that it came with")
        return unpack.read_archive(blob, BOUNDS)
    except (binascii.Error, unpack.ArchiveRefused) as damage:
        raise _untrusted(f"the archive cannot be unpacked: {damage}") from damage


def _ours(output: Any, kind: str, nonce: str) -> bool:
    return (
        isinstance(output, Mapping)
        and output.get("schema") == SCHEMA
        and output.get("kind") == kind
        and output.get("nonce") == nonce
    )


def _untrusted(why: str) -> ResultsUntrusted:
    return ResultsUntrusted(
        "The results of the worker cannot be trusted, so no test is reported from them. The job was billed.",
        looked_at=why,
        todo="look at response.json in the results folder, then run again",
    )
