"""Is everything as a run needs it? Looks at both hosts, the key, quota, price, receipts and ledger; changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_runpod.core.budget import Stage, estimate_job, reservation_for
from pytest_runpod.core.diagnosis import quota_use
from pytest_runpod.core.leftovers import Standing
from pytest_runpod.core.money import format_usd
from pytest_runpod.errors import CleanupUnresolved, ExitCode, RunpodError
from pytest_runpod.leftovers import look_at
from pytest_runpod.options import RunSettings
from pytest_runpod.preflight import offer_of
from pytest_runpod.provider.api import Provider
from pytest_runpod.reap import unnamed
from pytest_runpod.store.ledger import Ledger
from pytest_runpod.store.receipts import all_receipts
from pytest_runpod.wiring import SystemClock

QUOTA: Final = 5  # the default of a new account. Source: RunPod, workers overview


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, and the error if it is not well."""

    what: str
    how: str
    error: RunpodError | None = None

    @property
    def code(self) -> int:
        return ExitCode.OK if self.error is None else self.error.exit_code

    def __str__(self) -> str:
        mark = "ok " if self.error is None else "!! "
        detail = self.how if self.error is None else str(self.error).replace("\n", "\n   ")
        return f"{mark}{self.what}: {detail}"


def examine(provider: Provider, settings: RunSettings, state: Path, ledger: Ledger) -> Iterator[Finding]:
    """Look at one thing after the other; each is one finding, and none of them keeps the others from being looked at."""
    yield _finding("management API", lambda: _management(provider))
    yield _finding("job API", lambda: _jobs(provider))
    yield _finding("quota of workers", lambda: _quota(provider, settings))
    yield _finding("price", lambda: _price(provider, settings))
    yield _finding("leftovers at the provider", lambda: _unnamed(provider, state))
    yield _finding("receipts", lambda: _receipts(state))
    yield _finding("ledger", lambda: _ledger(ledger, settings))


def _finding(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, look())
    except RunpodError as error:
        return Finding(what, "", error)


def _management(provider: Provider) -> str:
    return f"the key is accepted, {len(provider.list_endpoints())} endpoints (whether it may write only a create tells)"


def _jobs(provider: Provider) -> str:
    provider.check_job_access()
    return "the key is accepted"


def _quota(provider: Provider, settings: RunSettings) -> str:
    listed = provider.list_endpoints()
    free = QUOTA - sum(one.workers_max for one in listed)
    enough = "" if free >= settings.workers else "; a create may be refused, unless the account has more"
    return f"{quota_use(listed)}; a new account has {QUOTA}{enough}"


def _price(provider: Provider, settings: RunSettings) -> str:
    offer = offer_of(provider.gpus(), settings)
    return (
        f"{settings.gpu} costs {format_usd(offer.rate)} an hour; a job can cost "
        f"{format_usd(estimate_job(offer.rate, settings.workers))} at most"
    )


def _unnamed(provider: Provider, state: Path) -> str:
    strangers = unnamed(provider.list_endpoints(), state)
    if not strangers:
        return "every endpoint named as ours has a receipt here"
    names = ", ".join(f"{one.name} ({one.id})" for one in strangers)
    return f"{len(strangers)} named as ours without a receipt here, perhaps of another machine: {names}"


def _receipts(state: Path) -> str:
    found = [look_at(file, SystemClock().now()) for file in all_receipts(state)]
    doubtful = [one for one in found if one.may_cost]
    if doubtful:
        raise CleanupUnresolved(
            "Earlier runs may have left something behind. No further run will be started.",
            looked_at="; ".join(f"{one.file.path}: {one.standing.value}" for one in doubtful),
            todo="run `pytest-runpod reap` until it confirms",
        )
    watched = sum(one.standing is Standing.WATCHED for one in found)
    return f"{len(found)} in {state}, {watched} in use, the others clean"


def _ledger(ledger: Ledger, settings: RunSettings) -> str:
    used = sum(entry.counted for entry in ledger.entries())
    left = settings.caps.total - used
    needed = sum(reservation_for(stage, settings.workers) for stage in Stage)
    enough = "" if left >= needed else f"; a run needs {format_usd(needed)}: settle earlier ones first"
    return f"{format_usd(used)} of {format_usd(settings.caps.total)} count in {ledger.path}{enough}"
