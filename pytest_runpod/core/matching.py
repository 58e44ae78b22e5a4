"""Bring report lines and items together: by node id and occurrence, never by position. Each item is finished once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Key = tuple[str, int]
Try = tuple[str, int, int]  # a rerun is a further try of the same item


@dataclass(slots=True)
class Finished:
    """One item that is done, or one try of it: its reports as they came, and how its process died, if it did."""

    key: Key
    reports: list[dict[str, Any]]
    death: dict[str, Any] | None = None


@dataclass(slots=True)
class Matcher:
    """Collects lines of one attempt until an item is complete.

    The lines of one attempt may be fed again and in windows (progress), and once more from the final archive: an item
    is handed out once. `different` names items whose final reports are not those that were handed out before.
    """

    expected: dict[Key, int]
    attempt: str | None = None
    different: list[Key] = field(default_factory=list)
    ran_again: bool = False
    _open: dict[Try, list[dict[str, Any]]] = field(default_factory=dict)
    _done: dict[Try, list[dict[str, Any]]] = field(default_factory=dict)
    _next_line: int = 0

    @classmethod
    def of(cls, ids: Sequence[str]) -> Matcher:
        return cls({key: position for position, key in enumerate(keys_of(ids))})

    def expect(self, ids: Sequence[str]) -> None:
        """Learn what is expected from the side that has collected."""
        self.expected = {key: position for position, key in enumerate(keys_of(ids))}

    def window(self, attempt: str, first: int, lines: Sequence[dict[str, Any]]) -> list[Finished]:
        """Take a window of lines that starts at line *first*. A gap drops what was begun: the archive will tell."""
        if self.attempt not in (None, attempt):
            return []  # the platform runs the job again: only the final result counts from here on
        self.attempt = attempt
        if first > self._next_line:
            self._open.clear()
            self._next_line = first
        fresh = lines[max(0, self._next_line - first) :]
        self._next_line += len(fresh)
        return self._take(fresh)

    def final(self, attempt: str, lines: Iterable[dict[str, Any]]) -> list[Finished]:
        """Take all lines of the final archive; what was handed out before is compared, not repeated.

        Where the archive is of another attempt (the platform ran the job again), the outcomes are compared only.
        """
        self._open.clear()
        self.ran_again = self.attempt not in (None, attempt)
        return self._take(lines, compare=True)

    def missing(self) -> list[Key]:
        """Items that were expected and are not done, in their order here."""
        done = {(nodeid, number) for nodeid, number, _ in self._done}
        return sorted((key for key in self.expected if key not in done), key=self.expected.__getitem__)

    def _take(self, lines: Iterable[dict[str, Any]], *, compare: bool = False) -> list[Finished]:
        finished = []
        for line in lines:
            kind = line["kind"]
            if kind not in ("start", "report", "finish", "died") or line.get("id") is None:
                continue
            one = (str(line["id"]), int(line.get("n") or 1), int(line.get("try") or 1))
            if kind == "died":
                one = next((open_one for open_one in self._open if open_one[:2] == one[:2]), one)
            if kind == "start":
                self._open[one] = []
            elif one not in self._open and not (compare and kind == "died"):
                continue  # its beginning was lost in a gap
            elif kind == "report":
                self._open[one].append(line["report"])
            else:
                item = Finished(one[:2], self._open.pop(one, []), line if kind == "died" else None)
                if self._is_new(one, item, compare=compare):
                    finished.append(item)
        return finished

    def _is_new(self, one: Try, item: Finished, *, compare: bool) -> bool:
        before = self._done.get(one)
        if before is None:
            self._done[one] = item.reports
            return True
        shortened = any("_runpod.cut" in report for report in item.reports)  # to fit into the final archive
        again = self.ran_again and _outcomes(before) == _outcomes(item.reports)
        same = again or before == item.reports or (shortened and not self.ran_again)
        if compare and not same:
            self.different.append(item.key)
        return False


def _outcomes(reports: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    return [(report.get("when"), report.get("outcome")) for report in reports]


def keys_of(ids: Iterable[str]) -> list[Key]:
    """Number equal ids in their order: the first is 1.

    >>> keys_of(["a", "b", "a"])
    [('a', 1), ('b', 1), ('a', 2)]
    """
    seen: Counter[str] = Counter()
    keys = []
    for nodeid in ids:
        seen[nodeid] += 1
        keys.append((nodeid, seen[nodeid]))
    return keys
