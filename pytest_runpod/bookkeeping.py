"""The command `pytest-runpod ledger`: what was reserved, what was billed, and how the one becomes the other."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pytest_runpod.core.budget import Entry
from pytest_runpod.core.limits import TOTAL_BUDGET
from pytest_runpod.core.money import MicroUsd, format_usd, parse_usd
from pytest_runpod.core.receipt import Receipt
from pytest_runpod.core.settlement import (
    WINDOW,
    AlreadySettled,
    Due,
    NeverCreated,
    NoReceipt,
    NothingBilled,
    StillThere,
    TooEarly,
    TooLate,
    When,
    read_bill,
    when_to_settle,
)
from pytest_runpod.errors import BudgetRefused, ReceiptDamaged, RunpodError, SettingsRefused
from pytest_runpod.reap import Line
from pytest_runpod.store.ledger import NOT_CHANGED, Ledger
from pytest_runpod.store.receipts import ReceiptFile, receipt_path
from pytest_runpod.wiring import SystemClock, reconnect, user_state


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define `ledger [show]`, `ledger settle [RUN]` and `ledger adjust RUN`."""
    _add_places(parser)
    parser.set_defaults(book=_show)
    words = parser.add_subparsers(metavar="show | settle | adjust")
    show = words.add_parser("show", help="the reservations, and what became of them (default)")
    show.set_defaults(book=_show)
    settle = words.add_parser(
        "settle", help="let runs count for what the provider has billed; early bills are not taken"
    )
    settle.add_argument("of", metavar="RUN", nargs="?", help="one run (default: all that are open)")
    settle.set_defaults(book=_settle)
    adjust = words.add_parser("adjust", help="let one run count for an amount that you know, with a reason")
    adjust.add_argument("of", metavar="RUN")
    adjust.add_argument("--amount", metavar="USD", required=True, help="what it cost, all its entries together")
    adjust.add_argument("--reason", required=True, help="where that figure comes from")
    adjust.set_defaults(book=_adjust)
    for one in (show, settle, adjust):
        _add_places(one, default=argparse.SUPPRESS)


def keep(options: argparse.Namespace, environ: Mapping[str, str]) -> Iterator[Line]:
    """Do what the command line asks for. Raises: RunpodError: nothing was changed."""
    state = options.state or (options.ledger.parent if options.ledger else user_state())
    book = _Book(Ledger(options.ledger or state / "ledger.json"), state, environ)
    yield from options.book(book, options)


@dataclass(frozen=True, slots=True)
class _Book:
    """A ledger, the folder of the receipts that belong to it, and what leads to the provider."""

    ledger: Ledger
    state: Path
    environ: Mapping[str, str]

    def open_runs(self) -> tuple[str, ...]:
        """Those of which an entry still counts for what it reserved, the oldest first."""
        return tuple(dict.fromkeys(entry.run for entry in self.ledger.entries() if entry.actual is None))

    def receipt(self, run: str) -> Receipt | None:
        """Raises: ReceiptDamaged: it cannot be read, or is another run's."""
        file = ReceiptFile(receipt_path(self.state, run))
        if not file.path.exists():
            return None
        receipt = file.read()
        if receipt.run != run:
            raise ReceiptDamaged(
                f"The receipt is of another run. {NOT_CHANGED}.", looked_at=f"{file.path}: of {receipt.run}"
            )
        return receipt


# --- show


def _show(book: _Book, _: argparse.Namespace) -> Iterator[Line]:
    entries = book.ledger.entries()
    for entry in entries:
        yield Line(_row(entry))
    counted = sum(entry.counted for entry in entries)
    reserved = sum(entry.reserved for entry in entries)
    billed = sum(entry.actual or 0 for entry in entries)
    still = sum(entry.reserved for entry in entries if entry.actual is None)
    yield Line(f"{len(entries)} entries in {book.ledger.path}, {format_usd(reserved)} reserved")
    yield Line(f"{format_usd(counted)} count: {format_usd(billed)} billed, {format_usd(still)} open")
    left = TOTAL_BUDGET - counted
    yield Line(f"{format_usd(left)} left of {format_usd(TOTAL_BUDGET)}, the default of --runpod-budget-total")


def _row(entry: Entry) -> str:
    actual = "open" if entry.actual is None else format_usd(entry.actual)
    money = f"reserved {format_usd(entry.reserved):<9} {'billed ' + actual if entry.actual is not None else actual:<16}"
    return f"{entry.at}  {entry.run}  {entry.stage.value:<5}  {money}  {entry.note}".rstrip()


# --- settle


