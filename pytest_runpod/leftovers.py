"""What earlier runs may have left: looked up in all receipts before more is created, and removed by `reap`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

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
        if found.may_cost
        and found.file.path != but
        and same_place(found.receipt.where.management_url, where.management_url)
    ]
    if doubtful:
        raise CleanupUnresolved(
            "It is not certain that earlier runs have left nothing behind. Nothing was created, nothing was billed.",
            looked_at="; ".join(
                f"{one.receipt.name} is {one.standing.value} ({one.file.path})" for one in doubtful[:5]
            ),
            todo="run `pytest-runpod reap` until it confirms, then run again",
        )


def same_place(one: str, other: str) -> bool:
    """Whether two URLs lead to one place, however they are written.

    >>> same_place("https://API.example/", "https://api.example:443"), same_place("http://localhost:1", "http://127.0.0.1:1")
    (True, True)
    """
    return _place(one) == _place(other)


def _place(url: str) -> tuple[str, str, int | None, str]:
    parts = urlsplit(url)
    host = "localhost" if parts.hostname in ("127.0.0.1", "::1") else parts.hostname or ""
    return parts.scheme, host, parts.port or {"http": 80, "https": 443}.get(parts.scheme), parts.path.rstrip("/")


def _all(state: Path, now: float) -> Iterator[Found]:
    for file in all_receipts(state):
        yield look_at(file, now)
