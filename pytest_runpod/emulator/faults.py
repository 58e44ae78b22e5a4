"""What can go wrong, as fields of one value whose zero value is the happy path."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Rule:
    """One fault of the wire: what happens to the *nth* request (0: all) whose method and path fit.

    *kind*: `refuse` (503, no effect), `status` (answer *status*, no effect), `disconnect` (the connection is cut, no effect),
    `lose_answer` (the effect happens, the connection is cut), `fail_after` (the effect happens, the answer is 500), `delay`
    (*seconds*, then as usual: the effect is late), `delay_answer` (the effect happens at once, its answer *seconds* later),
    `garbage` (the effect happens, the answer is no JSON), `truncate` (the effect happens, the answer ends in the middle),
    `hold` and `hold_answer` (as the delays, until `POST /_emulator/release`), `trickle` (the effect happens, its answer comes
    byte by byte, one in *seconds*).
    """

    kind: str
    method: str = ".*"
    path: str = ".*"
    nth: int = 0
    status: int = 500
    seconds: float = 0.0
    retry_after: int | None = None

    def fits(self, method: str, path: str) -> bool:
        return bool(re.fullmatch(self.method, method)) and bool(re.fullmatch(self.path, path))


KINDS = frozenset({
    "refuse", "status", "disconnect", "lose_answer", "fail_after", "delay", "delay_answer", "garbage", "truncate", "hold",
    "hold_answer", "trickle",
})  # fmt: skip


@dataclass(frozen=True)
class Faults:
    """Faults of one account. Times in seconds."""

    rules: tuple[Rule, ...] = field(default=())
    jobs_unauthorized: bool = False  # the key works for management only
    management_unauthorized: bool = False  # the key works for jobs only
    unlisted_s: float = 0.0  # so long after the create an endpoint is in no list, though it can be read by its id
    delete_lag_s: float = 0.0  # so long after its deletion was answered an endpoint is still there
    undeletable: bool = False  # a deletion is answered, and nothing happens
    stored_name: str | None = None  # the endpoint is stored under this name: nobody can prove whose it is
    throttled: bool = False  # no worker ever starts: hosts are full
    never_ready: bool = False  # workers start and never take a job
    crash_loop: bool = False  # workers end as they start
    cold_start_s: float = 0.0  # so long a worker is initialising before its command starts
    late_progress: bool = False  # an update after the result turns the job back to IN_PROGRESS
    lose_result: bool = False  # a result is accepted and forgotten: COMPLETED without output
    forget_jobs: bool = False  # a job is lost as soon as a worker has taken it: 404
    cancel_jobs: bool = False  # somebody else cancels a job as soon as a worker has taken it
    kill_workers: int = 0  # so many workers are killed as soon as they have taken a job
    execution_timeout_s: float | None = None  # what counts instead of the execution timeout that was asked for
    ttl_s: float | None = None  # what counts instead of the TTL that was asked for
    double_execution: bool = False  # the first result never arrives: the job is dispatched again, `retries` is 1
    ping_lost_s: float | None = None  # a worker counts as lost so long after its last ping, instead of after 40 s
    price_factor: float = 1.0
    quota_used: int = 0
    foreign_endpoints: int = 0
    billing_lag_s: float = 0.0
    paused_s: float = 0.0  # so long after the create, and after workers.max was 0, `/run` answers 409
    propagation_s: float = 0.0  # so long after the create the job API answers 404
    timeout_is_failed: bool = False  # execution timeout ends in FAILED instead of TIMED_OUT
    stored_workers_max: int | None = None  # what the account stores instead of what was asked for

    @classmethod
    def from_json(cls, path: Path) -> Faults:
        """Read faults from a file. Raises: ValueError: a name that is not known."""
        return cls.from_value(json.loads(path.read_text(encoding="utf-8")))

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Faults:
        """Make faults of decoded JSON. Raises: ValueError: a name or kind that is not known, a rule that cannot fit."""
        _known(cls, value, "faults")
        rules = tuple(_rule(rule) for rule in value.get("rules", ()))
        return cls(**{**value, "rules": rules})


def _rule(value: Mapping[str, Any]) -> Rule:
    _known(Rule, value, "fields of a rule")
    rule = Rule(**{"kind": "", **value})
    if rule.kind not in KINDS:
        raise ValueError(f"unknown kind of fault: {rule.kind!r}; there are {', '.join(sorted(KINDS))}")
    for pattern in (rule.method, rule.path):
        try:
            re.compile(pattern)
        except re.error as slip:
            raise ValueError(f"no regular expression: {pattern!r}: {slip}") from slip
    return rule


def _known(kind: type[Faults] | type[Rule], value: Any, what: str) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be an object")
    unknown = set(value) - {item.name for item in fields(kind)}
    if unknown:
        raise ValueError(f"unknown {what}: {', '.join(sorted(unknown))}")
