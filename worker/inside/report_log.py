"""What happens, appended to the report lines, flushed, one JSON object each."""

from __future__ import annotations

import json
import math
import os
import re
import site
import socket
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from .cutting import shortened
from .origins import Origins
from .selection import client_id

XDIST_CRASH = "???"  # the phase that xdist gives to its report of a worker process that died
MOST_NESTED = 60


class ReportLog:
    """Appends report lines; in a session with xdist only the controller does."""

    def __init__(self, config: pytest.Config, control: dict[str, Any], path: str, origins: Origins) -> None:
        self.config, self.path, self.origins = config, path, origins
        self.everything = control["keys"] is None
        self.keys = {(nodeid, number) for nodeid, number in control["keys"] or ()}
        self.started: Counter[str] = Counter()
        for nodeid, number in control["before"]:
            self.started[nodeid] = max(self.started[nodeid], number)
        # How many items have that id, those included that earlier processes have run.
        self.counts: Counter[str] = Counter()
        self.tries: Counter[tuple[str, int]] = Counter()
        self.errors: list[dict[str, Any]] = []
        self.longest = int(control["max_text"])
        self.pid, self.host = os.getpid(), socket.gethostname()
        self.file = Path(control["lines"]).open("a", encoding="ascii", buffering=1)  # noqa: SIM115 - open as long as pytest runs
        self.write(
            "session",
            pid=self.pid,
            host=self.host,
            root=control["root"],
            cwd=str(Path.cwd()),
            prefix=sys.prefix,
            base_prefix=sys.base_prefix,
            site=control["site"] + site.getsitepackages(),
            python=sys.version.split()[0],
            versions={"pytest": pytest.__version__},
        )

    def write(self, kind: str, **content: Any) -> None:
        if os.getpid() == self.pid:  # a test that forks must not write for its parent
            self.file.write(line_of({"kind": kind, **content}) + "\n")
            self.file.flush()

    # --- collection

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not any(report.nodeid == error["nodeid"] for error in self.errors):
            self.errors.append({"nodeid": report.nodeid, "longrepr": str(report.longrepr)})
        if self.everything and report.outcome != "passed":
            data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
            self.write("collectreport", report={**data, "result": None})

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not hasattr(session.config.option, "dist") or session.config.option.dist == "no":
            self.collected([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self.collected(list(ids))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["runpod_control"] = self.path

    def collected(self, nodeids: list[str]) -> None:
        if self.everything and getattr(self.config.option, "dist", "no") == "loadgroup":
            nodeids = [re.sub(r"@[^@\[\]]*$", "", nodeid) for nodeid in nodeids]
        ids = [client_id(nodeid, self.keys) for nodeid in nodeids]
        found: Counter[str] = Counter(ids)
        self.counts = found + self.started
        missing = [nodeid for nodeid, number in sorted(self.keys) if number > found[nodeid] + self.started[nodeid]]
        wanted = {nodeid for nodeid, _ in self.keys}
        extra = [] if self.everything else [nodeid for nodeid in ids if nodeid not in wanted]
        if self.everything:
            self.keys = {(nodeid, number) for nodeid in found for number in range(1, found[nodeid] + 1)}
        self.write("collected", ids=ids, missing=missing, extra=extra, errors=self.errors)

    # --- tests

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Once all items of an id have started, what starts again is another try of the last one: a rerun."""
        key = client_id(nodeid, self.keys)
        if self.started[key] < max(1, self.counts[key]):
            self.started[key] += 1
        self.tries[key, self.started[key]] += 1
        self.write("start", **self.which(key))

    def which(self, key: str) -> dict[str, Any]:
        """The item that runs: its id, its occurrence, and the try."""
        number = self.started[key] or 1
        return {"id": key, "n": number, "try": self.tries[key, number] or 1}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        key = client_id(report.nodeid, self.keys)
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        if data is None:  # a plugin's own kind of report, which nobody serialises
            return
        data["nodeid"] = key
        # xdist's handle of a process: reporters take a report that has one for a live xdist session.
        data.pop("node", None)
        # Of a plugin's own kind of failure pytest keeps only the text.
        if isinstance(data.get("longrepr"), str) and not isinstance(report.longrepr, str):
            data["_runpod.crash"] = crash_of(report.longrepr)
        data, cut = shortened(data, self.longest)
        if cut:
            data["_runpod.cut"] = cut
        self.write("report", **self.which(key), report=data, pid=self.pid, host=self.host)
        if str(report.when) == XDIST_CRASH:  # xdist blames a test that ended its process, and says no more about it
            self.pytest_runtest_logfinish(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.write("finish", **self.which(client_id(nodeid, self.keys)))

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        self.write("warning", when=when, id=nodeid, location=location, message=serialized_warning(warning_message))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Outside of everybody else's: when `end` is written, summaries and reports of plugins are done too."""
        try:
            return (yield)
        finally:
            if self.origins.elsewhere:
                self.write("elsewhere", modules=self.origins.elsewhere)
            self.write("end", exitstatus=int(session.exitstatus))


def crash_of(longrepr: Any) -> dict[str, Any] | None:
    """The place and the message that the short summary shows; None if it shows none."""
    crash = getattr(longrepr, "reprcrash", None)
    return None if crash is None else {"path": crash.path, "lineno": crash.lineno, "message": crash.message}


def line_of(content: dict[str, Any]) -> str:
    """One line of ASCII JSON. What JSON cannot hold (a test may record anything as a property) is told by its `repr`."""
    try:
        return json.dumps(content, default=repr, allow_nan=False)
    except Exception:  # noqa: BLE001 - keys, cycles, NaN, or whatever the `repr` of a user's object raises
        return json.dumps(plain(content))


def plain(value: Any, depth: int = 0) -> Any:
    """*value* of JSON's own types only."""
    if isinstance(value, dict) and depth < MOST_NESTED:
        return {key if isinstance(key, str) else repr(key): plain(part, depth + 1) for key, part in value.items()}
    if isinstance(value, (list, tuple)) and depth < MOST_NESTED:
        return [plain(part, depth + 1) for part in value]
    if value is None or type(value) in (str, bool, int) or (type(value) is float and math.isfinite(value)):
        return value
    try:
        return repr(value)
    except Exception as broken:  # noqa: BLE001 - it is the user's object, and one of its tests may be about this
        return f"<{type(value).__name__} whose repr raises {type(broken).__name__}>"


def serialized_warning(warning: Any) -> dict[str, Any]:
    """A warning as plain values: classes by name, arguments only if JSON keeps them as they are."""
    message = warning.message
    known = isinstance(message, Warning)
    arguments = list(message.args) if known else None
    try:
        kept = json.loads(json.dumps(arguments)) == arguments
    except (TypeError, ValueError):
        kept = False
    return {
        "message_str": str(message),
        "message_module": type(message).__module__ if known else None,
        "message_class": type(message).__name__ if known else None,
        "message_args": arguments if kept else None,
        "category_module": warning.category.__module__ if warning.category else None,
        "category_class": warning.category.__name__ if warning.category else None,
        "filename": warning.filename,
        "lineno": warning.lineno,
        "line": warning.line,
    }
