"""Play every fault at every step of a run, and print a matrix: what was left, who was touched, what the books say.

    python benchmarks/faults.py [--only TEXT] [--lanes 2] [--write docs/faults.md]

The scenarios are those of `tests/journeys/fault_scenarios.py`; each runs pytest as a process against a served emulator.
"""

from __future__ import annotations

import argparse
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "journeys")]

from fault_scenarios import FOREIGN, REQUESTS, SIGNALS, WIRE, Outcome, Scenario, Stage, scenarios  # noqa: E402

from conftest import Project, ServedEmulator, watchdogs  # noqa: E402

TOUCHED = "somebody else's endpoint was touched"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="scenarios whose name holds this text")
    parser.add_argument("--lanes", type=int, default=2, help="so many emulators and runs at once")
    parser.add_argument("--write", type=Path, help="write the page of the documentation")
    options = parser.parse_args()
    chosen = [one for one in scenarios() if options.only in one.id]
    began = time.monotonic()
    outcomes = sorted(play_all(chosen, options.lanes), key=lambda one: chosen.index(one.scenario))
    print(text := matrix(outcomes))
    for one in outcomes:
        if one.problems:
            print(f"\n--- {one.scenario.id}: {'; '.join(one.problems)}\n{one.output[-3000:]}")
    print(line := last_line(outcomes, time.monotonic() - began))
    if options.write:
        options.write.write_text(f"{PAGE}\n```text\n{text}\n\n{line}\n```\n", encoding="utf-8")
    return int(any(one.problems for one in outcomes))


PAGE = """# Faults

Every request of a whole run with every fault of the wire, every step with every signal, and every fault of the account. Each
scenario runs pytest as a process against a served emulator on which other people's endpoints live too, and is judged when
everything has settled. `python benchmarks/faults.py --write docs/faults.md` makes this page.

`ok` with the exit code: nothing of ours is left, nobody else's endpoint has changed, what was created was sent once and had
been reserved for, the ledger covers the bill, the exit code is of the right class, and the receipt says what is so. A create
whose answer was lost, and that no list ever shows, stays unresolved on purpose: that is exit code 13.
"""


def play_all(chosen: list[Scenario], lanes: int) -> list[Outcome]:
    waiting: queue.SimpleQueue[Scenario] = queue.SimpleQueue()
    for one in chosen:
        waiting.put(one)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="runpod-faults-") as folder:
        threads = [
            threading.Thread(target=lane, args=(Path(folder) / str(number), waiting, outcomes, len(chosen)))
            for number in range(lanes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return outcomes


def lane(folder: Path, waiting: queue.SimpleQueue[Scenario], outcomes: list[Outcome], total: int) -> None:
    root = folder / "project"
    root.mkdir(parents=True)
    emulator = ServedEmulator({"foreign_endpoints": FOREIGN}, folder)
    try:
        stage = Stage(emulator, Project(root), watchdogs)
        while not waiting.empty():
            try:
                scenario = waiting.get_nowait()
            except queue.Empty:
                break
            outcomes.append(one := stage.play(scenario))
            verdict = "; ".join(one.problems) or "ok"
            print(
                f"{len(outcomes):3}/{total} {scenario.id}: exit {one.code}, {one.run_s:.1f} s, {verdict}",
                file=sys.stderr,
            )
    finally:
        emulator.end()


def matrix(outcomes: list[Outcome]) -> str:
    shown = {one.scenario.id: f"{'ok' if not one.problems else 'NO'} {one.code}" for one in outcomes}
    lines = ["requests of a whole run, and what happens to them on the wire", ""]
    lines += table(
        [name for name, *_ in REQUESTS],
        [name for name, *_ in WIRE],
        lambda row, column: f"request: {row}, {column}",
        shown,
    )
    signals = [number.name for number in SIGNALS]
    steps = sorted({one.scenario.name.split(" ", 1)[1] for one in outcomes if one.scenario.group == "signal"})
    lines += ["", "steps, and the signal that comes then", ""]
    lines += table(steps, signals, lambda row, column: f"signal: {column} {row}", shown)
    lines += ["", "the account", ""]
    lines += [
        f"  {one.scenario.name:<48} {shown[one.scenario.id]}" for one in outcomes if one.scenario.group == "account"
    ]
    return "\n".join(lines)


def table(rows: list[str], columns: list[str], key: object, shown: dict[str, str]) -> list[str]:
    width = [max(len(column), 7) for column in columns]
    lines = ["  " + " " * 26 + "  ".join(column.ljust(w) for column, w in zip(columns, width, strict=True))]
    for row in rows:
        cells = [shown.get(key(row, column), "") for column in columns]  # type: ignore[operator]
        if any(cells):
            lines.append("  " + row.ljust(26) + "  ".join(cell.ljust(w) for cell, w in zip(cells, width, strict=True)))
    return [line.rstrip() for line in lines]


def last_line(outcomes: list[Outcome], seconds: float) -> str:
    counts = Counter(problem.split(":")[0] for one in outcomes for problem in one.problems)
    failed = sum(bool(one.problems) for one in outcomes)
    return (
        f"{len(outcomes)} scenarios, {failed} failed ({dict(counts)}): "
        f"{counts['still there']} left something of ours, {counts[TOUCHED]} touched others', "
        f"{sum(any(p.startswith('billed') for p in one.problems) for one in outcomes)} billed above the ledger, "
        f"{sum(any(p.startswith('exit code') for p in one.problems) for one in outcomes)} with a wrong exit code, "
        f"{sum(any('receipt' in p for p in one.problems) for one in outcomes)} with an untrue receipt; {seconds:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
