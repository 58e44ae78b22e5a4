"""Remove what receipts name: one of them (`cleanup`), or all that nobody watches (`reap`). Never a stranger's endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_runpod.cleanup import clean_receipt, state_absence, state_end
from pytest_runpod.core.leftovers import Standing
from pytest_runpod.core.receipt import NAME_PREFIX, Receipt
from pytest_runpod.errors import CleanupUnresolved, ExitCode, ReceiptDamaged, RunpodError, worse
from pytest_runpod.leftovers import look_at
from pytest_runpod.provider.api import Endpoint, Provider
from pytest_runpod.store.receipts import ReceiptFile, all_receipts
from pytest_runpod.wiring import SystemClock, has_ended, reconnect


@dataclass(frozen=True, slots=True)
class Line:
    """One line of what was done or found; *code*: the exit code that it asks for."""

    text: str
    code: int = ExitCode.OK


def clean_one(file: ReceiptFile, environ: Mapping[str, str], absent: str | None = None) -> Line:
    """Delete what one receipt names, whoever watches it, and confirm. *absent*: why a person says that there is nothing."""
    clock = SystemClock()
    try:
        receipt = file.read()
        if not receipt.cleanup_confirmed and has_ended(receipt.where):
            receipt = _end(file, receipt, absent)
        elif absent is not None:
            receipt = state_absence(file, reconnect(receipt, environ), clock.iso, absent)
        elif not receipt.cleanup_confirmed:
            receipt = clean_receipt(file, reconnect(receipt, environ), clock.iso, rescue=True)
    except RunpodError as error:
        return Line(f"{file.path}: {error}", error.exit_code)
    return Line(f"{receipt.name}: cleanup_confirmed: {str(receipt.cleanup_confirmed).lower()}")


def _end(file: ReceiptFile, receipt: Receipt, absent: str | None) -> Receipt:
    if absent is not None:
        return state_end(file, SystemClock().iso, absent)
    raise CleanupUnresolved(
        f"The emulator that made {receipt.name} has ended, so nobody can be asked. Nothing was changed.",
        looked_at=f"{receipt.where.management_url}: nobody listens there",
        todo=f"if it is not served again: `pytest-runpod cleanup --receipt {file.path} --absent --reason TEXT`",
    )


def reap(state: Path, environ: Mapping[str, str]) -> Iterator[Line]:
    """Delete what the receipts in *state* name and nobody watches. Each line says what became of one of them."""
    files = all_receipts(state)
    if not files:
        yield Line(f"no receipts in {state}: nothing was ever created from there")
    for file in files:
        try:
            found = look_at(file, SystemClock().now())
        except ReceiptDamaged as damaged:
            yield Line(f"{file.path}: {damaged}", damaged.exit_code)
            continue
        if found.standing is Standing.WATCHED:
            minutes = (found.receipt.deadline_at - SystemClock().now()) / 60
            yield Line(
                f"{found.receipt.name}: in use by a run, or made by `setup`; its watchdog deletes it within {minutes:.0f} min "
                f"at the latest (now: `pytest-runpod cleanup --receipt {file.path}`)"
            )
        elif found.may_cost:
            yield clean_one(file, environ)
        else:
            yield Line(f"{found.receipt.name}: clean")


def by_prefix(provider: Provider, state: Path) -> Iterator[Line]:
    """Show every endpoint whose name begins as ours do, and which receipt names it. Read-only."""
    named = _named(state)
    ours = [endpoint for endpoint in provider.list_endpoints() if endpoint.name.startswith(NAME_PREFIX)]
    for endpoint in ours:
        file = named.get(endpoint.name)
        whose = f"named by {file.path}" if file else "no receipt here names it: it is never deleted from here"
        yield Line(f"{endpoint.id}  {endpoint.name}  workers.max {endpoint.workers_max}  {whose}")
    yield Line(f"{len(ours)} endpoints named {NAME_PREFIX}*")


def worst(lines: list[Line]) -> int:
    code: int = ExitCode.OK
    for line in lines:
        code = worse(code, line.code)
    return code


def unnamed(listed: tuple[Endpoint, ...], state: Path) -> list[Endpoint]:
    """Endpoints named as ours that no receipt in *state* names: another machine's, or a lost state folder's."""
    named = _named(state)
    return [one for one in listed if one.name.startswith(NAME_PREFIX) and one.name not in named]


def _named(state: Path) -> dict[str, ReceiptFile]:
    named = {}
    for file in all_receipts(state):
        try:
            named[file.read().name] = file
        except ReceiptDamaged:
            continue  # `reap` and `doctor` name it; it cannot say which endpoint it owns
    return named
