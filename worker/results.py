"""JUnit XML from report lines, and the archive that goes back: what counts fits, or the job says that it does not."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
import socket
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import unpack
from inside.cutting import shortened

OUTCOMES = ("reports.jsonl", "junit.xml")  # without these there is no result
NOT_XML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SHORTER_TEXTS = (100_000, 10_000, 1_000, 200)  # characters; tried in turn while the outcomes do not fit
LEFT_OUT_NAMED = 500  # names in the output; of more, only their number
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
        if line["kind"] == "start":
            case.finished = False  # of a rerun, too
        elif line["kind"] == "report":
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
        named, rest = self.left_out[:LEFT_OUT_NAMED], self.left_out[LEFT_OUT_NAMED:]
        if rest:
            named = [*named, {"path": f"and {len(rest)} more", "size": sum(entry["size"] for entry in rest)}]
        return {
            "archive": base64.b64encode(blob).decode("ascii"),
            "archive_sha256": hashlib.sha256(blob).hexdigest(),
            "archive_size": len(blob),
            "left_out": named,
        }


def pack_outcomes(
    folder: Path, lines: list[dict[str, Any]], limit: int, bounds: unpack.Bounds
) -> tuple[Packed, list[Case]]:
    """Write outcomes and pack *folder*. Outcomes always fit: before one is lost, texts of reports become shorter and shorter."""
    for longest in (None, *SHORTER_TEXTS):
        shown = lines if longest is None else [_shorter(line, longest) for line in lines]
        cases = cases_of(shown)
        (folder / "reports.jsonl").write_bytes(b"".join(json.dumps(line).encode("ascii") + b"\n" for line in shown))
        (folder / "junit.xml").write_bytes(junit_xml(cases, socket.gethostname()))
        packed = pack(folder, limit, bounds)
        if packed.blob is not None:
            break
    return packed, cases


def _shorter(line: dict[str, Any], longest: int) -> dict[str, Any]:
    if line["kind"] not in ("report", "collectreport", "warning"):
        return line
    name = "message" if line["kind"] == "warning" else "report"
    shorter, cut = shortened(line[name], longest)
    if cut:
        shorter["_runpod.cut"] = shorter.get("_runpod.cut", 0) + cut
    return {**line, name: shorter}


def shorten_log(path: Path, longest: int) -> None:
    """Cut the middle out of a log that is longer than *longest* bytes; both ends are what one looks for."""
    size = path.stat().st_size
    if size <= longest:
        return
    half = longest // 2
    with path.open("rb") as file:
        head = file.read(half)
        file.seek(size - half)
        tail = file.read()
    note = f"\n[... pytest-runpod cut {size - 2 * half:,} bytes here ...]\n".encode("ascii")
    path.write_bytes(head + note + tail)


def pack(folder: Path, limit: int, bounds: unpack.Bounds) -> Packed:
    """Pack what lies in *folder*; above *limit* bytes leave out artifacts, then notebooks, then logs, the largest first.

    What the reader's *bounds* would refuse is left out too: tests may write anything as an artifact, and one odd name
    must not cost the outcomes.
    """
    found = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_symlink() or path.is_file()
    }
    files, left_out = _acceptable(found, bounds)
    while True:
        blob = archive(files)
        if len(blob) <= limit:
            return Packed(blob, left_out)
        excess = len(blob) - limit
        dropped = [name for name in sorted(files, key=lambda name: _by_worth(name, files)) if _worth(name) < 4]
        if not dropped:
            return Packed(None, left_out)
        for name in dropped:
            excess -= len(zlib.compress(files[name].read_bytes(), 1))
            left_out.append(_left(name, files.pop(name)))
            if excess <= 0:
                break


def _acceptable(found: dict[str, Path], bounds: unpack.Bounds) -> tuple[dict[str, Path], list[dict[str, Any]]]:
    """Split what was found into what the reader takes, most worth first, and what it would refuse the archive for."""
    files: dict[str, Path] = {}
    refused: list[dict[str, Any]] = []
    taken: set[str] = set()
    folders: set[str] = set()
    total = 0
    for name in sorted(found, key=lambda name: (-_worth(name), name)):
        path = found[name]
        size = path.lstat().st_size
        fits = len(files) < bounds.members and size <= bounds.member and total + size <= bounds.total
        folded = unpack._folded(name)  # the reader's own rule: one file, in the eyes of some file system
        parents = {folded[:at] for at in range(len(folded)) if folded[at] == "/"}
        twin = folded in taken or folded in folders or bool(parents & taken)
        if path.is_symlink() or not fits or twin or not _portable(name, bounds):
            refused.append(_left(name, path))
            continue
        taken.add(folded)
        folders |= parents
        files[name] = path
        total += size
    return files, refused


def _portable(name: str, bounds: unpack.Bounds) -> bool:
    try:
        unpack._checked_path(tarfile.TarInfo(name), bounds)
    except unpack.ArchiveRefused:
        return False
    return True


def _by_worth(name: str, files: dict[str, Path]) -> tuple[int, int, str]:
    return _worth(name), -files[name].stat().st_size, name


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
    return {"path": name, "size": path.lstat().st_size}


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
    facts += [("runpod.host", json.dumps(case.lines[0]["host"]))] if case.lines else []
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
        message, text = _long_text(report.get("longrepr"))
        if report.get("outcome") == "failed":
            tag = "failure" if report.get("when") == "call" else "error"
            ET.SubElement(element, tag, message=_text(message.split("\n", 1)[0][:200])).text = _text(text)
        elif report.get("outcome") == "skipped":
            ET.SubElement(element, "skipped", message=_text(message[:200]))
    sections = case.lines[-1]["report"].get("sections") or [] if case.lines else []
    for stream in ("out", "err"):
        captured = "\n".join(str(content) for title, content in sections if f"std{stream}" in title)
        if captured:
            ET.SubElement(element, f"system-{stream}").text = _text(captured)


def _long_text(longrepr: Any) -> tuple[str, str]:
    """Message and whole text of a failure."""
    if isinstance(longrepr, dict):
        crash = longrepr.get("reprcrash") or {}
        links = [link[0] for link in longrepr.get("chain") or []] or [longrepr.get("reprtraceback") or {}]
        entries = [entry.get("data") or {} for link in links for entry in (link or {}).get("reprentries") or []]
        text = "\n\n".join(
            "\n".join([*map(str, entry.get("lines") or []), _place(entry)]).rstrip() for entry in entries
        )
        return str(crash.get("message") or ""), text
    text = str(longrepr[-1]) if isinstance(longrepr, list) else str(longrepr or "")
    return text, text


def _place(entry: dict[str, Any]) -> str:
    place = entry.get("reprfileloc") or {}
    return f"{place.get('path')}:{place.get('lineno')}: {place.get('message')}" if place else ""


def _names(nodeid: str) -> tuple[str, str]:
    path, _, rest = nodeid.partition("::")
    return path.removesuffix(".py").replace("/", "."), rest or path


def _text(value: str) -> str:
    return NOT_XML.sub("\ufffd", value)
