"""The ledger on disk: one JSON file that a person can read and correct. An unreadable one stops the run."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pytest_runpod.core.budget import LEDGER_SCHEMA, Caps, Entry, check_reservation, share
from pytest_runpod.core.money import MicroUsd
from pytest_runpod.errors import BudgetRefused, StillLocked
from pytest_runpod.store.atomic import remove_leftovers, write_atomic
from pytest_runpod.store.locking import WAIT_S, locked

NOT_CREATED: Final = "Nothing was created"
NOT_CHANGED: Final = "Nothing was changed"
ELSEWHERE: Final = "or name another --runpod-ledger"


@dataclass(frozen=True, slots=True)
class Ledger:
    """Reservations and what became of them, in one file. *wait_s*: seconds to wait for who is writing it."""

    path: Path
    wait_s: float = WAIT_S

    def entries(self) -> tuple[Entry, ...]:
        """Read all entries; none if there is no file yet.

        Raises: BudgetRefused: torn, hand-edited into nonsense, or of another version. The file is left as it is.
        """
        return self._read(NOT_CREATED)

    def of(self, run: str) -> tuple[Entry, ...]:
        """Read the entries of one run. Raises: BudgetRefused: as `entries`, or there are none."""
        return self._known(run, tuple(entry for entry in self._read(NOT_CHANGED) if entry.run == run))

    def reserve(self, entry: Entry, caps: Caps) -> Entry:
        """Add *entry*, durably, if the budget allows it.

        Raises: BudgetRefused: it does not, or the ledger cannot be read, locked or written. Nothing was reserved.
        """
        with self._alone(NOT_CREATED) as target:
            entries = self._read(NOT_CREATED)
            if any(kept.id == entry.id for kept in entries):
                raise ValueError(f"the ledger has an entry {entry.id} already")
            check_reservation(entries, entry, caps)
            _write(target, (*entries, entry))
        return entry

    def name_endpoint(self, run: str, endpoint_id: str) -> None:
        """Record which endpoint the reservations of *run* paid for, so that its bill can be read later."""
        self._change(run, lambda kept: tuple(replace(entry, endpoint_id=endpoint_id) for entry in kept))

    def settle(self, run: str, actual: MicroUsd, note: str) -> tuple[Entry, ...]:
        """Let the entries of *run* count for *actual* together instead of for what they reserved.

        Raises: BudgetRefused: no entry of that run is there, one is settled already, or the ledger cannot be changed.
        """

        def once(kept: tuple[Entry, ...]) -> tuple[Entry, ...]:
            if any(entry.actual is not None for entry in kept):
                raise BudgetRefused(
                    f"{run} is settled already. {NOT_CHANGED}.",
                    looked_at=str(self.path),
                    todo=f"if that amount is wrong: `pytest-runpod ledger adjust {run} --amount USD --reason TEXT`",
                )
            return share(kept, actual, note)

        return self._known(run, self._change(run, once))

    def adjust(self, run: str, actual: MicroUsd, note: str) -> tuple[Entry, ...]:
        """Like `settle`, whatever is there: what was there before stays in the note.

        Raises: BudgetRefused: no entry of that run is there, or the ledger cannot be changed.
        """
        return self._known(run, self._change(run, lambda kept: share(kept, actual, note)))

    def _known(self, run: str, changed: tuple[Entry, ...]) -> tuple[Entry, ...]:
        if not changed:
            raise BudgetRefused(
                f"The ledger has no reservation of {run}. {NOT_CHANGED}.",
                looked_at=str(self.path),
                todo="list the runs with `pytest-runpod ledger`",
            )
        return changed

    def _change(self, run: str, change: Callable[[tuple[Entry, ...]], tuple[Entry, ...]]) -> tuple[Entry, ...]:
        """Let *change* make new entries of those of *run*; returns the new ones, none if there are none."""
        with self._alone(NOT_CHANGED) as target:
            entries = self._read(NOT_CHANGED)
            of_run = tuple(entry for entry in entries if entry.run == run)
            changed = change(of_run) if of_run else ()
            if changed != of_run:
                new = dict(zip((entry.id for entry in of_run), changed, strict=True))
                _write(target, tuple(new.get(entry.id, entry) for entry in entries))
        return changed

    def _read(self, undone: str) -> tuple[Entry, ...]:
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise self._unreadable(undone, Damaged("it is not a file"))
            return parse_entries(self.path.read_bytes())
        except FileNotFoundError as missing:
            if self.path.is_symlink():
                raise self._unreadable(undone, Damaged("it is a link to a file that is not there")) from missing
            return ()
        except OSError as damage:
            raise self._unreadable(undone, Damaged(str(damage))) from damage
        except Damaged as damage:
            raise self._unreadable(undone, damage) from damage

    @contextmanager
    def _alone(self, undone: str) -> Iterator[Path]:
        """Hold the ledger's lock; gives the file to replace: behind a link, what that leads to, so that it stays a link."""
        try:
            target = self.path.resolve()
            with locked(target, wait_s=self.wait_s):
                yield target
        except StillLocked as busy:
            raise BudgetRefused(
                f"The ledger is in use by another run. {undone}, nothing was reserved.",
                looked_at=busy.looked_at,
                todo="run again when that one has gone on",
            ) from busy
        except (OSError, RuntimeError) as no:  # RuntimeError: a link to itself, or a file system without locks
            raise BudgetRefused(
                f"The ledger cannot be written, so nothing may be spent. {undone}, the file was left as it is.",
                looked_at=f"{self.path}: {no}",
                todo=f"make its folder writable, make room on its disk, {ELSEWHERE}",
            ) from no

    def _unreadable(self, undone: str, damage: Damaged) -> BudgetRefused:
        return BudgetRefused(
            f"The ledger cannot be read, so nothing may be spent. {undone}, the file was left as it is.",
            looked_at=f"{self.path}: {damage}",
            todo=f"{damage.todo}, {ELSEWHERE}",
        )


