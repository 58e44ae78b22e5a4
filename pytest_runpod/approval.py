"""The safety catch: what was packed must be what a person approved, digest by digest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_runpod.core.canonical import worker_digest
from pytest_runpod.core.choice import Decision
from pytest_runpod.core.limits import (
    DISK_GB,
    EXECUTION_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    JOB_TTL_S,
    MAX_RESULT,
    PRICE_CEILING,
    SCHEMA,
    SETUP_DEADLINE_S,
    WORKER_DEADLINE_S,
    WORKERS_MIN,
)
from pytest_runpod.core.manifest import PackedFile, Payload, differing_files, make_payload
from pytest_runpod.errors import ApprovalRefused
from pytest_runpod.options import RunSettings
from pytest_runpod.store.atomic import write_atomic

SHOWN: int = 20


def build_payload(settings: RunSettings, files: list[PackedFile], worker: dict[str, str]) -> Payload:
    """Put together what will run and on what: files, worker, image, card, bounds, requirements, names of variables."""
    return make_payload(files, worker_digest(worker), run_spec(settings))


def run_spec(settings: RunSettings) -> dict[str, Any]:
    """The part of the manifest that is no file. The same on every machine, whatever is installed there."""
    return {
        "image": settings.image,
        "device": settings.device,
        "gpu": settings.gpu,
        "requirements": list(settings.requirements),
        "env": sorted(settings.env),
        "commands": dict(settings.commands),
        "run_commands": ["accuracy"] if settings.accuracy else [],
        "bounds": {
            "workers_min": WORKERS_MIN,
            "workers_max": settings.workers,
            "disk_gb": DISK_GB,
            "idle_timeout_s": IDLE_TIMEOUT_S,
            "execution_timeout_s": EXECUTION_TIMEOUT_S,
            "job_ttl_s": JOB_TTL_S,
            "setup_deadline_s": SETUP_DEADLINE_S,
            "worker_deadline_s": WORKER_DEADLINE_S,
            "max_result_bytes": MAX_RESULT,
            "price_ceiling_micro_usd_per_hour": PRICE_CEILING,
        },
    }


def check_approval(payload: Payload, settings: RunSettings, approvals: Path) -> None:
    """Let the payload pass if its digest was approved, in full.

    The embedded emulator runs on this machine, as this user, for no money: there a run without `--approved-sha` approves
    itself; a digest that was given is compared all the same.
    Raises: ApprovalRefused: missing or different, with the files that differ from what was approved, if that is known.
    """
    approved = settings.approved_sha
    if approved is None and settings.embedded:
        return
    if approved is None:
        raise ApprovalRefused(
            "Nobody has approved this payload. Nothing was created, nothing was billed.",
            looked_at=f"--approved-sha is not given; packed {payload.sha256}, {len(payload.files)} files, {payload.size:,} bytes",
            todo="read `pytest --runpod-prepare`, then pass its digest as --approved-sha",
        )
    if approved != payload.sha256:
        raise ApprovalRefused(
            "What was packed is not what was approved. Nothing was created, nothing was billed.",
            looked_at=f"packed {payload.sha256}, approved {approved}; {_differences(payload, approved, approvals)}",
            todo="read `pytest --runpod-prepare`, then pass its digest as --approved-sha",
        )
    remember(payload, approvals)


def remember(payload: Payload, approvals: Path) -> None:
    """Keep the manifest under its digest, so that a later difference can be named."""
    path = approvals / f"{payload.sha256}.json"
    if not path.exists():
        write_atomic(path, payload.manifest)


def prepared_text(payload: Payload, decisions: tuple[Decision, ...], *, verbose: bool) -> str:
    """What `--runpod-prepare` prints: the digests, what will run, every file, and what stays here."""
    run = payload.run
    lines = [
        f"payload_sha256: {payload.sha256}",
        f"worker_sha256: {payload.worker_sha256}",
        f"schema: {SCHEMA}",
        f"image: {run['image']}",
        f"device: {run['device']} ({run['gpu']})",
        f"files: {len(payload.files)}, {payload.size:,} bytes",
    ]
    lines += [f"{key}: {', '.join(run[key]) or '-'}" for key in ("requirements", "env", "run_commands")]
    lines += [f"command {name}: {command}" for name, command in sorted(run["commands"].items())]
    lines += [f"bound {name}: {value}" for name, value in sorted(run["bounds"].items())]
    manifest = [f"  {file.mode} {len(file.data):>9,}  {file.path}" for file in payload.files]
    lines += ["", "Packed:", *manifest]
    stays = [decision for decision in decisions if not decision.packed]
    if stays:
        shown = stays if verbose else stays[:SHOWN]
        lines += ["", f"Stays here ({len(stays)}):", *(f"  {decision.path}  ({decision.rule})" for decision in shown)]
        if len(shown) < len(stays):
            lines.append(f"  ... and {len(stays) - len(shown)} more (-v shows all)")
    return "\n".join(lines)


def _differences(payload: Payload, approved: str, approvals: Path) -> str:
    try:
        before = (approvals / f"{approved}.json").read_bytes()
    except OSError:
        return f"the approved manifest is not known here ({approvals})"
    lines = differing_files(before, payload.manifest)
    shown = ", ".join(lines[:SHOWN])
    return f"{len(lines)} differ: {shown}" + (f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else "")
