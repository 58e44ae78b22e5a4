"""From report lines back to pytest's own reports, with paths as they are here; and the lines of the summary."""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter
from _pytest.pathlib import bestrelpath

from pytest_runpod.core.matching import Finished, Key
from pytest_runpod.core.money import format_usd

NOTE_TITLE: Final = "pytest-runpod"
LOST: Final = "pytest-runpod: no result came back for this test."


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are on the worker and here: every path in a report is read as a local one."""

    pairs: tuple[tuple[str, str], ...]
    root: str
    cwd: str
    local_cwd: Path

    @classmethod
    def of(cls, session_line: Mapping[str, Any], root: Path, cwd: Path) -> Places:
        """Pair the folders of a `session` line (docs/wire.md) with ours, the longest first."""
        pairs = {str(session_line["root"]): str(root)}
        here = sysconfig.get_path("purelib")
        ours = {*site.getsitepackages(), here}
        for folder in session_line.get("site", ()):
            if folder not in ours:
                pairs.setdefault(str(folder), here)
        pairs.setdefault(str(session_line["prefix"]), sys.prefix)
        pairs.setdefault(str(session_line["base_prefix"]), sys.base_prefix)
        ordered = sorted(((there, ours) for there, ours in pairs.items() if there != ours), key=lambda p: -len(p[0]))
        return cls(tuple(ordered), str(session_line["root"]), str(session_line["cwd"]), cwd)

    def local_text(self, text: str) -> str:
        """Replace the worker's folders in *text*."""
        return str(self._replaced(text))

    def localized(self, value: Any) -> Any:
        """Replace the worker's folders in every text of a serialised report; shorten traceback paths as pytest does here."""
        value = self._replaced(value)
        if isinstance(value, dict) and value.get("location"):
            value["location"][0] = self._relocated(str(value["location"][0]))
        longrepr = value.get("longrepr") if isinstance(value, dict) else None
        if isinstance(longrepr, dict):
            for location in _file_locations(longrepr):
                location["path"] = self._shortened(str(location["path"]))
        return value

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, str):
            for there, here in self.pairs:
                if there in value:
                    value = here.join(re.split(re.escape(there) + r"(?![\w.-])", value))
            return value
        if isinstance(value, dict):
            return {key: self._replaced(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self._replaced(part) for part in value]
        return value

    def _shortened(self, path: str) -> str:
        """Paths outside of the root: pytest shows the shorter of relative and absolute, and that depends on where one is."""
        if not path.startswith("..") and not PurePosixPath(path).is_absolute():
            return path
        absolute = path
        if path.startswith(".."):
            absolute = str(self._replaced(os.path.normpath(f"{self.cwd}/{path}")))
        relative = bestrelpath(self.local_cwd, Path(absolute))
        return relative if len(relative) < len(absolute) and not self._inside(absolute) else absolute

    def _relocated(self, path: str) -> str:
        """A place outside of the root (a test that a package defines) is told relative to the root."""
        if not path.startswith(".."):
            return path
        return bestrelpath(Path(self._local_root), Path(self._replaced(os.path.normpath(f"{self.root}/{path}"))))

    @property
    def _local_root(self) -> str:
        return next((ours for there, ours in self.pairs if there == self.root), self.root)

    def _inside(self, absolute: str) -> bool:
        return absolute.startswith(self._local_root + os.sep)


def _file_locations(longrepr: dict[str, Any]) -> list[dict[str, Any]]:
    tracebacks = [longrepr.get("reprtraceback"), *(link[0] for link in longrepr.get("chain") or [])]
    entries = [entry for traceback in tracebacks if traceback for entry in traceback["reprentries"]]
    found = [entry["data"].get("reprfileloc") for entry in entries]
    return [location for location in found if location]


def make_reports(
    config: pytest.Config, finished: Finished, item: pytest.Item | None, places: Places | None
) -> list[pytest.TestReport | pytest.CollectReport]:
    """Rebuild the reports of one item; a process that died adds the failure that says so."""
    reports = []
    for data in finished.reports:
        local = places.localized(data) if places else data
        report = config.hook.pytest_report_from_serializable(config=config, data=_with_tuples(local))
        if "_runpod.crash" in local:
            report.longrepr = _Text(local["longrepr"], local["_runpod.crash"])
        for name in ("_runpod.crash", "_runpod.cut", "_runpod.poisoned"):
            report.__dict__.pop(name, None)
        if "_runpod.poisoned" in local:
            add_note(report, poison_text(finished.key, local["_runpod.poisoned"]))
        subtest = data.get("_subtest.context")
        if subtest:  # pytest 9 makes texts of the values when it writes them and, wrongly, again when it reads them
            object.__setattr__(report.context, "kwargs", subtest["kwargs"])
        reports.append(report)
    if finished.death is not None:
        death = failure(finished.key, item, "call", death_text(finished.key, finished.death))
        if said := str(finished.death.get("said") or "").strip():
            death.sections = [("Last output of the process", places.local_text(said) if places else said)]
        reports.append(death)
    return reports


def make_collect_report(config: pytest.Config, data: dict[str, Any], places: Places | None) -> pytest.CollectReport:
    """Rebuild what a collector on the worker had to say."""
    local = places.localized(data) if places else data
    report = config.hook.pytest_report_from_serializable(config=config, data=_with_tuples({**local, "result": []}))
    assert isinstance(report, pytest.CollectReport)
    return report


def add_note(report: pytest.TestReport | pytest.CollectReport, text: str) -> None:
    """Say something of our own below a failure, as a section: its own text stays what it is."""
    report.sections = [*report.sections, (NOTE_TITLE, text)]


def poison_text(key: Key, poisoned: Mapping[str, Any]) -> str:
    if poisoned["by"] == key[0]:
        return (
            f"The CUDA context cannot be used after this test ({poisoned['message']}): "
            "the tests that follow it get a fresh process, if a restart is left."
        )
    return f"This may be a consequence: {poisoned['by']} had poisoned the CUDA context of this process."


class _Text(TerminalRepr):
    """A plugin's own kind of failure: its text, and the one line of it that the short summary shows, if it shows one."""

    def __init__(self, text: str, crash: Mapping[str, Any] | None) -> None:
        self.text = text
        if crash is not None:
            self.reprcrash = ReprFileLocation(**crash)

    def toterminal(self, tw: TerminalWriter) -> None:
        tw.line(self.text)


def _with_tuples(data: dict[str, Any]) -> dict[str, Any]:
    """JSON has made lists of pytest's tuples, and pytest and its plugins insist on some of them."""
    data = dict(data)
    for name in ("sections", "user_properties"):
        if name in data:
            data[name] = [tuple(pair) for pair in data[name] or ()]
    for name in ("location", "longrepr"):
        if isinstance(data.get(name), list):
            data[name] = tuple(data[name])
    return data


def failure(key: Key, item: pytest.Item | None, when: Any, text: str) -> pytest.TestReport:
    """A report of ours about an item that could not speak for itself: a failure (`call`) or an error (`setup`)."""
    nodeid = key[0]
    location = item.location if item is not None else (nodeid.split("::")[0], None, nodeid)
    keywords: dict[str, Any] = dict.fromkeys(item.keywords if item is not None else [nodeid], 1)
    return pytest.TestReport(nodeid, location, keywords, "failed", text, when, duration=0.0)


def death_text(key: Key, death: Mapping[str, Any]) -> str:
    """Say how the process ended that was running an item."""
    cause = str(death.get("cause") or "an unknown cause")
    happened = {
        "deadline": "The worker's deadline came while this test ran; it was ended.",
        "not run": "This test was not run: the process of an earlier test died, and no restart was left.",
    }.get(cause, f"The process that ran this test ended in the middle of it: {cause}.")
    return f"{happened}\n  test: {key[0]}"


def missing_text(key: Key, why: str) -> str:
    return f"{LOST}\n  test: {key[0]}\n  why:  {why}"


def publish(item: pytest.Item | None, key: Key, reports: Sequence[Any], config: pytest.Config) -> None:
    """Hand the reports of one item to every plugin, as pytest's own loop does."""
    hook = item.ihook if item is not None else config.hook
    location = item.location if item is not None else (key[0].split("::")[0], None, key[0])
    hook.pytest_runtest_logstart(nodeid=key[0], location=location)
    for report in reports:
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=key[0], location=location)