def _write(target: Path, entries: tuple[Entry, ...]) -> None:
    """Replace the file, whole. The caller holds its lock, so what killed writers have left can be removed too."""
    value = {"schema": LEDGER_SCHEMA, "entries": [entry.to_json() for entry in entries]}
    remove_leftovers(target)
    write_atomic(target, (json.dumps(value, indent=1) + "\n").encode("utf-8"))


# --- the file's text


class Damaged(ValueError):
    """What is wrong with a ledger's text, and in which line; *todo*: what to do about it."""

    def __init__(
        self, why: str, todo: str = "correct that place by hand (the amounts must cover what was really billed)"
    ) -> None:
        super().__init__(why)
        self.todo = todo


def parse_entries(data: bytes) -> tuple[Entry, ...]:
    """Read the content of a ledger. Raises: Damaged: it is not one that we have written, or a person with care."""
    text = _text(data)
    at, line, counted = _after_blank(text, _list_at(text) + 1), 1, 0
    found: dict[str, int] = {}
    entries = []
    while text[at] != "]":
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, end = _decode_strictly(text, at)
            entry = Entry.from_json(value)
        except ValueError as slip:
            raise Damaged(f"line {line}: {slip}") from slip
        if entry.id in found:
            raise Damaged(f"line {line}: the entry of line {found[entry.id]} has the same id {entry.id!r}")
        found[entry.id] = line
        entries.append(entry)
        at = _next(text, end)
    return tuple(entries)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as damage:
        line = data.count(b"\n", 0, damage.start) + 1
        raise Damaged(f"line {line}: not UTF-8") from damage


def _list_at(text: str) -> int:
    """Where the list of entries begins. Raises: Damaged: no JSON, or not the object that holds entries."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as damage:
        raise Damaged(f"line {damage.lineno}: {damage.msg}") from damage
    except (ValueError, RecursionError) as slip:  # a number too long to read, nested too deeply
        raise Damaged(str(slip)) from slip
    schema = value.get("schema") if isinstance(value, dict) else None
    places: dict[str, int] = {}
    for key, at in _members(text) if isinstance(value, dict) else ():
        if key in places:
            raise Damaged(f"line {_line(text, at)}: {key!r} is there twice in one object")
        places[key] = at
    line = _line(text, places.get("schema", 0))
    if type(schema) is int and schema > LEDGER_SCHEMA:
        raise Damaged(
            f"line {line}: schema {schema}, written by a newer pytest-runpod; this one knows schema {LEDGER_SCHEMA}",
            "install that version",
        )
    if type(schema) is not int or schema != LEDGER_SCHEMA or not isinstance(value.get("entries"), list):
        raise Damaged(f"line {line}: not a ledger of schema {LEDGER_SCHEMA}")
    for key in set(places) - {"schema", "entries"}:
        raise Damaged(f"line {_line(text, places[key])}: a key that does not fit: {key!r}")
    return places["entries"]


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises: ValueError: a key is there twice; nobody can tell which of them counts."""
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"{key!r} is there twice in one object")
    return dict(pairs)


_BLANK: Final = re.compile(r"[ \t\r\n]*")
_decode: Final = json.JSONDecoder().raw_decode
_decode_strictly: Final = json.JSONDecoder(object_pairs_hook=_without_twins).raw_decode


def _members(text: str) -> Iterator[tuple[str, int]]:
    """The keys of the object that *text* is known to be, and where the value of each begins."""
    at = _after_blank(text, _after_blank(text, 0) + 1)
    while text[at] != "}":
        key, at = _decode(text, at)
        at = _after_blank(text, _after_blank(text, at) + 1)
        yield key, at
        at = _next(text, _decode(text, at)[1])


def _next(text: str, at: int) -> int:
    at = _after_blank(text, at)
    return _after_blank(text, at + 1) if text[at] == "," else at


def _after_blank(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
