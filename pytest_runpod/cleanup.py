"""Plan, act, list again until nothing of ours is left. Safe to repeat after any crash, from any process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pytest_runpod.core.lifecycle import Event, Phase
from pytest_runpod.core.limits import CLEANUP_PASSES
from pytest_runpod.core.plan import Action, Delete, Doubt, ScaleToZero, plan_cleanup
from pytest_runpod.core.receipt import Owned, Receipt
from pytest_runpod.errors import (
    CleanupUnresolved,
    ProviderError,
    ReceiptRefused,
    ReceiptUnwritable,
    RunpodError,
    StillLocked,
)
from pytest_runpod.provider.api import Endpoint, Provider
from pytest_runpod.store.receipts import ReceiptFile

PAUSE_S: Final = 1.0
ANOTHER_S: Final = 120.0  # so long another cleaner of the same receipt is waited for


def clean_up(owned: Owned, provider: Provider, *, wait: Callable[[float], object] = time.sleep) -> None:
    """Act until GET says 404 and a fresh list shows nothing of ours.

    Raises: CleanupUnresolved: something may still be there: our id under another name, or it does not go away.
    """
    trouble = "it is still listed"
    for attempt in range(CLEANUP_PASSES):
        try:
            plan = plan_cleanup(owned, _all_that_may_be_ours(owned, provider))
            if not plan:
                return
            for action in plan:
                _carry_out(action, provider)
        except CleanupUnresolved:
            raise
        except ProviderError as error:
            trouble = f"{error.happened} {error.looked_at}"
        if attempt:
            wait(PAUSE_S * attempt)
    raise CleanupUnresolved(
        f"The endpoint {owned.name} could not be confirmed as deleted: it may still exist, and cost.",
        looked_at=f"{CLEANUP_PASSES} rounds of delete and list; the last one: {trouble}",
        todo="run `pytest-runpod reap` until it confirms, or delete it in the provider's console",
    )


def clean_receipt(
    file: ReceiptFile,
    provider: Provider,
    now: Callable[[], str],
    *,
    wait: Callable[[float], object] = time.sleep,
    rescue: bool = False,
    patience_s: float = ANOTHER_S,
) -> Receipt:
    """Remove what the receipt in *file* owns, and write into it how that went. One cleaner at a time.

    A create whose answer was lost, and of which no list has ever shown anything, stays unresolved on purpose.

    Args:
        rescue: save the result of a job that has ended before its endpoint is deleted: the run that waited for it is gone.
        patience_s: how long another cleaner of this receipt is waited for.
    Raises: CleanupUnresolved: it is not certain that nothing is left; the receipt then says `unresolved`, and why.
    """
    with _alone(file, patience_s):
        receipt = file.read()
        if receipt.cleanup_confirmed:
            return receipt
        if rescue:
            receipt = _rescue(file, receipt, provider, now)
        try:
            owned = _found_again(receipt, provider)
            note = f"endpoint {owned.endpoint_id}" if owned.endpoint_id else "no endpoint is known"
            started = receipt.after(Event.CLEANUP_STARTED, now(), note, endpoint_id=owned.endpoint_id)
            try:
                receipt = file.write(started)
            except ReceiptUnwritable as full:
                clean_up(owned, provider, wait=wait)  # what costs goes first; what is known of it comes second
                raise CleanupUnresolved(
                    f"The endpoint {owned.name} was deleted, and its receipt cannot say so.",
                    looked_at=full.looked_at,
                    todo=full.todo,
                ) from full
            clean_up(owned, provider, wait=wait)
            if receipt.create_uncertain and owned.endpoint_id is None:
                raise CleanupUnresolved(
                    f"It is not known whether the endpoint {owned.name} was ever created: the answer was lost, no list shows it.",
                    looked_at=f"receipt {file.path}, a fresh list of all endpoints",
                    todo="submit nothing meanwhile. Run `pytest-runpod cleanup --receipt …` in some minutes; if it never shows "
                    "up in the provider's console either, say so with `--absent --reason TEXT`",
                )
        except RunpodError as trouble:
            if receipt.phase is not Phase.CLEANING:
                receipt = receipt.after(Event.CLEANUP_STARTED, now())
            unresolved = _as_unresolved(trouble, receipt.owned)
            with suppress(ReceiptUnwritable):  # the trouble itself is what must be told
                file.write(receipt.after(Event.CLEANUP_DOUBTED, now(), trouble=str(unresolved)))
            raise unresolved from trouble
        return file.write(receipt.after(Event.CLEANUP_CONFIRMED, now(), trouble=""))


def state_absence(file: ReceiptFile, provider: Provider, now: Callable[[], str], reason: str) -> Receipt:
    """Take a person's word that nothing of this run is there, if a fresh list shows nothing under its name.

    Raises: CleanupUnresolved: a list shows it. ReceiptRefused: the receipt is not in doubt.
    """
    with _alone(file):
        receipt = file.read()
        if receipt.phase is not Phase.UNRESOLVED:
            raise ReceiptRefused(
                "That receipt is not in doubt, so nobody's word is needed. Nothing was changed.",
                looked_at=f"{file.path}: {receipt.phase.value}",
                todo="run `pytest-runpod cleanup --receipt …` without --absent",
            )
        found = [endpoint.id for endpoint in provider.list_endpoints() if endpoint.name == receipt.name]
        if found:
            raise CleanupUnresolved(
                f"The endpoint {receipt.name} exists. Nothing was changed.",
                looked_at=f"a fresh list of all endpoints: {', '.join(found)}",
                todo="run `pytest-runpod cleanup --receipt …` without --absent: it deletes it",
            )
        file.write(receipt.after(Event.ABSENCE_STATED, now(), reason))
    return clean_receipt(file, provider, now)


def state_end(file: ReceiptFile, now: Callable[[], str], reason: str) -> Receipt:
    """Take a person's word that an emulator has ended, and with it everything that it had made: nobody can be asked any more."""
    with _alone(file):
        receipt = file.read()
        if receipt.cleanup_confirmed:
            return receipt
        for event, note in (
            (Event.CLEANUP_STARTED, "its emulator does not answer"),
            (Event.CLEANUP_DOUBTED, ""),
            (Event.ABSENCE_STATED, reason),
            (Event.CLEANUP_STARTED, ""),
        ):
            receipt = receipt.after(event, now(), note)
        return file.write(receipt.after(Event.CLEANUP_CONFIRMED, now(), trouble=""))


