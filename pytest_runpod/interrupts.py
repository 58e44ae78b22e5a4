"""Ctrl-C, SIGTERM and SIGHUP in a remote session: the first ends it, and none of them stops the deletion.

The first raises, as pytest expects it, wherever the session waits. While the endpoint is being deleted, a signal is answered
and changes nothing; only a second Ctrl-C of a person who has read that answer leaves the rest to the watchdog, which is safe:
it deletes as soon as this process has ended.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Final

import pytest

from pytest_runpod.errors import CleanupUnresolved

SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupts:
    """Handlers of one session, while it is entered. *say*: a line for the terminal."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.first: int | None = None
        self.deleting = False
        self.asked_again = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if (
            threading.current_thread() is threading.main_thread()
        ):  # elsewhere nobody can set a handler, nor gets a signal
            heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # `nohup` stays
            self._before = {number: signal.signal(number, self._handle) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    @contextmanager
    def while_deleting(self) -> Iterator[None]:
        """Answer signals instead of raising them. One that came meanwhile, and was the first, is raised at the end."""
        told = self.first
        self.deleting = True
        try:
            yield
        finally:
            self.deleting = False
        if told is None and self.first is not None:
            raise _end_of_session(self.first)

    def _handle(self, number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        if not self.deleting and self.first is None:
            self.first = number
            raise _end_of_session(number)
        self.first = self.first or number
        self.asked_again += number == signal.SIGINT
        if self.asked_again > 1 and self.deleting:
            self._tell(f"{name}: leaving the rest of the deletion to the watchdog")
            raise CleanupUnresolved(
                "The deletion was left to the watchdog. The endpoint may exist for some seconds more, and cost.",
                looked_at="Ctrl-C, for the second time while deleting",
                todo="see that it confirms: `pytest-runpod reap`",
            )
        self._tell(f"{name}: deleting the endpoint first; Ctrl-C once more, and the watchdog does it instead")

    def _tell(self, text: str) -> None:
        with suppress(RuntimeError):  # the signal came in the middle of a write to the same stream: it cannot be told
            self.say(text)


def _end_of_session(number: int) -> BaseException:
    if number == signal.SIGINT:
        return KeyboardInterrupt()
    return pytest.exit.Exception(f"received {signal.Signals(number).name}", returncode=128 + number)