def _settle(book: _Book, options: argparse.Namespace) -> Iterator[Line]:
    if options.of is not None:
        yield _settled(book, options.of)
        return
    runs = book.open_runs()
    if not runs:
        yield Line(f"no run in {book.ledger.path} is open")
    for run in runs:
        try:
            yield _settled(book, run)
        except BudgetRefused as not_now:
            yield Line(f"{run}: {not_now.happened} ({not_now.looked_at})")
        except RunpodError as error:
            yield Line(f"{run}: {error}", error.exit_code)


def _settled(book: _Book, run: str) -> Line:
    """Settle one run. Raises: BudgetRefused: not now, and why; ReceiptDamaged, ProviderError. Nothing was changed then."""
    entries, receipt = book.ledger.of(run), book.receipt(run)
    when = when_to_settle(entries, receipt, datetime.now(timezone.utc))
    if isinstance(when, NeverCreated):
        never = "no endpoint was ever created"
        return _line(book.ledger.settle(run, MicroUsd(0), _note(0, never)), 0, never)
    if receipt is None or not isinstance(when, Due):
        raise _not_now(book, run, receipt, when)
    endpoint_id = receipt.endpoint_id or next((one.endpoint_id for one in entries if one.endpoint_id), None)
    billed = read_bill(reconnect(receipt, book.environ).bill(endpoint_id)) if endpoint_id else NothingBilled()
    if isinstance(billed, NothingBilled):
        raise _not_now(book, run, receipt, billed)
    why = f"bill of {endpoint_id}, hours: {billed.records}"
    return _line(book.ledger.settle(run, billed.amount, _note(billed.amount, why)), billed.amount, why)


def _not_now(book: _Book, run: str, receipt: Receipt | None, why: When | NothingBilled) -> BudgetRefused:
    """Say why *run* is not settled, and what to do instead."""
    name = receipt.name if receipt else ""
    happened, looked_at, first = {
        AlreadySettled: (
            "It is settled already, in whole or in part: bills do not replace that.",
            str(book.ledger.path),
            "",
        ),
        NoReceipt: (
            "It has no receipt, so nobody can tell what it has created.",
            f"{receipt_path(book.state, run)} is not there",
            "name the state folder with --state, or look at the provider's console; ",
        ),
        StillThere: (
            "Its clean-up is not confirmed, so it may still cost.",
            f"{name}: {receipt.phase.value if receipt else ''}",
            "run `pytest-runpod reap`, settle later; ",
        ),
        TooEarly: (
            "Its bill may still grow: it lags, and comes by the hour.",
            f"settle it from {why.until:%Y-%m-%d %H:%M} UTC on" if isinstance(why, TooEarly) else "",
            "settle it then; ",
        ),
        TooLate: (
            f"It is older than what a bill shows, {WINDOW.days} days.",
            name,
            "look at the provider's console; ",
        ),
        NothingBilled: (
            "The bill shows nothing of its endpoint, and that proves nothing.",
            f"{(receipt.endpoint_id if receipt else None) or name}, at {receipt.where.management_url if receipt else ''}",
            "settle it later, or look at the provider's console; ",
        ),
    }[type(why)]
    todo = f"{first}if you know the amount: `pytest-runpod ledger adjust {run} --amount USD --reason TEXT`"
    return BudgetRefused(f"{happened} {NOT_CHANGED}.", looked_at=looked_at, todo=todo)


# --- adjust


def _adjust(book: _Book, options: argparse.Namespace) -> Iterator[Line]:
    problems = []
    amount, reason = MicroUsd(0), " ".join(options.reason.split())
    try:
        amount = parse_usd(options.amount)
    except ValueError as slip:
        problems.append(f"--amount: {slip}")
    if not reason:
        problems.append("--reason: say where the figure comes from")
    if problems:
        raise SettingsRefused(problems)
    why = f"by hand: {reason}"
    yield _line(book.ledger.adjust(options.of, amount, _note(amount, why)), amount, why)


def _note(amount: int, why: str) -> str:
    return f"{SystemClock().iso()} {format_usd(amount)}, {why}"


def _line(changed: tuple[Entry, ...], amount: int, why: str) -> Line:
    """Say what a run counts for now; aloud, if that is more than it had reserved."""
    reserved = sum(entry.reserved for entry in changed)
    more = f"; that is {format_usd(amount - reserved)} MORE than was reserved" if amount > reserved else ""
    return Line(f"{changed[0].run}: {format_usd(amount)} count, {format_usd(reserved)} were reserved{more} ({why})")


def _add_places(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    parser.add_argument(
        "--ledger", type=Path, default=default, help="the ledger (default: ledger.json in the state folder)"
    )
    parser.add_argument("--state", type=Path, default=default, help="the state folder (default: where the ledger lies)")
