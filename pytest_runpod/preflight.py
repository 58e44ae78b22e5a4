"""Before anything is created: what the provider offers now, and what will be asked of it, word for word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pytest_runpod.core.clock import Clock
from pytest_runpod.core.cloud import EndpointSpec, Gpu
from pytest_runpod.core.limits import (
    DISK_GB,
    EXECUTION_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    IMAGE_CUDA,
    PRICE_CEILING,
    QUEUE_DELAY_S,
    SETUP_DEADLINE_S,
    WORKERS_MIN,
)
from pytest_runpod.core.money import MicroUsd, format_usd
from pytest_runpod.core.receipt import NAME_PREFIX, Receipt, Where
from pytest_runpod.core.wire import start_command
from pytest_runpod.errors import BudgetRefused, ProviderError, SettingsRefused
from pytest_runpod.options import RunSettings
from pytest_runpod.provider.api import Provider
from pytest_runpod.store.ledger import Ledger

FIXED: Final = (
    "name", "image", "args", "pool", "gpu_count", "workers_min", "workers_max", "idle_timeout_s", "execution_timeout_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Offer:
    """What the live catalog says of the card that was asked for."""

    pool: str
    excluded_types: tuple[str, ...]
    rate: MicroUsd


def preflight(provider: Provider, settings: RunSettings) -> Offer:
    """Look, without changing anything: key on both hosts, the card, its price.

    Raises: ProviderError: a host does not accept the key, or the card is in no pool. BudgetRefused: above the ceiling.
    """
    provider.list_endpoints()
    provider.check_job_access()
    return offer_of(provider.gpus(), settings)


def offer_of(catalog: tuple[Gpu, ...], settings: RunSettings) -> Offer:
    """Find the card in the catalog. Raises: ProviderError: in no pool. BudgetRefused: above the ceiling."""
    card = next((gpu for gpu in catalog if gpu.id == settings.gpu), None)
    if card is None or card.pool is None or card.price is None:
        known = sorted(gpu.id for gpu in catalog if gpu.pool and gpu.price is not None)
        raise ProviderError(
            f"{settings.gpu} is no card of the provider's Serverless pools. Nothing was created, nothing was billed.",
            looked_at=f"the live catalog: {', '.join(known)}",
            todo="choose one of these with --runpod-gpu",
        )
    if card.price > PRICE_CEILING:
        raise BudgetRefused(
            f"{card.id} costs {format_usd(card.price)} an hour now: above the ceiling. Nothing was created.",
            looked_at=f"the live catalog; the ceiling is {format_usd(PRICE_CEILING)} an hour",
            todo="choose a cheaper card with --runpod-gpu, or wait for the price to fall",
        )
    others = tuple(sorted(gpu.id for gpu in catalog if gpu.pool == card.pool and gpu.id != card.id))
    return Offer(card.pool, others, card.price)


def make_spec(name: str, settings: RunSettings, offer: Offer, env: Mapping[str, str]) -> EndpointSpec:
    """Say everything about the endpoint; nothing is left to the provider's defaults."""
    return EndpointSpec(
        name=name,
        image=settings.image,
        args=start_command(),
        env=env,
        pool=offer.pool,
        excluded_types=offer.excluded_types,
        min_cuda=IMAGE_CUDA,
        disk_gb=DISK_GB,
        workers_min=WORKERS_MIN,
        workers_max=settings.workers,
        idle_timeout_s=IDLE_TIMEOUT_S,
        execution_timeout_s=EXECUTION_TIMEOUT_S,
        queue_delay_s=QUEUE_DELAY_S,
    )


def new_receipt(
    run: str,
    spec: EndpointSpec,
    where: Where,
    account: str,
    digests: tuple[str, str],
    clock: Clock,
    ledger: Ledger,
) -> Receipt:
    """Write down the intent: the unique name, where, and until when.

    Args:
        account: fingerprint of the key. digests: of the payload and of the worker.
    """
    now = clock.now()
    return Receipt(
        run=run,
        name=spec.name,
        where=where,
        account=account,
        payload_sha256=digests[0],
        worker_sha256=digests[1],
        created_at=now,
        deadline_at=now + SETUP_DEADLINE_S,
        ledger=str(ledger.path),
    )


def insist_on_spec(asked: EndpointSpec, changed: EndpointSpec) -> EndpointSpec:
    """Let a hook change what neither the approval, nor the reservation, nor the ownership hangs on.

    Raises: SettingsRefused: with every field that must stay as it is.
    """
    fixed = [name for name in FIXED if getattr(asked, name) != getattr(changed, name)]
    ours = {key: value for key, value in asked.env.items() if key.startswith("PYTEST_RUNPOD_")}
    if ours != {key: value for key, value in changed.env.items() if key.startswith("PYTEST_RUNPOD_")}:
        fixed.append("env (PYTEST_RUNPOD_*)")
    if fixed:
        raise SettingsRefused([
            f"pytest_runpod_endpoint_spec must not change {name}: approval, reservation or ownership hang on it"
            for name in fixed
        ])  # fmt: skip
    return changed


def new_name(payload_sha256: str, clock: Clock) -> str:
    """A name that nobody else chooses: by it alone a lost endpoint is found again."""
    return f"{NAME_PREFIX}{payload_sha256[:8]}-{clock.token()[:12]}"
