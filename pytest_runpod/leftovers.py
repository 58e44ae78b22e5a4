"""What earlier runs may have left: looked up in all receipts before more is created, and removed by `reap`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_runpod.core.leftovers import Standing, standing
from pytest_runpod.core.receipt import Receipt, Where
from pytest_runpod.errors import CleanupUnresolved
from pytest_runpod.store.receipts import ReceiptFile, all_receipts


@dataclass(frozen=True, slots=True)
class Found:
    """One receipt, and how it stands."""

    file: ReceiptFile
    receipt: Receipt
    standing: Standing

    @property
    def may_cost(self) -> bool:
        return self.standing in (Standing.UNRESOLVED, Standing.ABANDONED)


def look_at(file: ReceiptFile, now: float) -> Found:
    """Read one receipt. Raises: ReceiptDamaged."""
    watched = file.is_watched()  # before the receipt is read: a watchdog that ends has confirmed
    receipt = file.read()
    return Found(file, receipt, standing(receipt, now, watched=watched))


def insist_on_certainty(state: Path, where: Where, now: float, but: Path | None = None) -> None:
    """Let nothing be created at *where* while it is not certain that earlier runs have left nothing there.

    Args:
        but: the receipt of this run itself.
    Raises: CleanupUnresolved: some may have. ReceiptDamaged: a receipt cannot be read.
    """
    doubtful = [
        found
        for found in _all(state, now)
        if found.may_cost and found.file.path != but and found.receipt.where.management_url == where.management_url
    ]
    if doubtful:
        raise CleanupUnresolved(
            "It is not certain that earlier runs have left nothing behind. Nothing was created, nothing was billed.",
            looked_at="; ".join(
                f"{one.receipt.name} is {one.standing.value} ({one.file.path})" for one in doubtful[:5]
            ),
            todo="run `pytest-runpod reap` until it confirms, then run again",
        )


def _all(state: Path, now: float) -> Iterator[Found]:
    for file in all_receipts(state):
        yield look_at(file, now)
