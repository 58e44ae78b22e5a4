"""Read JUnit XML back into what pytest said. Ours is lossless; anybody's maps, with less detail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from junitparser.xunit2 import JUnitXml, TestSuite

from pytest_runpod.errors import ResultsUntrusted


def report_lines(xml: bytes) -> tuple[dict[str, Any], ...]:
    """Return the report lines that the worker put into the test cases of *xml*, in order: start, reports, finish.

    Raises: ResultsUntrusted: no XML, or a test case whose properties are not ours.
    """
    lines: list[dict[str, Any]] = []
    for case in _cases(xml):
        lines += _lines_of(case)
    return tuple(lines)


def _cases(xml: bytes) -> Iterator[Any]:
    if b"<!DOCTYPE" in xml[:2000]:
        raise _untrusted("junit.xml declares a document type")
    try:
        parsed = JUnitXml.fromstring(xml)
    except Exception as damage:  # the parser has errors of its own, which depend on whether lxml is installed
        raise _untrusted(f"junit.xml cannot be parsed: {damage}") from damage
    suites = [parsed] if isinstance(parsed, TestSuite) else list(parsed)
    for suite in suites:
        yield from suite


def _lines_of(case: Any) -> list[dict[str, Any]]:
    properties = [(item.name, item.value) for item in case.properties() or []]
    named = dict(properties)
    try:
        nodeid, number = json.loads(named["runpod.nodeid"]), int(named["runpod.n"])
        reports = [json.loads(value) for name, value in properties if name == "runpod.report"]
    except (KeyError, TypeError, ValueError) as slip:
        raise _untrusted(f"the test case {case.name!r} does not say which item it is: {slip!r}") from slip
    finished = named.get("runpod.finished", "true") == "true"
    tries = sorted({int(report.get("try", 1)) for report in reports} or {1})
    lines: list[dict[str, Any]] = []
    for attempt in tries:
        edge = {"id": nodeid, "n": number, "try": attempt}
        lines += [{"kind": "start", **edge}, *(report for report in reports if report.get("try", 1) == attempt)]
        if finished or attempt != tries[-1]:
            lines.append({"kind": "finish", **edge})
    return lines


def _untrusted(why: str) -> ResultsUntrusted:
    return ResultsUntrusted(
        "The results of the worker cannot be trusted, so no test is reported from them. The job was billed.",
        looked_at=why,
        todo="look at the results folder, then run again",
    )
