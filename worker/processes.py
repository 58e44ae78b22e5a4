"""Run a command in a process group of its own, and end all of it: on a deadline, on cancellation, or when it is done."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Done:
    """How a command ended. *exit*: its status, negative for a signal, None if it had to be ended at the deadline."""

    exit: int | None
    seconds: float
    output: str


async def run(
    command: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path, limit_s: float, stdin: bytes | None = None
) -> Done:
    """Run *command* to its end, its output in *log*. Everything that it started is ended with it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("ab") as sink:
        process = await start(command, sink, env, cwd, feed=stdin is not None)
    try:
        await asyncio.wait_for(process.communicate(stdin), max(0.1, limit_s))
        status: int | None = process.returncode
    except asyncio.TimeoutError:
        status = None
    finally:
        await end(process)
    return Done(status, time.monotonic() - began, log.read_text(encoding="utf-8", errors="replace"))


async def start(
    command: Sequence[str], sink: object, env: Mapping[str, str], cwd: Path, *, feed: bool = False
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE if feed else asyncio.subprocess.DEVNULL,
        stdout=sink,  # type: ignore[arg-type]
        stderr=asyncio.subprocess.STDOUT,
        env=dict(env),
        cwd=str(cwd),
        start_new_session=True,
    )


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of *process*, its group, and descendants that have made groups of their own (notebook kernels)."""
    below = descendants(process.pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(
            process.pid, signal.SIGKILL
        )  # at once: a shell whose child alone is killed goes on to its next command
    for pid in below:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    if process.returncode is None:
        await process.wait()


def end_all_of(folder: Path) -> None:
    """Kill every process whose environment names *folder*: also one that has left its group and its parent (a daemon)."""
    needle = os.fsencode(folder)
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(environ.parent.name)
            if pid != os.getpid() and needle in environ.read_bytes():
                os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """All processes below *pid*, from /proc; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    open_pids = [pid]
    while open_pids:
        below = children.get(open_pids.pop(), [])
        found += below
        open_pids += below
    return found


def cause_of(status: int) -> str:
    """Name an exit status as people do: `exit status 3`, `signal SIGSEGV`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
