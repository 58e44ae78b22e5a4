"""The detached process that deletes an endpoint when nobody else does.

It acts when its pytest has ended (its lifeline, standard input, ends; or the process is gone) or at the deadline in the
receipt, whichever comes first, and ends as soon as the receipt says that clean-up is confirmed. It runs the same clean-up as
everybody else. A line `stay` on its lifeline means: the process that started this one may end, act at the deadline only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Final

from pytest_runpod.cleanup import ANOTHER_S, clean_receipt, clean_up
from pytest_runpod.core.receipt import Receipt
from pytest_runpod.core.watch import Step, next_step, steady
from pytest_runpod.errors import CleanupUnresolved, ReceiptDamaged, StillLocked
from pytest_runpod.store.receipts import ReceiptFile
from pytest_runpod.wiring import STAY, WATCHING, SystemClock, describe_failure, reconnect

TICK_S: Final = 1.0
LATE_S: Final = 5.0  # after the deadline another cleaner is waited for no longer than this


def main(arguments: list[str] | None = None) -> int:
    """Watch one receipt until its clean-up is confirmed. Returns 0 then, 1 if it gave up."""
    parser = argparse.ArgumentParser(prog="python -m pytest_runpod.watchdog", description=__doc__)
    parser.add_argument("receipt", type=Path)
    parser.add_argument("--parent", type=int, required=True, help="process id of the run")
    options = parser.parse_args(arguments)
    _leave_the_family()
    for name in ("SIGINT", "SIGHUP", "SIGTERM"):  # who hunts left-over processes has ended the run, and that is seen
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    file = ReceiptFile(options.receipt)
    with file.watching():
        watched = file.read()
        _say_that_we_watch()
        return watch(file, watched, Lifeline(options.parent))


def watch(file: ReceiptFile, watched: Receipt, lifeline: Lifeline) -> int:
    """Wait for the deadline or the end of the run, then clean up until it is confirmed."""
    clock = _SteadyClock()
    tried_at: float | None = None
    _say(clock, f"watching {file.path.name}: {watched.name}, {watched.deadline_at - clock.now():.0f} s to its deadline")
    while True:
        receipt = _read(file, watched)
        ended = lifeline.ended
        step = next_step(receipt, clock.now(), run_ended=ended, tried_at=tried_at)
        if step is Step.END:
            _say(clock, "clean-up is confirmed")
            return 0
        if step is Step.GIVE_UP:
            _say(clock, "giving up: a person has to look")
            return 1
        if step is Step.CLEAN:
            _say(clock, "the run has ended without clean-up" if ended else "the deadline has come")
            if _cleaned(file, watched, clock, late=clock.now() >= receipt.deadline_at):
                continue
            tried_at = clock.now()
        lifeline.wait(TICK_S)


class _SteadyClock(SystemClock):
    """One that does not go back."""

    def __init__(self) -> None:
        self._began, self._counted = super().now(), self.counter()

    def now(self) -> float:
        return steady(super().now(), self._began, self.counter() - self._counted)


class Lifeline:
    """Tells whether the run still lives: its end of the pipe, and its process."""

    def __init__(self, parent: int) -> None:
        self.parent = parent
        self.staying = False
        self._cut = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def ended(self) -> bool:
        if self.staying:
            return False
        return self._cut.is_set() or not _exists(self.parent)  # a fork of the run may keep the pipe open

    def wait(self, seconds: float) -> None:
        """Until the lifeline is cut, at most so long."""
        if self._cut.is_set():
            SystemClock().wait(seconds)
        else:
            self._cut.wait(seconds)

    def _read(self) -> None:
        heard = b""
        while word := os.read(sys.stdin.fileno(), 4096):
            heard += word
            self.staying = STAY.encode() in heard
        self._cut.set()


def _exists(process: int) -> bool:
    if os.name == "nt":  # there signal 0 would end it; the pipe tells
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read(file: ReceiptFile, watched: Receipt) -> Receipt:
    """The receipt as it is now; as it was, if somebody has damaged it meanwhile. Its deadline never moves to later."""
    try:
        now = file.read()
    except ReceiptDamaged:
        return watched
    return replace(now, deadline_at=min(now.deadline_at, watched.deadline_at))


def _cleaned(file: ReceiptFile, watched: Receipt, clock: SystemClock, *, late: bool) -> bool:
    patience_s = LATE_S if late else ANOTHER_S
    try:
        clean_receipt(file, reconnect(watched, os.environ), clock.iso, rescue=True, patience_s=patience_s)
    except CleanupUnresolved as unresolved:
        _say(clock, describe_failure(unresolved))
        if late and isinstance(unresolved.__cause__, StillLocked):
            return _gone_without_receipt(
                watched, clock
            )  # who holds it is stopped, or hangs; deleting twice is no error
        return False
    except Exception as error:  # noqa: BLE001 - a full disk, a damaged receipt, a slip of ours: the endpoint must go all the same
        _say(clock, f"{describe_failure(error)}\n  going on with what the receipt said when this began")
        return _gone_without_receipt(watched, clock)
    return True


def _gone_without_receipt(watched: Receipt, clock: SystemClock) -> bool:
    try:
        clean_up(watched.owned, reconnect(watched, os.environ))
    except Exception as error:  # noqa: BLE001 - as above: it is told, and tried again
        _say(clock, describe_failure(error))
    else:
        _say(clock, f"nothing named {watched.name} is left; its receipt could not be written, and was left as it is")
    return False  # nothing can be confirmed in it, and more may appear: look again


def _leave_the_family() -> None:
    """Become nobody's child, in a session of its own: who ends a run's process tree, group or terminal does not find it."""
    if hasattr(os, "fork"):
        if os.fork():
            os._exit(0)
        os.setsid()


def _say_that_we_watch() -> None:
    """Tell the run that it may create something now, and let go of its pipe."""
    sys.stdout.write(f"{WATCHING} {os.getpid()}\n")
    sys.stdout.flush()
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a descriptor is needed, not a path
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _say(clock: SystemClock, text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk must not end the watchdog
        sys.stderr.write(f"{clock.iso()} {text}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
