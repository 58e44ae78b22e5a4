"""Texts that are too long lose their middle, and say how much."""

from __future__ import annotations

import re
from typing import Any

NOTE = re.compile(r"\[\.\.\. pytest-runpod cut ([\d,]+) characters here \.\.\.\]")


def shortened(value: Any, longest: int) -> tuple[Any, int]:
    """Cut what is longer than *longest* characters out of the middle of each text. Returns how much went.

    *value* is a report as pytest serialises it: the `lines` of a traceback are one text.
    """
    if isinstance(value, str):
        return cut_text(value, longest)
    if isinstance(value, dict):
        parts = {
            key: cut_lines(part, longest) if key == "lines" and isinstance(part, list) else shortened(part, longest)
            for key, part in value.items()
        }
        return {key: part for key, (part, _) in parts.items()}, sum(cut for _, cut in parts.values())
    if isinstance(value, (list, tuple)):
        pairs = [shortened(part, longest) for part in value]
        return [part for part, _ in pairs], sum(cut for _, cut in pairs)
    return value, 0


def cut_text(text: str, longest: int) -> tuple[str, int]:
    gone = len(text) - longest
    if gone <= 0:
        return text, 0
    head = longest // 2
    return f"{text[:head]}\n{note_of(text[head : head + gone])}\n{text[head + gone :]}", gone


def cut_lines(lines: list[str], longest: int) -> tuple[list[str], int]:
    """Keep lines from both ends, as many as fit, and both ends of a line that alone is too long."""
    cut = 0
    if any(len(line) > longest for line in lines):
        pairs = [cut_text(line, longest // 2) for line in lines]
        lines, cut = [line for line, _ in pairs], sum(one for _, one in pairs)
    head, tail, room = 0, len(lines), longest
    while head < tail:
        from_the_head = head <= len(lines) - tail
        room -= len(lines[head] if from_the_head else lines[tail - 1])
        if room < 0:
            break
        head, tail = (head + 1, tail) if from_the_head else (head, tail - 1)
    gone = lines[head:tail]
    if not gone:
        return lines, cut
    return [*lines[:head], note_of("".join(gone)), *lines[tail:]], cut + sum(map(len, gone))


def note_of(gone: str) -> str:
    """What stands in the place of *gone*; what had been cut out of it before counts too."""
    before = sum(int(count.replace(",", "")) for count in NOTE.findall(gone))
    return f"[... pytest-runpod cut {len(gone) + before:,} characters here ...]"
