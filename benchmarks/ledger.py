"""Does the ledger hold while many processes reserve at once and are killed in the middle of it? Exit status 1: it does not.

    python benchmarks/ledger.py [--processes 16] [--attempts 200] [--cap 800] [--seed 1]

Each process tries so many reservations of $1 to $3, each for a run of its own, and writes into a log of its own, flushed to the
disk, what `reserve` has answered. All the while one of them is killed with SIGKILL, every second time the one that holds the
ledger's lock (where /proc/locks tells), and started again: it goes on with the first attempt that its log does not name. A reader
without a lock looks at the file the whole time. The cap is passed on the way: what comes later must be refused. POSIX only.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from pytest_runpod.core.budget import Caps, Entry, Stage
from pytest_runpod.core.money import MicroUsd, format_usd, parse_usd
from pytest_runpod.errors import BudgetRefused
from pytest_runpod.store.ledger import Ledger

FORK = multiprocessing.get_context("fork")
PAUSE_S = 0.015  # from kill to kill, on average
TOO_MUCH = "The budget does not allow"


@dataclass(frozen=True)
class Plan:
    """What is tried: where, by how many, up to which cap."""

    folder: Path
    processes: int
    attempts: int
    cap: MicroUsd
    seed: int

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "ledger.json")

    @property
    def caps(self) -> Caps:
        return Caps(total=self.cap)

    def log(self, worker: int) -> Path:
        return self.folder / f"worker-{worker}.log"

    def amount(self, worker: int, number: int) -> MicroUsd:
        return MicroUsd(random.Random(f"{self.seed} {worker} {number}").randrange(1_000_000, 3_000_001, 10_000))


# --- one process


def work(plan: Plan, worker: int, life: int) -> None:
    """Go on with the attempts that are not in the log. *life*: how often this process was started before."""
    done = {one["number"] for one in logged(plan.log(worker))}
    descriptor = os.open(plan.log(worker), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    os.ftruncate(
        descriptor, os.pread(descriptor, 1 << 30, 0).rfind(b"\n") + 1
    )  # a kill may cut a line: it was not logged
    for number in range(plan.attempts):
        if number in done:
            continue
        name = f"{worker}-{number}-{life}"
        amount = plan.amount(worker, number)
        answer = reserve(plan, Entry(id=name, run=name, stage=Stage.JOB, reserved=amount, at="2026-01-01T00:00:00Z"))
        line = json.dumps({"number": number, "id": name, "amount": amount, "answer": answer})
        os.write(descriptor, f"{line}\n".encode())
        os.fsync(descriptor)


def reserve(plan: Plan, entry: Entry) -> str:
    """Returns: `accepted`, `refused`, or what else the ledger has said."""
    try:
        plan.ledger.reserve(entry, plan.caps)
    except BudgetRefused as no:
        return "refused" if no.happened.startswith(TOO_MUCH) else str(no)
    return "accepted"


def logged(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a log."""
    text = path.read_text() if path.exists() else ""
    return (json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n"))


# --- who looks on


def read_on(plan: Plan, say: Connection) -> None:
    """Read the ledger without a lock until told to stop; says how often, and how often it was torn or had lost something."""
    reads, torn, most = 0, 0, 0
    while not say.poll(0.005):
        try:
            count = len(plan.ledger.entries())
        except BudgetRefused as damage:
            print(damage, file=sys.stderr)
            count = -1
        torn += count < most
        most = max(most, count)
        reads += 1
    say.send((reads, torn))


# --- who starts and kills


def holder(plan: Plan) -> int | None:
    """The process that holds the ledger's lock now, where the system tells."""
    try:
        inode = Path(f"{plan.ledger.path}.lock").stat().st_ino
        words = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return None
    return next(
        (int(one[4]) for one in words if len(one) > 5 and one[1] != "->" and one[5].endswith(f":{inode}")), None
    )


def supervise(plan: Plan) -> tuple[int, int]:
    """Start all processes, kill and restart them until each has finished. Returns: kills, those of them that hit the lock."""
    chance, kills, hits = random.Random(plan.seed), 0, 0
    lives = dict.fromkeys(range(plan.processes), 0)
    running = {worker: started(plan, worker, 0) for worker in lives}
    while running:
        time.sleep(chance.expovariate(1 / PAUSE_S))
        for worker, process in list(running.items()):
            if process.exitcode is not None:
                if process.exitcode != 0:
                    raise SystemExit(f"process {worker} ended by itself, with {process.exitcode}")
                del running[worker]
        if not running:
            break
        holding = holder(plan) if kills % 2 else None
        victim = next((one for one, process in running.items() if process.pid == holding), None)
        hits += victim is not None
        worker = chance.choice(sorted(running)) if victim is None else victim
        running[worker].kill()
        running[worker].join()
        if running[worker].exitcode == 0:  # it was faster
            hits -= victim is not None
            del running[worker]
            continue
        kills += 1
        lives[worker] += 1
        running[worker] = started(plan, worker, lives[worker])
    return kills, hits


def started(plan: Plan, worker: int, life: int) -> ForkProcess:
    process = FORK.Process(target=work, args=(plan, worker, life), daemon=True)
    process.start()
    return process


# --- what came of it


def judge(plan: Plan, kills: int, hits: int, reads: int, torn: int, took_s: float) -> int:
    logs = [one for worker in range(plan.processes) for one in logged(plan.log(worker))]
    accepted = [one for one in logs if one["answer"] == "accepted"]
    refused = [one for one in logs if one["answer"] == "refused"]
    others = [one["answer"] for one in logs if one["answer"] not in ("accepted", "refused")]
    before = leftovers(plan)
    for one in accepted[:1]:
        plan.ledger.adjust(one["id"], one["amount"], "one more writer, who clears up")
    kept = {entry.id: entry.reserved for entry in plan.ledger.entries()}
    total = sum(kept.values())
    missing = [one["id"] for one in accepted if kept.get(one["id"]) != one["amount"]]
    wrongly = [one["id"] for one in refused if total + one["amount"] <= plan.cap]
    unlogged = len(kept.keys() - {one["id"] for one in accepted})
    after = leftovers(plan)
    rows = [
        ("processes", plan.processes, True, ""),
        ("attempts", len(logs), len(logs) == plan.processes * plan.attempts, f"{plan.processes * plan.attempts}"),
        ("accepted", len(accepted), True, ""),
        ("refused", len(refused), True, ""),
        ("refused though it would have fitted", len(wrongly), not wrongly, "0"),
        ("any other answer", len(others), not others, "0"),
        ("kills by SIGKILL", kills, True, ""),
        ("  of who held the lock", hits, True, ""),
        ("total of the ledger", format_usd(total), total <= plan.cap, f"{format_usd(plan.cap)} at most"),
        ("reads at the same time, without a lock", reads, True, ""),
        ("torn reads", torn, not torn, "0"),
        ("entries lost", len(missing), not missing, "0"),
        ("entries in the ledger that nobody logged", unlogged, unlogged <= kills, f"{kills} at most: one a kill"),
        ("temporary files when all had ended", before, before <= 1, "1 at most"),
        ("temporary files after the next writer", after, not after, "0"),
    ]
    for what, found, holds, bound in rows:
        print(f"{what:<42}{found:>10}   {bound}{'' if holds else '   <- BROKEN'}")
    for answer in sorted(set(others))[:5]:
        print(answer, file=sys.stderr)
    broken = [what for what, _, holds, _ in rows if not holds]
    print(
        f"{'BROKEN' if broken else 'held'}: {plan.processes} processes, {len(logs)} attempts, "
        f"{len(accepted)} accepted, {len(refused)} refused, {kills} kills, {format_usd(total)} of {format_usd(plan.cap)}, "
        f"{torn} torn reads, {len(missing)} lost, {unlogged} unlogged, {after} leftovers, {took_s:.0f} s"
    )
    return int(bool(broken))


def leftovers(plan: Plan) -> int:
    return sum(path.name.startswith(".") for path in plan.folder.iterdir())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--attempts", type=int, default=200, help="of each process")
    parser.add_argument("--cap", default="800", help="US dollars that all of them may reserve together")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="runpod-ledger-") as folder:
        plan = Plan(Path(folder), options.processes, options.attempts, parse_usd(options.cap), options.seed)
        ours, theirs = FORK.Pipe()
        reader = FORK.Process(target=read_on, args=(plan, theirs), daemon=True)
        reader.start()
        kills, hits = supervise(plan)
        ours.send("stop")
        reads, torn = ours.recv()
        reader.join()
        try:
            return judge(plan, kills, hits, reads, torn, time.monotonic() - began)
        except BudgetRefused as damage:
            print(f"BROKEN: {damage}")
            return 1


if __name__ == "__main__":
    sys.exit(main())
