"""Plan, act, list again until nothing of ours is left. Safe to repeat after any crash, from any process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from pytest_runpod.core.lifecycle import Event
from pytest_runpod.core.limits import CLEANUP_PASSES
from pytest_runpod.core.plan import Action, Delete, Doubt, ScaleToZero, plan_cleanup
from pytest_runpod.core.receipt import Owned, Receipt
from pytest_runpod.errors import CleanupUnresolved, ProviderError
from pytest_runpod.provider.api import Provider
from pytest_runpod.store.receipts import ReceiptFile

PAUSE_S: Final = 1.0


def clean_up(owned: Owned, provider: Provider, *, wait: Callable[[float], object] = time.sleep) -> None:
    """Act until GET says 404 and a fresh list shows nothing of ours.

    Raises: CleanupUnresolved: something may still be there: our id under another name, or it does not go away.
    """
    trouble = "it is still listed"
    for attempt in range(CLEANUP_PASSES):
        try:
            plan = plan_cleanup(owned, provider.list_endpoints())
            if not plan and _gone(owned, provider):
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
        todo="run `pytest-runpod cleanup` until it confirms, or delete it in the provider's console",
    )


def clean_receipt(
    file: ReceiptFile, provider: Provider, now: Callable[[], str], *, wait: Callable[[float], object] = time.sleep
) -> Receipt:
    """Remove what the receipt in *file* owns, and write into it how that went. One cleaner at a time.

    A create whose answer was lost, and of which no list has ever shown anything, stays unresolved on purpose.
    Raises: CleanupUnresolved: as `clean_up`; the receipt then says `unresolved`.
    """
    with file.lock():
        receipt = file.read()
        if receipt.cleanup_confirmed:
            return receipt
        uncertain = receipt.create_uncertain and receipt.endpoint_id is None
        owned = _reconciled(receipt.owned, provider) if uncertain else receipt.owned
        receipt = file.write(receipt.after(Event.CLEANUP_STARTED, now(), endpoint_id=owned.endpoint_id))
        try:
            clean_up(owned, provider, wait=wait)
            if uncertain and owned.endpoint_id is None:
                raise CleanupUnresolved(
                    f"It is not known whether the endpoint {owned.name} was ever created: the answer was lost, no list shows it.",
                    looked_at=f"receipt {file.path.name}, a fresh list of all endpoints",
                    todo="run `pytest-runpod cleanup` again in some minutes; submit nothing meanwhile",
                )
        except CleanupUnresolved as unresolved:
            file.write(receipt.after(Event.CLEANUP_DOUBTED, now(), trouble=str(unresolved)))
            raise
        return file.write(receipt.after(Event.CLEANUP_CONFIRMED, now(), trouble=""))


def _reconciled(owned: Owned, provider: Provider) -> Owned:
    for endpoint in provider.list_endpoints():
        if endpoint.name == owned.name:
            return Owned(owned.name, endpoint.id)
    return owned


def _gone(owned: Owned, provider: Provider) -> bool:
    return owned.endpoint_id is None or provider.get_endpoint(owned.endpoint_id) is None


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
                todo="decide in the provider's console whether it is yours, then delete it there",
            )


def _scale_down(endpoint_id: str, provider: Provider) -> None:
    """Best effort on purpose: deleting is what counts, and it comes next."""
    try:
        provider.scale_to_zero(endpoint_id)
    except ProviderError:
        return
