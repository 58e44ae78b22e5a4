"""The canonical manifest: what was packed, what it will run on, and the one digest of both."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_runpod.core.canonical import canonical_json, sha256
from pytest_runpod.core.limits import SCHEMA


@dataclass(frozen=True, slots=True)
class PackedFile:
    """One file of the payload: relative POSIX path, the bytes that travel, the owner's executable bit."""

    path: str
    data: bytes
    executable: bool = False

    @property
    def mode(self) -> str:
        return "0755" if self.executable else "0644"


@dataclass(frozen=True, slots=True)
class Payload:
    """Files, worker digest and run spec. Equal content gives an equal digest, whatever machine packed it."""

    files: tuple[PackedFile, ...]
    worker_sha256: str
    run: Mapping[str, Any]

    @property
    def manifest(self) -> bytes:
        """Canonical JSON. Its SHA-256 is what a person approves."""
        return canonical_json(
            {
                "schema": SCHEMA,
                "files": [
                    {"path": file.path, "mode": file.mode, "size": len(file.data), "sha256": sha256(file.data)}
                    for file in self.files
                ],
                "worker_sha256": self.worker_sha256,
                "run": dict(self.run),
            }
        )

    @property
    def sha256(self) -> str:
        return sha256(self.manifest)

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(file.path for file in self.files)

    @property
    def size(self) -> int:
        """Bytes of all files, uncompressed."""
        return sum(len(file.data) for file in self.files)


def make_payload(files: Iterable[PackedFile], worker_sha256: str, run: Mapping[str, Any]) -> Payload:
    """Sort *files* by the bytes of their paths."""
    ordered = tuple(sorted(files, key=lambda file: file.path.encode("utf-8")))
    return Payload(ordered, worker_sha256, run)


def differing_files(before: bytes, after: bytes) -> tuple[str, ...]:
    """Say which lines of two manifests differ: paths, prefixed by what happened to them, then changed run settings.

    Raises: ValueError: *before* or *after* is not a manifest.
    """
    old, new = _parsed(before), _parsed(after)
    lines = []
    for path in sorted(old["files"] | new["files"]):
        if path not in new["files"]:
            lines.append(f"removed {path}")
        elif path not in old["files"]:
            lines.append(f"added {path}")
        elif old["files"][path] != new["files"][path]:
            lines.append(f"changed {path}")
    if old["worker"] != new["worker"]:
        lines.append("changed the worker (worker_sha256)")
    lines += [
        f"changed run setting {key}"
        for key in sorted(old["run"] | new["run"])
        if old["run"].get(key) != new["run"].get(key)
    ]
    return tuple(lines)


def _parsed(manifest: bytes) -> dict[str, Any]:
    try:
        value = json.loads(manifest)
        files = {entry["path"]: (entry["sha256"], entry["mode"]) for entry in value["files"]}
        return {"files": files, "worker": value["worker_sha256"], "run": dict(value["run"])}
    except (TypeError, KeyError) as damage:
        raise ValueError(f"not a manifest: {damage!r}") from damage
