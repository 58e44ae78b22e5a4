"""How faithfully tests come back: public projects run plain, plain again, and on the embedded provider, compared test by test.

    python benchmarks/fidelity.py --checkouts FOLDER --python NAME=INTERPRETER ... [--only NAME ...] [--compare TOOL]

`fidelity.toml` lists the projects. FOLDER holds a checkout of each at its commit, named as its case (or its
`checkout`). NAME is a case, a checkout or an environment of that file, the most particular one counts. What is
compared: outcome of every phase and subtest, reasons of skips and xfails, whole failure texts, with paths, temporary
names, addresses, ids and times made equal. Tests on which plain pytest disagrees with itself are noise, and left out.
Figures are kept per case in a JSON file, so that one case can be measured again; docs/fidelity.md is rendered from
all of them.

TOOL is another comparison program to use instead of the one in this file. It is called as `python TOOL CHECKOUT
PYTHON --a=ARGS --b=ARGS --control --level text --env K=V --json FILE` and writes {"tests": N, "different": N,
"noise": [id], "exit": [plain, remote], "wall": [plain, remote], "differences": {id: [what, plain, remote]}}, noise
left out of the tests.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REMOTE = "--runpod --runpod-provider=emulator --runpod-device=cpu"
VERSIONS = ("pytest", "pytest-runpod", "nbmake", "torch", "numpy")
LIMIT_S = 1800  # for one run of a case
SHOWN = 5  # differences named per case in the document
RECORD = "--record-for-fidelity"  # this file again, in the interpreter of a case

Report = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One table of fidelity.toml."""

    name: str
    repo: str
    commit: str
    environment: str
    install: str
    args: str
    env: Mapping[str, str]
    checkout: str = ""
    remote_args: str = ""

    @property
    def folder(self) -> str:
        return self.checkout or self.name

    @property
    def remote(self) -> str:
        """The arguments of the remote run: the variables go to the worker by name, or it would have other ones."""
        return " ".join([self.args, REMOTE, f"--runpod-env={','.join(self.env)}", self.remote_args])

    def python(self, known: Mapping[str, Path]) -> Path:
        """Raises: SystemExit: none of *known* is for this case."""
        for name in (self.name, self.folder, self.environment):
            if name in known:
                return known[name]
        raise SystemExit(f"{self.name}: give its interpreter as --python {self.environment}=INTERPRETER")


def read_cases(path: Path) -> list[Case]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Case(**{**case, "env": {**table["env"], **case.get("env", {})}}) for case in table["case"]]


# --- in the interpreter of a case: run pytest and write down its reports


