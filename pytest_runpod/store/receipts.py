"""Receipts on disk: one JSON file each, fsynced before the request it speaks of leaves. An existing one is never overwritten."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_runpod.core.cloud import Job
from pytest_runpod.core.receipt import Receipt
from pytest_runpod.errors import ReceiptDamaged
from pytest_runpod.store.atomic import create_new, write_atomic
from pytest_runpod.store.locking import WAIT_S, is_marked, locked, marked


@dataclass(frozen=True, slots=True)
class ReceiptFile:
    """One receipt at one path."""

    path: Path

    def create(self, receipt: Receipt) -> None:
        """Write a new receipt, durably.

        Raises: ReceiptDamaged: the file exists already; it was left as it is.
        """
        try:
            create_new(self.path, _encoded(receipt))
        except FileExistsError:
            raise ReceiptDamaged(
                "That receipt exists already, and may name something that costs. Nothing was created.",
                looked_at=str(self.path),
                todo=f"run `pytest-runpod cleanup --receipt {self.path}`, then use a new file name",
            ) from None

    def read(self) -> Receipt:
        """Raises: ReceiptDamaged: missing, torn, or of another version."""
        try:
            return Receipt.from_json(json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as damage:
            raise ReceiptDamaged(
                "The receipt cannot be read, so it is not known what it owns. Nothing was changed.",
                looked_at=f"{self.path}: {damage}",
                todo="look for endpoints named pytest-runpod-* in the provider's console",
            ) from damage

    def write(self, receipt: Receipt) -> Receipt:
        write_atomic(self.path, _encoded(receipt))
        return receipt

    @contextmanager
    def lock(self, *, wait_s: float = WAIT_S) -> Iterator[None]:
        """One cleaner at a time: the run itself, its watchdog, or a command."""
        with locked(self.path, wait_s=wait_s):
            yield

    # --- who watches it

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Let other processes see that this one watches the receipt."""
        with marked(self.path.with_suffix(f".watch-{os.getpid()}")):
            yield

    def is_watched(self) -> bool:
        """Whether a living watchdog will clean this up."""
        return any(is_marked(path) for path in self.path.parent.glob(f"{self.path.stem}.watch-*"))

    @property
    def watchdog_log(self) -> Path:
        return self.path.with_suffix(".watchdog.txt")

    # --- the result, if somebody saved it here before its endpoint was deleted

    @property
    def result_path(self) -> Path:
        return self.path.with_suffix(".result")

    def save_result(self, state: Job) -> None:
        write_atomic(self.result_path, json.dumps(asdict(state)).encode("utf-8"))

    def saved_result(self) -> Job | None:
        """The final state of the job, with its output; None: nobody saved it. Raises: ReceiptDamaged: it cannot be read."""
        try:
            return Job(**json.loads(self.result_path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as damage:
            raise ReceiptDamaged(
                "The saved result of that receipt cannot be read. Nothing was reported.",
                looked_at=f"{self.result_path}: {damage}",
                todo="run again without --runpod-receipt; it is paid again then",
            ) from damage


def receipt_path(state: Path, run: str) -> Path:
    return state / "receipts" / f"{run}.json"


def all_receipts(state: Path) -> tuple[ReceiptFile, ...]:
    return tuple(ReceiptFile(path) for path in sorted((state / "receipts").glob("*.json")))


def _encoded(receipt: Receipt) -> bytes:
    return (json.dumps(receipt.to_json(), indent=1) + "\n").encode("utf-8")
