"""The detached process that deletes an endpoint when nobody else does.

It acts when its pytest has died (its standard input ends) or at the deadline in the receipt, whichever comes first, and
ends as soon as the receipt says that clean-up is confirmed. It runs the same `cleanup` as everybody else.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from pytest_runpod.cleanup import clean_receipt
from pytest_runpod.errors import RunpodError
from pytest_runpod.store.receipts import ReceiptFile
from pytest_runpod.wiring import SystemClock, describe_failure, reconnect

TICK_S: Final = 1.0
RETRY_S: Final = 15.0
GIVE_UP_S: Final = 6 * 3600.0  # past the deadline: by then a person has to look


def main(arguments: list[str] | None = None) -> int:
    """Watch one receipt until its clean-up is confirmed. Returns 0 then, 1 if it gave up."""
    parser = argparse.ArgumentParser(prog="python -m pytest_runpod.watchdog", description=__doc__)
    parser.add_argument("receipt", type=Path)
    parser.add_argument("--until-deadline", action="store_true", help="the process that started this one may end")
    options = parser.parse_args(arguments)
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    return watch(ReceiptFile(options.receipt), _parent_gone(forever=options.until_deadline))


def watch(file: ReceiptFile, parent_gone: threading.Event) -> int:
    """Wait for the deadline or the parent's death, then clean up until it is confirmed."""
    clock = SystemClock()
    deadline = file.read().deadline_at
    _say(clock, f"watching {file.path.name}, until {deadline - clock.now():.0f} s from now")
    while not file.read().cleanup_confirmed:
        if not parent_gone.wait(TICK_S) and clock.now() < deadline:
            continue
        if file.read().cleanup_confirmed:
            break
        _say(clock, "the run has died" if parent_gone.is_set() else "the deadline has come")
        if _cleaned(file, clock):
            break
        if clock.now() > deadline + GIVE_UP_S:
            _say(clock, "giving up: a person has to look")
            return 1
        clock.wait(RETRY_S)
    _say(clock, "clean-up is confirmed")
    return 0


def _cleaned(file: ReceiptFile, clock: SystemClock) -> bool:
    try:
        clean_receipt(file, reconnect(file.read(), os.environ), clock.iso)
    except RunpodError as error:
        _say(clock, describe_failure(error))
        return False
    return True


def _parent_gone(*, forever: bool) -> threading.Event:
    gone = threading.Event()
    if not forever:
        threading.Thread(target=_wait_for_end_of_input, args=(gone,), daemon=True).start()
    return gone


def _wait_for_end_of_input(gone: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        continue
    gone.set()


def _say(clock: SystemClock, text: str) -> None:
    sys.stderr.write(f"{clock.iso()} {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
