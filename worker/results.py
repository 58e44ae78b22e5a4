"""JUnit XML from report lines, and the archive that goes back: what counts fits, or the job says that it does not."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

OUTCOMES = ("reports.jsonl", "junit.xml")  # without these there is no result
NOT_XML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
Key = tuple[str, int]


@dataclass
class Case:
    """One item: its report lines in order, and how it ended."""

    key: Key
    lines: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = False
    died: dict[str, Any] | None = None


def cases_of(lines: Iterable[dict[str, Any]]) -> list[Case]:
    """Group report lines by item, in the order in which the items started."""
    cases: dict[Key, Case] = {}
    for line in lines:
        if line.get("id") is None or line["kind"] not in ("start", "report", "finish", "died"):
            continue
        case = cases.setdefault((line["id"], line["n"]), Case((line["id"], line["n"])))
        if line["kind"] == "report":
            case.lines.append(line)
        elif line["kind"] == "finish":
            case.finished = True
        elif line["kind"] == "died":
            case.died = line
    return list(cases.values())


def junit_xml(cases: Iterable[Case], host: str) -> bytes:
    """Write one `testcase` per item; its properties hold everything, its children what other readers understand."""
    suite = ET.Element("testsuite", name="pytest-runpod", hostname=_text(host))
    counts: Counter[str] = Counter()
    for case in cases:
        counts[outcome_of(case)] += 1
        suite.append(_testcase(case))
    suite.set("tests", str(sum(counts.values())))
    suite.set("failures", str(counts["failed"]))
    suite.set("errors", str(counts["error"]))
    suite.set("skipped", str(counts["skipped"] + counts["xfailed"]))
    root = ET.Element("testsuites")
    root.append(suite)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))


def outcome_of(case: Case) -> str:
    """One word, as pytest counts: a broken teardown is an error whatever came before."""
    word = "failed" if case.died else "error"
    for line in case.lines:
        report = line["report"]
        if report.get("$report_type") != "TestReport":
            continue
        if report["outcome"] == "failed":
            word = "failed" if report["when"] == "call" else "error"
        elif report["outcome"] == "skipped":
            word = "xfailed" if "wasxfail" in report else "skipped"
        elif report["when"] == "call":
            word = "xpassed" if "wasxfail" in report else "passed"
    return word


def summary_of(cases: Iterable[Case], total: int) -> dict[str, int]:
    return {"total": total, **Counter(outcome_of(case) for case in cases)}


@dataclass
class Packed:
    """The archive that fits, and what had to stay. *blob* is None if not even the outcomes fit."""

    blob: bytes | None
    left_out: list[dict[str, Any]]

    def fields(self) -> dict[str, Any]:
        blob = self.blob or b""
        return {
            "archive": base64.b64encode(blob).decode("ascii"),
            "archive_sha256": hashlib.sha256(blob).hexdigest(),
            "archive_size": len(blob),
            "left_out": self.left_out,
        }


def pack(folder: Path, limit: int, member_limit: int) -> Packed:
    """Pack what lies in *folder*; above *limit* bytes leave out artifacts, then notebooks, then logs, the largest first."""
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
    left_out = [_left(name, files.pop(name)) for name in sorted(files) if files[name].stat().st_size > member_limit]
    while True:
        blob = archive(files)
        if len(blob) <= limit:
            return Packed(blob, left_out)
        expendable = sorted(files, key=lambda name: (_worth(name), -files[name].stat().st_size))
        excess = len(blob) - limit
        dropped = [name for name in expendable if _worth(name) < 4]
        if not dropped:
            return Packed(None, left_out)
        for name in dropped:
            size = files[name].stat().st_size
            left_out.append(_left(name, files.pop(name)))
            excess -= size
            if excess <= 0:
                break


def archive(files: dict[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in sorted(files.items()):
            data = path.read_bytes()
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), mtime=0)


def _worth(name: str) -> int:
    """What is left out first: 0 artifacts, 1 notebooks, 2 logs, 3 facts; 4 are the outcomes themselves."""
    if name in OUTCOMES:
        return 4
    return {"artifacts": 0, "notebooks": 1, "logs": 2}.get(name.split("/")[0], 3)


def _left(name: str, path: Path) -> dict[str, Any]:
    return {"path": name, "size": path.stat().st_size}


def _testcase(case: Case) -> ET.Element:
    nodeid, number = case.key
    classname, name = _names(nodeid)
    seconds = sum(float(line["report"].get("duration") or 0) for line in case.lines)
    element = ET.Element("testcase", classname=_text(classname), name=_text(name), time=f"{seconds:.6f}")
    properties = ET.SubElement(element, "properties")
    facts = [
        ("runpod.nodeid", json.dumps(nodeid)),
        ("runpod.n", str(number)),
        ("runpod.finished", str(case.finished).lower()),
    ]
    facts += [("runpod.report", json.dumps(line, separators=(",", ":"))) for line in case.lines]
    facts += [("runpod.died", json.dumps(case.died))] if case.died else []
    for key, value in facts:
        ET.SubElement(properties, "property", name=key, value=value)
    _add_results(element, case)
    return element


def _add_results(element: ET.Element, case: Case) -> None:
    """Children for other readers. Details that XML cannot hold are replaced; the properties have them all."""
    if case.died is not None:
        ET.SubElement(element, "error", message=_text(str(case.died.get("cause"))))
    for line in case.lines:
        report = line["report"]
        text = _long_text(report.get("longrepr"))
        if report["outcome"] == "failed":
            tag = "failure" if report.get("when") == "call" else "error"
            ET.SubElement(element, tag, message=_text(text.split("\n", 1)[0][:200])).text = _text(text)
        elif report["outcome"] == "skipped":
            ET.SubElement(element, "skipped", message=_text(text[:200]))
    sections = case.lines[-1]["report"].get("sections") or [] if case.lines else []
    for stream in ("out", "err"):
        captured = "\n".join(str(content) for title, content in sections if f"std{stream}" in title)
        if captured:
            ET.SubElement(element, f"system-{stream}").text = _text(captured)


def _long_text(longrepr: Any) -> str:
    if isinstance(longrepr, dict):
        crash = longrepr.get("reprcrash") or {}
        return str(crash.get("message") or "")
    if isinstance(longrepr, list):
        return str(longrepr[-1])
    return str(longrepr or "")


def _names(nodeid: str) -> tuple[str, str]:
    path, _, rest = nodeid.partition("::")
    return path.removesuffix(".py").replace("/", "."), rest or path


def _text(value: str) -> str:
    return NOT_XML.sub("\ufffd", value)
