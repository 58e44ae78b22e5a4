"""What one run claims of the provider: written before anything is created, true after any crash."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from pytest_runpod.core.lifecycle import Event, Phase, advance

RECEIPT_SCHEMA: Final = 1
NAME_PREFIX: Final = "pytest-runpod-"


@dataclass(frozen=True, slots=True)
class Owned:
    """What a receipt claims: a unique name we chose, and the id once the provider has told us."""

    name: str
    endpoint_id: str | None = None


@dataclass(frozen=True, slots=True)
class Where:
    """Which provider, and where: base URLs, never a key."""

    kind: str
    management_url: str
    jobs_url: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """One endpoint and its job. Times are seconds since the epoch, UTC."""

    run: str
    name: str
    where: Where
    payload_sha256: str
    worker_sha256: str
    created_at: float
    deadline_at: float
    ledger: str
    account: str = ""  # a fingerprint of the key that created it; empty: not known
    phase: Phase = Phase.RESERVED
    endpoint_id: str | None = None
    job_id: str | None = None
    nonce: str | None = None
    session_sha256: str | None = None  # of what the job was asked to run: selection, arguments, values of variables
    cleanup_confirmed: bool = False
    trouble: str = ""
    log: tuple[str, ...] = field(default=())

    @property
    def owned(self) -> Owned:
        return Owned(self.name, self.endpoint_id)

    @property
    def events(self) -> tuple[str, ...]:
        """What has happened, in order: the second word of each line of the log."""
        return tuple(line.split(" ", 2)[1] for line in self.log if " " in line)

    @property
    def create_uncertain(self) -> bool:
        """A create was sent, its answer never came, and nobody has said that there is nothing."""
        answered = {Event.CREATE_SEEN.value, Event.CREATE_REFUSED.value, Event.ABSENCE_STATED.value}
        return Event.CREATE_SENT.value in self.events and not answered.intersection(self.events)

    @property
    def submitted(self) -> bool:
        """A job was sent, and was not refused: there may be a result of it."""
        return Event.SUBMIT_SENT.value in self.events and Event.SUBMIT_REFUSED.value not in self.events

    @property
    def in_clean_up(self) -> bool:
        return self.phase in (Phase.CLEANING, Phase.CLEAN, Phase.UNRESOLVED)

    def after(self, event: Event, at: str, note: str = "", **changes: Any) -> Receipt:
        """Return the receipt after *event*, which happened *at* (ISO time), with a *note* for people and *changes* to fields.

        Raises: ValueError: *event* cannot follow this phase.
        """
        phase = advance(self.phase, event)
        changes.setdefault("cleanup_confirmed", phase is Phase.CLEAN)
        return replace(self, phase=phase, log=(*self.log, f"{at} {event.value} {note}".rstrip()), **changes)

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        value["phase"] = self.phase.value
        value["log"] = list(self.log)
        return {"schema": RECEIPT_SCHEMA, **value}

    @classmethod
    def from_json(cls, value: Any) -> Receipt:
        """Raises: ValueError: another schema, or keys that are missing or unknown."""
        if not isinstance(value, dict) or value.get("schema") != RECEIPT_SCHEMA:
            raise ValueError(f"not a receipt of schema {RECEIPT_SCHEMA}")
        known = {item.name for item in fields(cls)} | {"schema"}
        if set(value) != known:
            raise ValueError(f"keys that do not fit: {', '.join(sorted(set(value) ^ known))}")
        content = {key: value[key] for key in known - {"schema"}}
        try:
            content["where"] = Where(**content["where"])
            content["phase"] = Phase(content["phase"])
            content["log"] = tuple(content["log"])
        except TypeError as slip:
            raise ValueError(str(slip)) from slip
        receipt = cls(**content)
        receipt._insist_on_sense()
        return receipt

    def _insist_on_sense(self) -> None:
        """Raises: ValueError: something that we never write; a name that is not one of ours above all."""
        if not isinstance(self.name, str) or not self.name.startswith(NAME_PREFIX):
            raise ValueError(f"the name does not begin with {NAME_PREFIX}")
        where = (self.where.kind, self.where.management_url, self.where.jobs_url)
        texts = (self.run, self.payload_sha256, self.worker_sha256, self.ledger, self.trouble, self.account, *where)
        optional = (self.endpoint_id, self.job_id, self.nonce, self.session_sha256)
        if not all(isinstance(text, str) for text in (*texts, *self.log)):
            raise ValueError("a text is none")
        if not all(text is None or isinstance(text, str) for text in optional):
            raise ValueError("endpoint_id, job_id, nonce and session_sha256 must be text or null")
        if not all(type(moment) in (int, float) for moment in (self.created_at, self.deadline_at)):
            raise ValueError("created_at and deadline_at must be seconds")
        if self.cleanup_confirmed is not (self.phase is Phase.CLEAN):
            raise ValueError("cleanup_confirmed and the phase contradict each other")
