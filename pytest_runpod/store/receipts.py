"""Receipts on disk: one JSON file each, fsynced before the request it speaks of leaves. An existing one is never overwritten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_runpod.core.receipt import Receipt
from pytest_runpod.errors import ReceiptDamaged
from pytest_runpod.store.atomic import create_new, write_atomic
from pytest_runpod.store.locking import locked


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
    def lock(self) -> Iterator[None]:
        """One cleaner at a time: the run itself, its watchdog, or a command."""
        with locked(self.path):
            yield


def receipt_path(state: Path, run: str) -> Path:
    return state / "receipts" / f"{run}.json"


def all_receipts(state: Path) -> tuple[ReceiptFile, ...]:
    return tuple(ReceiptFile(path) for path in sorted((state / "receipts").glob("*.json")))


def _encoded(receipt: Receipt) -> bytes:
    return (json.dumps(receipt.to_json(), indent=1) + "\n").encode("utf-8")