class Recorder:
    """A plugin object: nothing is added to the command line or the environment, so no worker sees it."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.config: Any = None

    def pytest_configure(self, config: Any) -> None:
        self.config = config

    def pytest_collectreport(self, report: Any) -> None:
        if not report.passed:
            self.reports.append({"id": f"collect:{report.nodeid}", "outcome": report.outcome, **told(report)})

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.nodeid.startswith("runpod::"):  # the plugin's own item
            return
        category = self.config.hook.pytest_report_teststatus(report=report, config=self.config)[0]
        subtest = getattr(report, "context", None)
        self.reports.append(
            {
                "id": report.nodeid,
                "outcome": f"{report.when} {report.outcome} {category}",
                "subtest": None if subtest is None else f"{subtest.msg} {sorted(subtest.kwargs.items())}",
                "xfail": getattr(report, "wasxfail", None),
                **told(report),
            }
        )


def told(report: Any) -> Report:
    """Where and why it was skipped, or the whole text of the failure."""
    if isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        return {"reason": f"{path}:{line}: {reason}", "text": ""}
    return {"reason": "", "text": report.longreprtext}


def record(target: str, arguments: list[str]) -> int:
    import pytest

    scripts = Path(sys.executable).parent
    sys.path[0] = str(scripts)  # as the command `pytest` has it
    sys.argv = [str(scripts / "pytest"), *arguments]
    recorder = Recorder()
    status = int(pytest.main(arguments, plugins=[recorder]))
    Path(target).write_text(json.dumps({"exit": status, "reports": recorder.reports}), encoding="utf-8")
    return status


# --- here: run a case three times and compare


def run(checkout: Path, python: Path, args: str, env: Mapping[str, str], folder: Path, name: str) -> dict[str, Any]:
    """Raises: SystemExit: pytest left no reports."""
    target = folder / f"{name}.json"
    command = [str(python), __file__, RECORD, str(target), *shlex.split(args)]
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    variables = {**os.environ, "COLUMNS": "80", "PYTHONDONTWRITEBYTECODE": "1", "PATH": path, **env}
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=checkout, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
    )
    wall_s = time.perf_counter() - began
    if not target.exists():
        raise SystemExit(
            f"{shlex.join(command)} in {checkout} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return {**json.loads(target.read_text(encoding="utf-8")), "wall": wall_s}


def normaliser(checkout: Path) -> Any:
    """Make a function that takes out of a text what differs between two runs of anything."""
    rules = [
        *((re.compile(re.escape(str(root)) + "/?"), "") for root in (checkout, checkout.resolve())),
        (re.compile(r"(/[^\s'\":]*?)?/pytest-of-[^/\s]+/pytest-\d+(/popen-gw\d+)?"), "<basetemp>"),
        (re.compile(re.escape(tempfile.gettempdir()) + r"/(tmp|pytest-)[\w.-]+"), "<tmp>"),
        (re.compile(r"0x[0-9a-fA-F]{6,}"), "<address>"),
        (
            re.compile(r"\b[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}(_\d+)*\b|\b[0-9a-f]{8}-[0-9a-f]{24}(_\d+)*\b"),
            "<id>",
        ),
        (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?Z?|datetime\.datetime\([\d, ]+"), "<date>"),
        (re.compile(r"\b\d+(\.\d+)?(e-\d+)? ?(s|ms|us|seconds)\b"), "<time>"),
    ]

    def normalise(text: str | None) -> str | None:
        for pattern, put in rules:
            text = text and pattern.sub(put, text)
        return text

    return normalise


def by_test(reports: Iterable[Report], normalise: Any) -> dict[str, list[Report]]:
    """Reports of each test, in their order, ready to be compared."""
    tests: dict[str, list[Report]] = {}
    for report in reports:
        tests.setdefault(report["id"], []).append(
            {key: normalise(value) for key, value in report.items() if key != "id"}
        )
    return tests


def compare(one: Mapping[str, list[Report]], other: Mapping[str, list[Report]]) -> dict[str, list[Any]]:
    """Find the tests that differ: what differs first (outcome, subtest, xfail, reason, text), and both values of it."""
    found: dict[str, list[Any]] = {}
    for test in {**one, **other}:
        if test not in one or test not in other:
            found[test] = ["only plain" if test in one else "only remote", None, None]
            continue
        for key in ("outcome", "subtest", "xfail", "reason", "text"):
            mine, theirs = ([report.get(key) for report in reports] for reports in (one[test], other[test]))
            if mine != theirs:
                found[test] = [key, mine, theirs]
                break
    return found


def measure(case: Case, checkout: Path, python: Path) -> dict[str, Any]:
    """Run plain, plain, remote, and compare; in the form that an outside comparison writes."""
    env, normalise = case.env, normaliser(checkout)
    with tempfile.TemporaryDirectory() as folder:
        plain, again, remote = (
            run(checkout, python, args, env, Path(folder), name)
            for name, args in (("plain", case.args), ("again", case.args), ("remote", case.remote))
        )
    tests, control, others = (by_test(each["reports"], normalise) for each in (plain, again, remote))
    noise = list(compare(tests, control))
    differences = {test: what for test, what in compare(tests, others).items() if test not in noise}
    counted = {test for test in {*tests, *others} if not test.startswith("collect:") or test in differences}
    return {
        "tests": len(counted - set(noise)),
        "different": len(differences),
        "noise": noise,
        "exit": [plain["exit"], remote["exit"]],
        "wall": [plain["wall"], remote["wall"]],
        "differences": differences,
    }


def measure_with(tool: Path, case: Case, checkout: Path, python: Path) -> dict[str, Any]:
    """Leave it to *tool*. Raises: SystemExit: it wrote no figures."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "figures.json"
        env = [word for name, value in case.env.items() for word in ("--env", f"{name}={value}")]
        sides = [f"--a={case.args}", f"--b={case.remote}"]
        command = [sys.executable, str(tool), str(checkout), str(python), *sides, "--control", "--level", "text"]
        subprocess.run([*command, *env, "--json", str(target)], check=False)
        if not target.exists():
            raise SystemExit(f"{tool} wrote no figures of {case.name}")
        figures: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
        return figures


def versions_of(python: Path) -> dict[str, str]:
    script = (
        "import importlib.metadata as m, json, platform\n"
        f"found = {{d.metadata['Name'].lower(): d.version for d in m.distributions()}}\n"
        f"print(json.dumps({{'Python': platform.python_version(), **{{n: found[n] for n in {VERSIONS} if n in found}}}}))"
    )
    done = subprocess.run([str(python), "-c", script], check=True, capture_output=True, text=True)
    versions: dict[str, str] = json.loads(done.stdout)
    return versions


def figures_of(case: Case, checkout: Path, python: Path, tool: Path | None) -> dict[str, Any]:
    figures = measure(case, checkout, python) if tool is None else measure_with(tool, case, checkout, python)
    machine = f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores"
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return {**figures, "commit": case.commit, "date": today, "versions": versions_of(python), "machine": machine}


