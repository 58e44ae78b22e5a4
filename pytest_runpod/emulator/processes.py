"""Processes of workers: find everything a worker has started, end it, and see to it that nothing outlives the emulator.

Imports the standard library only: run as a script it is the guardian, which knows no packages (`python -I -S`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

END_S: Final = 3.0  # so long processes are looked for and killed: some may be forking meanwhile
PAUSE_S: Final = 0.05
PROC: Final = Path("/proc")


@dataclass(frozen=True)
class Seen:
    """One process, as /proc shows it."""

    pid: int
    parent: int
    session: int
    has_terminal: bool

    def touches(self, home: str) -> bool:
        """Whether its HOME or its working folder is *home*, or lies below."""
        if self.has_terminal:  # a person's shell that looks at a worker's folder; workers have no terminal
            return False
        folder = PROC / str(self.pid)
        with contextlib.suppress(OSError):
            if _below(str((folder / "cwd").readlink()).removesuffix(" (deleted)"), home):
                return True
        with contextlib.suppress(OSError):
            for entry in (folder / "environ").read_bytes().split(b"\0"):
                if entry.startswith(b"HOME=") and _below(os.fsdecode(entry[5:]), home):
                    return True
        return False


def belonging(home: Path, leaders: Collection[int] = ()) -> list[int]:
    """Find the processes of the workers whose folder is *home* or lies in it. Linux only: elsewhere the list is empty.

    A process belongs if its HOME or its working folder is there, if it is in the session of one of the *leaders*, or if one
    that belongs has started it. What leaves all of these on purpose (own session, `/` as working folder, cleared
    environment, parent ended) is not found.
    """
    table = _table()
    found = {pid for pid, one in table.items() if one.session in leaders or one.touches(str(home))}
    grown = True
    while grown:
        below = {pid for pid, one in table.items() if one.parent in found} - found
        found |= below
        grown = bool(below)
    return sorted(found - {os.getpid()})


def end(home: Path, leaders: Collection[int] = ()) -> bool:
    """Kill what belongs to the workers below *home*, until a fresh look finds nothing. False: something is still there."""
    for leader in leaders:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    until = time.monotonic() + END_S
    while alive := belonging(home, leaders):
        if time.monotonic() > until:
            return False
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)
    return True


class Guardian:
    """A small process that waits for this one to end, however it ends, then kills the workers and removes *folder*.

    The kernel kills a worker whose emulator was killed (`PR_SET_PDEATHSIG`), but not what that worker has started.
    """

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def note(self, leader: int) -> None:
        """Tell of a worker's session: where there is no /proc, its process group is all that can be found."""
        self._write(f"+{leader}\n")

    def forget(self, leader: int) -> None:
        self._write(f"-{leader}\n")

    def close(self) -> None:
        """Let it do its work now, and wait for it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(2 * END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, text: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # somebody has killed the guardian: the workers' end is then ours alone
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()


def guard(folder: Path) -> None:
    """Read leaders from standard input until it ends, then end what is left of them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    leaders: set[int] = set()
    for line in sys.stdin:
        (leaders.add if line[0] == "+" else leaders.discard)(int(line[1:]))
    end(folder / "workers", leaders)
    shutil.rmtree(folder, ignore_errors=True)


def _table() -> dict[int, Seen]:
    table = {}
    for folder in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                pid = int(folder.name)
                table[pid] = Seen(pid, int(fields[1]), int(fields[3]), fields[4] != "0")
    return table


def _below(path: str, home: str) -> bool:
    return path == home or path.startswith(f"{home}/")


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
