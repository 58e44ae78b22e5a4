"""Which calls remove what a receipt owns, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_runpod.core.cloud import Endpoint
from pytest_runpod.core.receipt import Owned


@dataclass(frozen=True, slots=True)
class ScaleToZero:
    """Let no new worker start while the endpoint is being deleted."""

    endpoint_id: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the endpoint, its workers, its jobs and its bound template."""

    endpoint_id: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """Our id under another name: a person decides, nothing is deleted."""

    endpoint_id: str
    name: str


Action = ScaleToZero | Delete | Doubt


def plan_cleanup(owned: Owned, listed: tuple[Endpoint, ...]) -> tuple[Action, ...]:
    """Choose the calls that remove what *owned* names, and nothing else."""
    actions: list[Action] = []
    for endpoint in listed:
        if endpoint.name == owned.name:
            if endpoint.workers_max > 0:
                actions.append(ScaleToZero(endpoint.id))
            actions.append(Delete(endpoint.id))
        elif endpoint.id == owned.endpoint_id:
            actions.append(Doubt(endpoint.id, endpoint.name))
    return tuple(actions)
