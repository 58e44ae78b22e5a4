"""What the management API takes: strict about names, limits and combinations, as the provider's OpenAPI document states."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from pytest_runpod.emulator.catalog import CARDS, PRICES

QUOTA: Final = 5  # workers.max over all endpoints. Source: the provider's worker overview
CREATE_FIELDS: Final = frozenset({
    "name", "type", "scaling", "gpu", "cpu", "image", "args", "disk", "env", "ports", "registry", "templateId", "workers",
    "dataCenterIds", "networkVolumes", "timeout", "flashboot",
})  # fmt: skip
GPU_FIELDS: Final = frozenset({"pools", "excludedTypes", "count", "allowedCudaVersions", "minCudaVersion"})
CUDA_VERSION: Final = re.compile(r"[0-9]+\.[0-9]+")
FLASHBOOT: Final = ("OFF", "FLASHBOOT", "PRIORITY_FLASHBOOT")


class ApiError(Exception):
    """An answer with an error status, as `application/problem+json`."""

    def __init__(self, status: int, detail: str, errors: list[dict[str, Any]] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.errors = status, detail, errors


def unprocessable(field: str, why: str) -> ApiError:
    return ApiError(422, "request body has an error", [{"location": f"body.{field}", "message": why}])


def checked_create(body: Any, used_quota: int) -> dict[str, Any]:
    """Return the stored settings of a create, defaults filled in.

    Raises: ApiError: 422 for the shape of a field, 400 for combinations and the quota.
    """
    if not isinstance(body, dict):
        raise ApiError(422, "request body must be an object")
    _only(body, CREATE_FIELDS, "")
    for name in ("name", "type", "scaling"):
        if name not in body:
            raise unprocessable(name, f"missing property '{name}'")
    if body["type"] not in ("QUEUE", "LOAD_BALANCER"):
        raise unprocessable("type", "must be QUEUE or LOAD_BALANCER")
    if ("gpu" in body) == ("cpu" in body):
        raise ApiError(400, "exactly one of gpu and cpu is required")
    if "templateId" in body:
        raise ApiError(404, "resource not found")
    if "image" not in body:
        raise unprocessable("image", "missing property 'image'")
    _check_plain(body)
    settings = {
        "name": body["name"],
        "type": body["type"],
        "image": body["image"],
        "args": body.get("args", ""),
        "disk": body.get("disk", 20),
        "ports": body.get("ports", []),
        "env": dict(body.get("env", {})),
        "registry": body.get("registry"),
        "workers": checked_workers(body.get("workers", {}), body["scaling"]),
        "scaling": checked_scaling(body["scaling"]),
        "dataCenterIds": body.get("dataCenterIds", []),
        "networkVolumes": body.get("networkVolumes", []),
        "timeout": body.get("timeout", 0),  # the document says 300000; the live service was seen to store 0
        "flashboot": body.get("flashboot", "OFF"),
    }
    if "gpu" in body:
        settings["gpu"] = checked_gpu(body["gpu"])
    else:
        settings["cpu"] = checked_cpu(body["cpu"])
    checked_quota(used_quota, settings["workers"]["max"])
    return settings


def checked_patch(stored: Mapping[str, Any], body: Any) -> dict[str, Any]:
    """Return the settings after a PATCH: what is omitted stays, `env` is replaced as a whole. The quota is not looked at.

    Raises: ApiError: 422 for a field that is unknown or cannot be changed (`type`, gpu to cpu), or for its shape.
    """
    if not isinstance(body, dict):
        raise ApiError(422, "request body must be an object")
    family = "gpu" if "gpu" in stored else "cpu"
    _only(body, CREATE_FIELDS - {"type", "templateId", "gpu", "cpu"} | {family}, "")
    _check_plain(body)
    settings = {**stored, **body}
    scaling = settings["scaling"] = checked_scaling(settings["scaling"])
    settings["workers"] = checked_workers(body.get("workers", {}), scaling, stored["workers"])
    if "gpu" in body:
        settings["gpu"] = checked_gpu(_merged_gpu(stored["gpu"], body["gpu"]))
    if "cpu" in body:
        settings["cpu"] = checked_cpu(body["cpu"])
    return settings


def checked_quota(used: int, more: int) -> None:
    """Refuse *more* workers beside the *used* ones. Raises: ApiError: 400."""
    if used + more > QUOTA:
        raise ApiError(400, f"max workers across all endpoints must not exceed your workers quota ({QUOTA})")


def _check_plain(body: Mapping[str, Any]) -> None:
    """The fields that do not depend on others, where they are given."""
    for name in ("name", "image"):
        _text(body, name, least=1)
    _text(body, "args")
    try:
        shlex.split(body.get("args", ""))
    except ValueError as slip:  # what the platform does with such a command is not known: say it early
        raise unprocessable("args", f"cannot be split into words: {slip}") from slip
    _whole(body, "disk", 1, 10_000)
    _whole(body, "timeout", 0, 7 * 24 * 3600 * 1000)
    for name in ("ports", "dataCenterIds", "networkVolumes"):
        _texts(body, name)
    if body.get("registry") is not None:
        _text(body, "registry", least=1)
    if body.get("flashboot", "OFF") not in FLASHBOOT:
        raise unprocessable("flashboot", f"must be one of {', '.join(FLASHBOOT)}")
    env = body.get("env", {})
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise unprocessable("env", "must map names to strings")
    if not all(name and "=" not in name for name in env) or any("\0" in text for pair in env.items() for text in pair):
        raise unprocessable("env", "has a name or a value that no process can have")


def checked_workers(workers: Any, scaling: Any, before: Mapping[str, int] | None = None) -> dict[str, int]:
    if not isinstance(workers, dict):
        raise unprocessable("workers", "must be an object")
    _only(workers, {"min", "max", "idleTimeout"}, "workers.")
    _whole(workers, "min", 0, 1000, "workers.")
    _whole(workers, "max", 0, 1000, "workers.")
    _whole(workers, "idleTimeout", 1, 3600, "workers.")
    if "idleTimeout" in workers and isinstance(scaling, dict) and scaling.get("type") == "REQUEST_COUNT":
        raise unprocessable("workers.idleTimeout", "not with scaling REQUEST_COUNT")
    return {**(before or {"min": 0, "max": 3, "idleTimeout": 10}), **workers}


def checked_scaling(scaling: Any) -> dict[str, Any]:
    kinds = {"QUEUE_DELAY": ("queueDelay", 0.5), "REQUEST_COUNT": ("requestCount", 1)}
    if not isinstance(scaling, dict) or scaling.get("type") not in tuple(kinds):
        raise unprocessable("scaling.type", f"must be one of {', '.join(kinds)}")
    key, least = kinds[scaling["type"]]
    _only(scaling, {"type", key}, "scaling.")
    value = scaling.get(key)
    kind = int if key == "requestCount" else (int, float)
    if not isinstance(value, kind) or isinstance(value, bool) or value < least:
        raise unprocessable(f"scaling.{key}", f"must be a number, {least} or more")
    return dict(scaling)


def checked_gpu(gpu: Any) -> dict[str, Any]:
    if not isinstance(gpu, dict):
        raise unprocessable("gpu", "must be an object")
    _only(gpu, GPU_FIELDS, "gpu.")
    pools = _texts(gpu, "pools", "gpu.")
    if not pools or not set(pools) <= set(PRICES):
        raise unprocessable("gpu.pools", f"must be a list of {', '.join(PRICES)}")
    excluded = _texts(gpu, "excludedTypes", "gpu.")
    if not set(excluded) <= {card for card, _, _, _ in CARDS} or len(set(excluded)) != len(excluded):
        raise unprocessable("gpu.excludedTypes", "must be a list of different GPU type ids")
    _whole(gpu, "count", 1, 10, "gpu.")
    versions = _texts(gpu, "allowedCudaVersions", "gpu.")
    floor = gpu.get("minCudaVersion") or ""
    for name, version in (*(("allowedCudaVersions", one) for one in versions), ("minCudaVersion", floor or "0.0")):
        if not isinstance(version, str) or not CUDA_VERSION.fullmatch(version):
            raise unprocessable(f"gpu.{name}", "must have the form major.minor")
    if versions and floor:
        raise ApiError(400, "allowedCudaVersions and minCudaVersion exclude each other")
    stored = {
        "pools": list(pools),
        "count": gpu.get("count", 1),
        "allowedCudaVersions": versions,
        "minCudaVersion": floor or None,
    }
    if excluded:
        stored["excludedTypes"] = list(excluded)
    return stored


def _merged_gpu(stored: Mapping[str, Any], change: Any) -> Any:
    """A PATCH of the cards: new pools clear the exclusions, exclusions need their pools beside them."""
    if not isinstance(change, dict):
        return change
    if "excludedTypes" in change and "pools" not in change:
        raise unprocessable("gpu.excludedTypes", "requires pools")
    kept = {name: value for name, value in stored.items() if name != "excludedTypes" or "pools" not in change}
    return {**kept, **change}


def checked_cpu(cpu: Any) -> list[dict[str, Any]]:
    if not isinstance(cpu, list) or not cpu:
        raise unprocessable("cpu", "must be a list of at least one flavour")
    for flavour in cpu:
        if not isinstance(flavour, dict) or set(flavour) != {"id", "vcpuCount"} or not isinstance(flavour["id"], str):
            raise unprocessable("cpu", "a flavour has exactly id and vcpuCount")
        _whole(flavour, "vcpuCount", 1, 1024, "cpu.")
        if flavour["vcpuCount"] & (flavour["vcpuCount"] - 1):
            raise unprocessable("cpu.vcpuCount", "must be a power of two")
    return [dict(flavour) for flavour in cpu]


def checked_policy(policy: Any) -> tuple[float, float]:
    """Execution timeout and TTL in seconds. Raises: ApiError: outside of what the job API allows."""
    policy = {} if policy is None else policy
    if not isinstance(policy, dict):
        raise ApiError(400, "policy must be an object")
    timeout = policy.get("executionTimeout", 600_000)
    ttl = policy.get("ttl", 86_400_000)
    week = 7 * 24 * 3600 * 1000
    if not isinstance(timeout, int) or not 5_000 <= timeout <= week:
        raise ApiError(400, "policy.executionTimeout must be from 5 s to 7 d, in milliseconds")
    if not isinstance(ttl, int) or not 10_000 <= ttl <= week:
        raise ApiError(400, "policy.ttl must be from 10 s to 7 d, in milliseconds")
    return timeout / 1000, ttl / 1000


def _only(value: Mapping[str, Any], known: Any, prefix: str) -> None:
    unknown = sorted(set(value) - set(known))
    if unknown:
        errors = [
            {"location": f"body.{prefix}{name}", "message": "additional property is not allowed"} for name in unknown
        ]
        raise ApiError(422, "request body has an error", errors)


def _text(value: Mapping[str, Any], name: str, *, least: int = 0) -> None:
    """Of at least *least* characters, where it is given."""
    if name in value and (not isinstance(value[name], str) or len(value[name]) < least):
        raise unprocessable(name, "must be text" + (" that is not empty" if least else ""))


def _texts(value: Mapping[str, Any], name: str, prefix: str = "") -> list[str]:
    texts = value.get(name, [])
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise unprocessable(f"{prefix}{name}", "must be a list of texts")
    return list(texts)


def _whole(value: Mapping[str, Any], name: str, least: int, most: int, prefix: str = "") -> None:
    number = value.get(name)
    if name not in value:
        return
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise unprocessable(f"{prefix}{name}", f"must be a whole number from {least} to {most}")
