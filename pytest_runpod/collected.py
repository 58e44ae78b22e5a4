"""The items of this session by id and occurrence: collected here, or told by a worker that has collected them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_runpod.core.matching import Key, keys_of


class Collected:
    """Finds the item of a report. With `--runpod-collect=worker` there is none until the worker has told its ids."""

    def __init__(self, session: pytest.Session, *, there: bool) -> None:
        self.session, self.there = session, there
        self.told = not there
        self._by_key: dict[Key, pytest.Item] = {}
        self._take(session.items)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(nodeid for nodeid, _ in self._by_key)

    def item(self, key: Key) -> pytest.Item | None:
        return self._by_key.get(key)

    def learn(self, ids: Iterable[str]) -> None:
        """Make items of what the worker has collected, and let every plugin know, as after a collection here."""
        self.told = True
        items: list[pytest.Item] = [
            RemoteItem.from_parent(self.session, name=nodeid.split("::")[-1], nodeid=nodeid) for nodeid in ids
        ]
        self.session.items = items
        self.session.testscollected += len(items)
        self._take(items)
        hook = self.session.config.hook
        hook.pytest_collectreport(report=pytest.CollectReport("", "passed", None, [*items]))
        hook.pytest_collection_finish(session=self.session)

    def _take(self, items: Iterable[pytest.Item]) -> None:
        items = list(items)
        self._by_key.update(zip(keys_of(item.nodeid for item in items), items, strict=True))


class RemoteItem(pytest.Item):
    """A test that only the worker has collected: here it has an id, and the reports that come back."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.path = self.session.config.rootpath / self.nodeid.split("::")[0]

    def runtest(self) -> NoReturn:
        raise RuntimeError(f"{self.nodeid} runs on the worker only")

    def reportinfo(self) -> tuple[Path | str, int | None, str]:
        return self.path, None, self.nodeid.partition("::")[2].replace("::", ".") or self.nodeid