# --- the document


INTRODUCTION = """\
# Whether the same comes back

`python benchmarks/fidelity.py` runs public projects three times in one checkout and environment: plain `pytest`, plain
`pytest` again, and on the embedded provider (`{remote}`,
and `--runpod-env` with the names of the variables that the plain run has). The reports that reach the local pytest are
compared test by test: outcome of every phase and subtest, reasons of skips and xfails, and whole failure texts, in which
checkout, temporary folders, addresses, ids and times are made equal. Tests on which the two plain runs disagree are noise
and left out. Failing tests are real failures of these environments, kept on purpose. `benchmarks/fidelity.toml` has the
commits, arguments, variables and environments.

{taken}

Everything ran on one machine, the worker too: what is shown is that reports survive packing, another checkout,
another process and the way back. It says nothing of a GPU. Wall times, in seconds, are of single runs on a busy
machine and only say what size things have; the remote one includes the emulator, the worker's start and its
environment.

| project | commit | tests | identical | different | plain | remote | passed in addition |
| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |
"""


def rendered(cases: Iterable[Case], figures: Mapping[str, Any]) -> str:
    known = [(case, figures[case.name]) for case in cases if case.name in figures]
    text = INTRODUCTION.format(remote=REMOTE, taken=how_taken([each for _, each in known]))
    text += "".join(row(case, each) for case, each in known)
    notes = "".join(line for case, each in known if (line := note(case, each)))
    return f"{text}\n{notes}" if notes else text


def how_taken(figures: list[Mapping[str, Any]]) -> str:
    dates = sorted({each["date"] for each in figures})
    seen: dict[str, set[str]] = {}
    for each in figures:
        for name, version in each["versions"].items():
            seen.setdefault(name, set()).add(version)
    versions = ", ".join(f"{name} {' and '.join(sorted(found))}" for name, found in seen.items())
    machines = " and ".join(sorted({each["machine"] for each in figures}))
    return f"Taken {' to '.join(dict.fromkeys((dates[0], dates[-1])))} with {versions}; {machines}, no GPU."


def row(case: Case, each: Mapping[str, Any]) -> str:
    plain, remote = each["wall"]
    cells = [
        f"{case.name} ({case.repo})",
        f"`{each['commit'][:12]}`",
        f"{each['tests']:,}",
        f"{each['tests'] - each['different']:,}",
        f"{each['different']:,}",
        f"{plain:.1f}",
        f"{remote:.1f}",
        f"`{case.remote_args}`" if case.remote_args else "",
    ]
    return f"| {' | '.join(cells)} |\n"


def note(case: Case, each: Mapping[str, Any]) -> str:
    """What keeps this case from N of N with nothing left out, in one line of Markdown; empty if nothing does."""
    parts = []
    if each["differences"]:
        named = [f"`{test}` ({what[0]})" for test, what in list(each["differences"].items())[:SHOWN]]
        more = len(each["differences"]) - SHOWN
        parts.append(f"different: {', '.join(named)}{f' and {more} more' if more > 0 else ''}")
    if each["noise"]:
        parts.append(f"noise, left out: {', '.join(f'`{test}`' for test in each['noise'])}")
    if each["exit"][0] != each["exit"][1]:
        parts.append(f"exit status {each['exit'][0]} plain, {each['exit'][1]} remote")
    return f"- **{case.name}**: {'; '.join(parts)}.\n" if parts else ""


def named_interpreter(words: str) -> tuple[str, Path]:
    name, _, interpreter = words.partition("=")
    return name, Path(interpreter).absolute()  # not resolved: a virtual environment's is a link


def main() -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--python", type=named_interpreter, nargs="+", required=True, metavar="NAME=INTERPRETER")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--compare", type=Path, metavar="TOOL")
    parser.add_argument("--figures", type=Path, default=here.parent / ".pytest_runpod" / "fidelity.json")
    parser.add_argument("--document", type=Path, default=here.parent / "docs" / "fidelity.md")
    options = parser.parse_args()
    cases = read_cases(here / "fidelity.toml")
    if unknown := set(options.only or ()) - {case.name for case in cases}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    figures = json.loads(options.figures.read_text(encoding="utf-8")) if options.figures.exists() else {}
    for case in cases:
        if options.only and case.name not in options.only:
            continue
        checkout = (options.checkouts / case.folder).absolute()
        each = figures_of(case, checkout, case.python(dict(options.python)), options.compare)
        figures[case.name] = each
        print(f"{case.name}: {each['tests'] - each['different']} of {each['tests']} identical", flush=True)
        options.figures.parent.mkdir(parents=True, exist_ok=True)
        options.figures.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        options.document.write_text(rendered(cases, figures), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == [RECORD]:
        sys.exit(record(sys.argv[2], sys.argv[3:]))
    main()
