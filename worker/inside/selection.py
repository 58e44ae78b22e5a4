"""Which of the collected items run, and in which order; ids as the client knows them."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from typing import Any

import pytest


class Selection:
    """Keeps what the client selected, by id and occurrence, in the client's order; then what only this side has collected."""

    def __init__(self, control: dict[str, Any]) -> None:
        self.everything = control["keys"] is None
        self.wanted = {(nodeid, number): at for at, (nodeid, number) in enumerate(control["keys"] or ())}
        self.extras = bool(control["extras"])
        digests = base64.b64decode(control["deselected"])
        self.deselected = {digests[at : at + 4] for at in range(0, len(digests), 4)}
        self.finished = {(nodeid, number) for nodeid, number in control["before"]}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.everything:
            return
        seen: Counter[str] = Counter()
        kept, rest = [], []
        for item in items:
            nodeid = client_id(item.nodeid, self.wanted)
            seen[nodeid] += 1
            key = (nodeid, seen[nodeid])
            if key in self.wanted or self.is_extra(key):
                kept.append((self.wanted.get(key, len(self.wanted)), item))
            else:
                rest.append(item)
        items[:] = [item for _, item in sorted(kept, key=lambda pair: pair[0])]
        if rest:
            config.hook.pytest_deselected(items=rest)

    def is_extra(self, key: tuple[str, int]) -> bool:
        """Not even known on the client; what it has deselected is known there."""
        digest = hashlib.sha256(key[0].encode("utf-8", "surrogatepass")).digest()[:4]
        return self.extras and key not in self.finished and digest not in self.deselected


def client_id(nodeid: str, wanted: Any) -> str:
    """Undo what xdist's loadgroup appends to an id."""
    if (nodeid, 1) in wanted or "@" not in nodeid:
        return nodeid
    shorter = nodeid.rsplit("@", 1)[0]
    return shorter if (shorter, 1) in wanted else nodeid