def publish_warning(line: Mapping[str, Any], config: pytest.Config, places: Places | None) -> None:
    """Replay a warning of the worker, in its class if that can be imported here."""
    data = places.localized(line["message"]) if places else line["message"]
    message = _warning_message(data)
    config.hook.pytest_warning_recorded.call_historic(
        kwargs={
            "warning_message": message,
            "when": line["when"],
            "nodeid": line["id"] or "",
            "location": tuple(line["location"]) if line.get("location") else None,
        }
    )


def _warning_message(data: Mapping[str, Any]) -> warnings.WarningMessage:
    category = _class_of(data.get("category_module"), data.get("category_class"), Warning) or UserWarning
    kind = _class_of(data.get("message_module"), data.get("message_class"), Warning)
    args = data.get("message_args")
    message: Any = str(data.get("message_str", ""))
    if kind is not None and args is not None:
        message = kind(*args)
    elif kind is not None:
        message = category(message)
    return warnings.WarningMessage(
        message=message,
        category=category,
        filename=str(data.get("filename", "")),
        lineno=int(data.get("lineno") or 0),
        line=data.get("line"),
    )


def _class_of(module: str | None, name: str | None, base: type) -> type[Any] | None:
    found = getattr(sys.modules.get(module or ""), name or "", None)
    return found if isinstance(found, type) and issubclass(found, base) else None


LABELS: Final = (
    "gpu", "driver", "torch", "image", "provider", "payload", "worker", "attached", "attempts", "extra", "coverage",
)  # fmt: skip


def summary_lines(facts: Mapping[str, Any]) -> list[str]:
    """The terminal section `runpod`: what ran where, what it cost, where the results are."""
    lines = []
    if facts.get("device") == "cpu":
        lines.append("device cpu: this was NO CUDA validation (emulator)")
    for label in (
        "gpu",
        "driver",
        "torch",
        "image",
        "provider",
        "payload",
        "worker",
        "attached",
        "attempts",
        "extra",
        "coverage",
    ):
        if facts.get(label):
            lines.append(f"{label + ':':<10}{facts[label]}")
    if facts.get("reserved") is not None:
        rate = f", at {format_usd(facts['rate'])} an hour" if facts.get("rate") else ""
        lines.append(f"{'cost:':<10}reserved {format_usd(facts['reserved'])}{rate}; settle it with the bill later")
    if facts.get("steps"):
        lines.append(f"{'steps:':<10}{', '.join(facts['steps'])}")
    for step in facts.get("failed_steps") or ():
        lines.append(f"{'step:':<10}{step}")
    for path, nodeid in (facts.get("not_sent") or {}).items():
        lines.append(f"{'not sent:':<10}{path}, which {nodeid} misses (runpod_include)")
    for name in facts.get("left_out") or ():
        lines.append(f"{'left out:':<10}{name}")
    if facts.get("worker_log"):
        lines.append(f"{'its log:':<10}{facts['worker_log']}")
    if facts.get("cleanup"):
        lines.append(f"{'cleanup:':<10}{facts['cleanup']}")
    if facts.get("output"):
        lines.append(f"{'results:':<10}{facts['output']}")
    return lines
