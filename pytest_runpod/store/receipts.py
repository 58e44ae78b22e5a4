"""Receipts on disk: one JSON file each, fsynced before the request it speaks of leaves. An existing one is never overwritten."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_runpod.core.cloud import Job
from pytest_runpod.core.receipt import Receipt
from pytest_runpod.errors import ReceiptDamaged, ReceiptRefused, ReceiptUnwritable
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
        except OSError as no:
            raise _unwritable(self.path, no) from no

    def read(self) -> Receipt:
        """Raises: ReceiptDamaged: missing, torn, or of another version."""
        try:
            return Receipt.from_json(json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError, RecursionError) as damage:
            raise ReceiptDamaged(
                "The receipt cannot be read, so it is not known what it owns. Nothing was changed.",
                looked_at=f"{self.path}: {damage}",
                todo="delete endpoints named pytest-runpod-* that nobody uses in the provider's console, then move the file away",
            ) from damage

    def write(self, receipt: Receipt) -> Receipt:
        """Raises: ReceiptUnwritable: the disk is full, or the folder read-only; the file is as it was."""
        self._put(self.path, _encoded(receipt))
        return receipt

    def _put(self, path: Path, data: bytes) -> None:
        try:
            write_atomic(path, data)
        except OSError as no:
            raise _unwritable(path, no) from no

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
        return any(is_marked(path) for path in self.path.parent.glob(f"{glob.escape(self.path.stem)}.watch-*"))

    @property
    def watchdog_log(self) -> Path:
        return self.path.with_suffix(".watchdog.txt")

    @contextmanager
    def using(self) -> Iterator[None]:
        """One run at a time uses the endpoint, for as long as it lives. Raises: ReceiptRefused: another one does."""
        mark = self.path.with_suffix(".in-use")
        if is_marked(mark):
            raise ReceiptRefused(
                "Another run uses the endpoint of that receipt. Nothing was submitted, nothing was deleted.",
                looked_at=str(mark),
                todo="wait for it to end, or run without --runpod-receipt",
            )
        with marked(mark):
            yield

    # --- the result, if somebody saved it here before its endpoint was deleted

    @property
    def result_path(self) -> Path:
        return self.path.with_suffix(".result")

    def save_result(self, state: Job) -> None:
        self._put(self.result_path, json.dumps(asdict(state)).encode("utf-8"))

    def saved_result(self) -> Job | None:
        """The final state of the job, with its output; None: nobody saved it. Raises: ReceiptDamaged: it cannot be read."""
        try:
            job = Job(**json.loads(self.result_path.read_text(encoding="utf-8")))
            if not isinstance(job.id, str) or not isinstance(job.status, str) or type(job.retries) is not int:
                raise ValueError("not the state of a job")
            return job
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, RecursionError) as damage:
            raise ReceiptDamaged(
                "The saved result of that receipt cannot be read. Nothing was reported.",
                looked_at=f"{self.result_path}: {damage}",
                todo="run again without --runpod-receipt; it is paid again then",
            ) from damage


def receipt_path(state: Path, run: str) -> Path:
    return state / "receipts" / f"{run}.json"


def all_receipts(state: Path) -> tuple[ReceiptFile, ...]:
    """Every receipt of a state folder; those that lie elsewhere are linked from there."""
    found = sorted((state / "receipts").glob("*.json"))
    return tuple(ReceiptFile(path.resolve()) for path in found if path.exists())


def link_receipt(state: Path, run: str, file: ReceiptFile) -> None:
    """Let `all_receipts` find a receipt that lies elsewhere. Raises: ReceiptUnwritable."""
    place = receipt_path(state, run)
    if file.path.resolve() == place.resolve():
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file.path.resolve())
    except OSError as no:
        raise _unwritable(place, no) from no


def _unwritable(path: Path, no: OSError) -> ReceiptUnwritable:
    return ReceiptUnwritable(
        "The receipt cannot be written, and without it nothing may be created or done.",
        looked_at=f"{path}: {no}",
        todo="make room on its disk, make its folder writable, or name another --runpod-state",
    )


def _encoded(receipt: Receipt) -> bytes:
    return (json.dumps(receipt.to_json(), indent=1) + "\n").encode("utf-8")
