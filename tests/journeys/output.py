"""What pytest printed, less what differs from run to run and less what this plugin adds: for comparing two runs."""

import re

TIMES = r"\d+\.\d+ ?s(econds)?\b|\d+:\d\d:\d\d ago|Typical runtimes: .*? in data generation"
NOISE = re.compile(
    TIMES + r"|0x[0-9a-f]{6,}|\(\d{6,}\)|(plain|remote)\.(html|jsonl)"
)  # addresses, threads, names of files


def calm(text: str) -> str:
    return NOISE.sub("<>", text)


def reading(text: str) -> list[str]:
    """What pytest printed from the first test on, less our own item and section, and less times."""
    text = re.sub(r"(?ms)^=+ runpod =+\n.*?(?=^=)", "", text[text.index("collected ") :])
    ours = re.compile(r"runpod:|SKIPPED \[1\] runpod:|-+ [Gg]enerated ")
    lines = [re.sub(r" *\[ *\d+%\]", "", line) for line in text.splitlines() if not ours.match(line)]
    return [calm(line) for line in lines if line][1:-1]  # the first line counts the items, the last one holds the time


def results(text: str) -> list[str]:
    """The lines of the short summary, less our own, in an order that does not depend on processes.

    Where the variable `CI` is set, pytest shows messages whole there: their further lines belong to none of the results.
    """
    summary = text[text.index("= short test summary info =") :].splitlines()[1:-1]
    return sorted(line for line in summary if re.match(r"[A-Z]+ \S", line) and "] runpod:" not in line)


def outcomes(text: str) -> dict[str, int]:
    """The counts of the last line, less our own item, which is skipped without a GPU."""
    counts = {kind: int(number) for number, kind in re.findall(r"(\d+) ([a-z]+)", text.strip().splitlines()[-1])}
    if "SKIPPED [1] runpod:" in text:
        counts["skipped"] -= 1
    return {kind: number for kind, number in counts.items() if number}
