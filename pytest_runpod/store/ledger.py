"""The ledger on disk: one JSON file that a person can read and correct. An unreadable one stops the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_runpod.core.budget import LEDGER_SCHEMA, Caps, Entry, check_reservation, settled
from pytest_runpod.core.money import MicroUsd
from pytest_runpod.errors import BudgetRefused
from pytest_runpod.store.atomic import write_atomic
from pytest_runpod.store.locking import locked


@dataclass(frozen=True, slots=True)
class Ledger:
    """Reservations and what became of them, in one file."""

    path: Path

    def entries(self) -> tuple[Entry, ...]:
        """Read all entries; none if there is no file yet.

        Raises: BudgetRefused: torn, hand-edited into nonsense, or of another version. The file is left as it is.
        """
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ()
        except (OSError, UnicodeDecodeError) as damage:
            raise self._unreadable(str(damage)) from damage
        try:
            value = json.loads(text)
        except json.JSONDecodeError as damage:
            raise self._unreadable(f"line {damage.lineno}: {damage.msg}") from damage
        if (
            not isinstance(value, dict)
            or value.get("schema") != LEDGER_SCHEMA
            or not isinstance(value.get("entries"), list)
        ):
            raise self._unreadable(f"not a ledger of schema {LEDGER_SCHEMA}")
        entries = []
        for number, raw in enumerate(value["entries"], 1):
            try:
                entries.append(Entry.from_json(raw))
            except ValueError as slip:
                raise self._unreadable(f"entry {number}: {slip}") from slip
        return tuple(entries)

    def reserve(self, entry: Entry, caps: Caps) -> Entry:
        """Add *entry*, durably, if the budget allows it.

        Raises: BudgetRefused: it does not, or the ledger cannot be read. Nothing was written.
        """
        with locked(self.path):
            entries = self.entries()
            check_reservation(entries, entry, caps)
            self._write((*entries, entry))
        return entry

    def name_endpoint(self, run: str, endpoint_id: str) -> None:
        """Record which endpoint the reservations of *run* paid for, so that its bill can be read later."""
        self._change(run, lambda entry: replace(entry, endpoint_id=endpoint_id))

    def settle(self, run: str, actual: MicroUsd, note: str) -> tuple[Entry, ...]:
        """Let the entries of *run* count for *actual* together instead of for what they reserved.

        Raises: BudgetRefused: no entry of that run is there, or the ledger cannot be read.
        """
        rest = [actual]

        def share(entry: Entry) -> Entry:
            part, rest[0] = rest[0], MicroUsd(0)
            return settled(entry, part, note)

        changed = self._change(run, share)
        if not changed:
            raise BudgetRefused(
                f"The ledger has no reservation of {run}. Nothing was changed.",
                looked_at=str(self.path),
                todo="list the runs with `pytest-runpod ledger`",
            )
        return changed

    def _change(self, run: str, change: Callable[[Entry], Entry]) -> tuple[Entry, ...]:
        with locked(self.path):
            entries = self.entries()
            changed = [change(entry) if entry.run == run else entry for entry in entries]
            if any(entry.run == run for entry in entries):
                self._write(tuple(changed))
        return tuple(entry for entry in changed if entry.run == run)

    def _write(self, entries: tuple[Entry, ...]) -> None:
        value = {"schema": LEDGER_SCHEMA, "entries": [entry.to_json() for entry in entries]}
        write_atomic(self.path, (json.dumps(value, indent=1) + "\n").encode("utf-8"))

    def _unreadable(self, why: str) -> BudgetRefused:
        return BudgetRefused(
            "The ledger cannot be read, so nothing may be spent. Nothing was created, the file was left as it is.",
            looked_at=f"{self.path}: {why}",
            todo="correct that place by hand (the amounts must cover what was really billed), or name another --runpod-ledger",
        )
