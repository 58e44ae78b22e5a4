"""pytest in a process of its own, again in a fresh one when a test has ended it, until every selected test has its lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import limits
import processes
from environment import Places

TICK_S = 0.2
LAST_WORDS = 16_000  # bytes of the log that tell how a process died
OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")  # cgroup v2, v1
Key = tuple[str, int]


@dataclass
class Bounds:
    """How long, how often. Seconds; restarts after the first process."""

    deadline: float  # of time.monotonic()
    grace_s: float
    restarts: int
    max_text: int = limits.MAX_TEXT


@dataclass
class Outcome:
    """What the step has to say besides its lines."""

    exit: int | None = None
    notes: list[str] = field(default_factory=list)
    deadline: bool = False


class Lines:
    """The report lines on disk, read as they grow. Counts, keys and the end are known without keeping the reports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self.texts: list[bytes] = []
        self.finished: set[Key] = set()
        self.open: dict[Key, None] = {}
        self.ended: int | None = None
        self.poisoned = False  # the process that writes has a CUDA context that cannot be used again
        self.collected: list[str] | None = None
        self.extra: list[str] = []  # collected here and not on the client
        self.failures = 0  # as pytest counts them for --maxfail; a death is one more
        self._rest = b""
        self._offset = 0

    def read(self) -> bool:
        """Take in what was appended. Returns whether there was anything."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            fresh = file.read()
        self._offset += len(fresh)
        *whole, self._rest = (self._rest + fresh).split(b"\n")
        for text in whole:
            self._take(text)
        return bool(whole)

    def append(self, **line: Any) -> None:
        if self._rest:  # a line that its writer could not finish
            with self.path.open("ab") as file:
                file.write(b"\n")
        with self.path.open("ab") as file:
            file.write(json.dumps(line).encode("ascii") + b"\n")
        self.read()

    def _take(self, text: bytes) -> None:
        try:
            line = json.loads(text)
        except ValueError:
            return  # torn by the death of its writer; the test that it spoke of is reported as such
        self.texts.append(text)
        kind = line.get("kind")
        if kind == "died" or (kind == "report" and _is_failure(line["report"])):
            self.failures += 1
        if kind in ("start", "finish", "died") and line.get("id") is not None:
            key = (line["id"], line["n"])
            if kind == "start":
                self.open[key] = None
            else:
                self.open.pop(key, None)
                self.finished.add(key)
        elif kind == "end":
            self.ended = int(line["exitstatus"])
        elif kind == "collected" and self.collected is None:
            self.collected, self.extra = line["ids"], line["extra"]
        elif kind == "report" and "_runpod.poisoned" in line["report"]:
            self.poisoned = True


class PytestRun:
    """Runs the selected items to the end, whatever they do to their process."""

    def __init__(
        self, places: Places, session: Mapping[str, Any], plugins: list[str], env: Mapping[str, str], bounds: Bounds,
        lines: Lines,
    ) -> None:  # fmt: skip
        self.places, self.session, self.env, self.bounds = places, session, env, bounds
        self.blocked = [name for name in plugins if name not in session["plugins"]]
        self.lines = lines
        self.log_began = 0  # where the process that runs began to write
        self.outcome = Outcome()

    @property
    def keys(self) -> list[Key] | None:
        """What is to run; None until it is known: where this side collects, its first process will tell."""
        ids = self.session["ids"] if self.session["ids"] is not None else self.lines.collected
        return None if ids is None else keys_of([*ids, *self.lines.extra])

    async def run(self, watch: Callable[[Lines], None]) -> Outcome:
        """Run, and restart for what is left after a death. *watch* is called whenever new lines are there."""
        for attempt in range(self.bounds.restarts + 1):
            left = self._left()
            oom_kills = out_of_memory_kills()
            status = await self._one_process(left, attempt, watch)
            if self.lines.ended is not None and not (self.lines.poisoned and self._left()):
                self.outcome.exit = self.lines.ended or int(attempt > 0)  # a test has failed if it took a restart
                self._note_late_death(status)
                break
            if self.lines.ended is not None:
                self.outcome.exit = self.lines.ended
                self.outcome.notes.append("a CUDA error has poisoned the process that ran the tests")
            else:
                self._bury(status, left, out_of_memory=out_of_memory_kills() > oom_kills)
            still_left = self._left()
            if self.outcome.deadline or self._failures_left() == 0 or not still_left or still_left == left:
                break
        watch(self.lines)
        return self.outcome

    def _left(self) -> list[Key] | None:
        keys = self.keys
        return None if keys is None else [key for key in keys if key not in self.lines.finished]

    def _failures_left(self) -> int | None:
        """How many more tests may fail; None if `maxfail` sets no bound."""
        maxfail = int(self.session["maxfail"])
        return max(0, maxfail - self.lines.failures) if maxfail else None

    async def _one_process(self, left: list[Key] | None, attempt: int, watch: Callable[[Lines], None]) -> int | None:
        """Returns its exit status; None if it had to be ended."""
        control = self.places.base / f"control-{attempt}.json"
        control.write_text(json.dumps(self._control(left, attempt)), encoding="ascii")
        self.lines.ended, self.lines.poisoned = None, False
        log = self.places.log("pytest")
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log_began = log.stat().st_size if log.exists() else 0
        command = [str(self.places.python), "-u", str(Path(__file__).parent / "launcher.py")]
        cwd = self.places.root / self.session["invocation_dir"]
        cwd.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            process = await processes.start(command, sink, {**self.env, "PYTEST_RUNPOD_CONTROL": str(control)}, cwd)
        try:
            return await self._wait(process, watch)
        finally:
            await processes.end(process)
            self.lines.read()

    async def _wait(self, process: asyncio.subprocess.Process, watch: Callable[[Lines], None]) -> int | None:
        end_seen = None
        waiter = asyncio.ensure_future(process.wait())
        try:
            while True:
                await asyncio.wait({waiter}, timeout=TICK_S)
                self.lines.read()
                # Also without anything new: what came too soon after the last update is still to be told.
                watch(self.lines)
                if waiter.done():
                    return waiter.result()
                now = time.monotonic()
                if self.lines.ended is not None:
                    end_seen = end_seen or now
                    if now - end_seen > self.bounds.grace_s:
                        return None
                elif now > self.bounds.deadline:
                    self.outcome.deadline = True
                    return None
        finally:
            waiter.cancel()

    def _control(self, left: list[Key] | None, attempt: int) -> dict[str, Any]:
        root = self.places.root
        session = self.session
        args = [*session["args"], f"--rootdir={root}", "-o", "addopts=", "-p", "pytest_runpod_inside.plugin"]
        if session["ids"] is not None:
            args.append("--continue-on-collection-errors")
        if not any(word.endswith("no:cacheprovider") for word in args):  # it knows the ini key only where it is active
            args += ["-o", f"cache_dir={self.places.base / 'cache'}"]
        if (failures_left := self._failures_left()) is not None:
            args.append(f"--maxfail={failures_left}")
        args += [word for name in self.blocked for word in ("-p", f"no:{name}")]
        if "--nbmake" in args:
            args.append("--overwrite")  # the session plugin takes the executed copy and puts the source back
        if session["inifile"]:
            args += ["-c", str(root / session["inifile"])]
        if any(word.startswith("--cov") for word in args):
            args.append("--cov-report=")  # the client reports, from all the data
        return {
            "keys": left,
            "before": sorted(self.lines.finished),
            "extras": session["extras"],
            "deselected": session["deselected"],
            "may_restart": attempt < self.bounds.restarts,
            "modules": session["modules"],
            "max_text": self.bounds.max_text,
            "coverage": str(self.places.out / "coverage"),
            "notebooks": str(self.places.out / "notebooks"),
            "lines": str(self.lines.path),
            "root": str(root),
            "site": self.places.image_folders,
            "python_path": [str(root / folder) if folder != "." else str(root) for folder in session["python_path"]],
            "args": [*args, *session["paths"]],
        }

    def _note_late_death(self, status: int | None) -> None:
        if status is None:
            self.outcome.notes.append("pytest had finished, but its process did not end and had to be ended")
        elif status != self.lines.ended:
            self.outcome.notes.append(
                f"pytest had finished with status {self.lines.ended}, then its process ended by {processes.cause_of(status)}"
            )

    def _bury(self, status: int | None, left: list[Key] | None, *, out_of_memory: bool) -> None:
        """Write down how the process died, for the test that it was running (several under xdist)."""
        cause = "deadline" if self.outcome.deadline else processes.cause_of(0 if status is None else status)
        if out_of_memory:
            cause += ", by the kernel: out of memory"
        open_now = list(self.lines.open)
        said = self._last_words()
        for nodeid, number in open_now:
            self.lines.append(kind="died", id=nodeid, n=number, cause=cause, exit=status, said=said)
        if not open_now:
            self.lines.append(kind="died", id=None, n=None, cause=cause, exit=status, said=said)
        self.outcome.exit = status
        self.outcome.notes.append(f"the process that ran the tests ended in the middle of it: {cause}")

    def _last_words(self) -> str:
        """The end of what the process that died has written: stacks of a timeout or of a crash stand there."""
        with self.places.log("pytest").open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(self.log_began, size - LAST_WORDS))
            return log.read().decode("utf-8", "replace")


def out_of_memory_kills(files: tuple[str, ...] = OOM_COUNTERS) -> int:
    """How many processes of this container the kernel has killed for want of memory; 0 where it does not say."""
    for name in files:
        with contextlib.suppress(OSError):
            for line in Path(name).read_text(encoding="ascii").splitlines():
                key, _, count = line.partition(" ")
                if key == "oom_kill":
                    return int(count)
    return 0


def _is_failure(report: Mapping[str, Any]) -> bool:
    return (
        report.get("outcome") == "failed" and "wasxfail" not in report and report.get("$report_type") != "CollectReport"
    )


def keys_of(ids: list[str]) -> list[Key]:
    seen: dict[str, int] = {}
    keys = []
    for nodeid in ids:
        seen[nodeid] = seen.get(nodeid, 0) + 1
        keys.append((nodeid, seen[nodeid]))
    return keys
