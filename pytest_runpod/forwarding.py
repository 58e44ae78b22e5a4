"""Which words of this pytest's command line the worker's pytest gets. Understands them through pytest's own parser."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Selection by this machine's cache acts here: the worker gets the ids that are left. What selects by the tests themselves
# (-k, -m, --deselect) acts here and there: what only the worker collects is selected in the same way.
SELECTION: Final = frozenset({
    "lf", "failedfirst", "newfirst", "stepwise", "stepwise_skip", "stepwise_reset", "last_failed_no_failures", "cacheclear",
    "cacheshow", "collectonly",
})  # fmt: skip
NEEDS_COLLECTION_HERE: Final = frozenset({"lf", "failedfirst", "newfirst", "stepwise", "stepwise_skip", "collectonly"})
# Reports are written here, from the reports that came back.
REPORTING: Final = frozenset({
    "xmlpath", "junitprefix", "htmlpath", "self_contained_html", "css", "report_log", "pastebin", "reportchars",
    "disable_warnings", "durations", "durations_min", "show_fixtures", "show_fixtures_per_test", "showhelp", "version",
    "markers", "log_file", "debug", "trace_config", "xfail_tb", "no_header", "no_summary", "foldskipped", "showcapture",
    "json_report", "json_report_file", "alluredir", "color", "code_highlight", "force_short_summary",
    "cov_report", "cov_fail_under",
})  # fmt: skip
# Places of this machine. The worker's own are given to its pytest by the worker.
PLACES: Final = frozenset({"rootdir", "inifilename", "basetemp", "confcutdir", "debugging"})
# Talking to a person at this terminal.
INTERACTIVE: Final = frozenset({"usepdb", "trace"})


@dataclass(frozen=True, slots=True)
class Word:
    """One option with its values, or one positional argument (*dest* is then None)."""

    dest: str | None
    tokens: tuple[str, ...]


def split_words(arguments: Sequence[str], actions: Iterable[argparse.Action]) -> tuple[Word, ...]:
    """Group *arguments* into options with their values and positional ones, as argparse will read them.

    >>> parser = argparse.ArgumentParser()
    >>> actions = [parser.add_argument("-n", dest="numprocesses"), parser.add_argument("-x", action="store_true")]
    >>> [word.tokens for word in split_words(["-n", "2", "-x", "tests"], actions)]
    [('-n', '2'), ('-x',), ('tests',)]
    """
    known = {name: action for action in actions for name in action.option_strings}
    words: list[Word] = []
    rest = list(arguments)
    while rest:
        token = rest.pop(0)
        if token == "--":
            words += [Word(None, (positional,)) for positional in rest]
            break
        if not token.startswith("-") or token == "-":
            words.append(Word(None, (token,)))
        elif token in known:
            words.append(_with_values(token, known[token], rest))
        elif token.split("=", 1)[0] in known:
            words.append(Word(known[token.split("=", 1)[0]].dest, (token,)))
        else:
            words += _clustered(token, known, rest)
    return tuple(words)


def _with_values(token: str, action: argparse.Action, rest: list[str]) -> Word:
    values: list[str] = []
    if action.nargs is None or action.nargs == 1:
        values = [rest.pop(0)] if rest else []
    elif isinstance(action.nargs, int):
        values = [rest.pop(0) for _ in range(min(action.nargs, len(rest)))]
    elif action.nargs in ("?", "*", "+"):
        most = 1 if action.nargs == "?" else len(rest)
        while rest and len(values) < most and not rest[0].startswith("-"):
            values.append(rest.pop(0))
    return Word(action.dest, (token, *values))


def _clustered(token: str, known: dict[str, argparse.Action], rest: list[str]) -> list[Word]:
    """Read `-xvs`, `-n4` and `-kname`: single letters, the last of which may carry its value."""
    words: list[Word] = []
    letters = token[1:]
    while letters:
        action = known.get(f"-{letters[0]}")
        if action is None:
            return [*words, Word("unknown", (token,))]
        if action.nargs == 0:
            words.append(Word(action.dest, (f"-{letters[0]}",)))
            letters = letters[1:]
        elif letters[1:]:
            return [*words, Word(action.dest, (f"-{letters[0]}", letters[1:]))]
        else:
            return [*words, _with_values(f"-{letters[0]}", action, rest)]
    return words


def for_worker(words: Iterable[Word], root: Path, cwd: Path) -> tuple[str, ...]:
    """Keep the options that the worker's pytest shall have; absolute paths below *root* become relative to *cwd*.

    Ours, selection, reporting and places stay here; everything else travels, also what only another plugin knows.
    """
    kept: list[str] = []
    for word in words:
        if word.dest is None or word.dest in SELECTION | REPORTING | PLACES or _is_ours(word):
            continue
        if word.dest in ("override_ini", "plugins") and _is_ours_inside(word):
            continue
        kept += word.tokens
    return tuple(_portable(token, root, cwd) for token in kept)


def positional(words: Iterable[Word], root: Path, cwd: Path) -> tuple[str, ...]:
    """The positional arguments; absolute paths below *root* become relative to *cwd*."""
    return tuple(_portable(word.tokens[0], root, cwd) for word in words if word.dest is None)


def interactive(words: Iterable[Word]) -> tuple[str, ...]:
    return tuple(word.tokens[0] for word in words if word.dest in INTERACTIVE)


def needing_collection_here(words: Iterable[Word]) -> tuple[str, ...]:
    return tuple(word.tokens[0] for word in words if word.dest in NEEDS_COLLECTION_HERE)


def _portable(token: str, root: Path, cwd: Path) -> str:
    up = Path(os.path.relpath(root, cwd)).as_posix()
    return up if token == str(root) else token.replace(f"{root}{os.sep}", f"{up}/")


def _is_ours(word: Word) -> bool:
    return word.dest is not None and (word.dest.startswith("runpod") or word.dest == "approved_sha")


def _is_ours_inside(word: Word) -> bool:
    value = word.tokens[-1].removeprefix("--override-ini=").removeprefix("-o").removeprefix("-p").strip()
    return value.startswith(("runpod_", "pytest_runpod", "addopts=")) or value in ("runpod", "terminal", "no:terminal")