@contextmanager
def _alone(file: ReceiptFile, patience_s: float = ANOTHER_S) -> Iterator[None]:
    try:
        with file.lock(wait_s=patience_s):
            yield
    except StillLocked as busy:
        raise CleanupUnresolved(
            "Another process is deleting the endpoint of this receipt, and has not finished. It may still exist, and cost.",
            looked_at=busy.looked_at,
            todo="run `pytest-runpod cleanup --receipt …` until it confirms",
        ) from busy


def _as_unresolved(trouble: RunpodError, owned: Owned) -> CleanupUnresolved:
    if isinstance(trouble, CleanupUnresolved):
        return trouble
    return CleanupUnresolved(
        f"The endpoint {owned.name} could not be confirmed as deleted: it may still exist, and cost.",
        looked_at=f"{trouble.happened} {trouble.looked_at}",
        todo="run `pytest-runpod reap` until it confirms, or delete it in the provider's console",
    )


def _found_again(receipt: Receipt, provider: Provider) -> Owned:
    """What the receipt owns; with the id, if only the name is known and a list shows it."""
    if Event.ABSENCE_STATED.value in receipt.events:
        return Owned(receipt.name)  # what is now under our id is not ours any more, a person says
    owned = receipt.owned
    if owned.endpoint_id is not None:
        return owned
    found = (endpoint.id for endpoint in provider.list_endpoints() if endpoint.name == owned.name)
    return Owned(owned.name, next(found, None))


def _rescue(file: ReceiptFile, receipt: Receipt, provider: Provider, now: Callable[[], str]) -> Receipt:
    """Best effort on purpose: the endpoint is deleted whether or not its job's result can still be had."""
    if not receipt.endpoint_id or not receipt.job_id or file.result_path.exists():
        return receipt
    try:
        endpoint = provider.get_endpoint(receipt.endpoint_id)
        state = provider.job(endpoint, receipt.job_id) if endpoint is not None else None
        if state is None or not state.final or state.output is None:
            return receipt
        file.save_result(state)
        if receipt.phase is Phase.RUNNING:
            receipt = receipt.after(Event.JOB_FINAL, now(), state.status)
        return file.write(receipt.after(Event.RESULT_SAVED, now()))
    except RunpodError:
        return receipt


def _all_that_may_be_ours(owned: Owned, provider: Provider) -> tuple[Endpoint, ...]:
    """A fresh list, and what a GET of our id says: a list may lag, and it may not show everything."""
    listed = provider.list_endpoints()
    if owned.endpoint_id is None or any(endpoint.id == owned.endpoint_id for endpoint in listed):
        return listed
    seen = provider.get_endpoint(owned.endpoint_id)
    return listed if seen is None else (*listed, seen)


def _carry_out(action: Action, provider: Provider) -> None:
    match action:
        case ScaleToZero(endpoint_id):
            _scale_down(endpoint_id, provider)
        case Delete(endpoint_id):
            provider.delete_endpoint(endpoint_id)
        case Doubt(endpoint_id, name):
            raise CleanupUnresolved(
                f"The endpoint {endpoint_id} of this run now has another name. It was not deleted, and may cost.",
                looked_at=f"the provider calls it {name!r}",
                todo="decide in the provider's console whether it is yours; then delete it there, or say that it is not: "
                "`pytest-runpod cleanup --receipt … --absent --reason TEXT`",
            )


def _scale_down(endpoint_id: str, provider: Provider) -> None:
    """Best effort on purpose: deleting is what counts, and it comes next."""
    try:
        provider.scale_to_zero(endpoint_id)
    except ProviderError:
        return
