"""From a running job to published reports: progress while it runs, the checked archive at the end, nothing lost between."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_runpod import coverage_data
from pytest_runpod.collected import Collected
from pytest_runpod.core.choice import Decision
from pytest_runpod.core.diagnosis import why_without_result
from pytest_runpod.core.junit import report_lines
from pytest_runpod.core.matching import Finished, Key, Matcher
from pytest_runpod.core.missing import files_missed
from pytest_runpod.core.wire import Result, is_result, parse_lines, read_progress, read_result
from pytest_runpod.errors import (
    ExitCode,
    ReceiptUnwritable,
    ResultsUntrusted,
    ResultsUnwritable,
    RunpodError,
    WorkerFailed,
)
from pytest_runpod.options import RunSettings
from pytest_runpod.provider.api import Job
from pytest_runpod.report import (
    Places,
    add_note,
    failure,
    make_collect_report,
    make_reports,
    missing_text,
    publish,
    publish_warning,
)
from pytest_runpod.store import results as result_store

SHOWN: Final = 10
Lines = Sequence[dict[str, Any]]


@dataclass(slots=True)
class Results:
    """What came back, and where it lies. *result* is None until the job has ended."""

    folder: Path
    result: Result | None = None
    attempts: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Submitted:
    """What was sent: the digest of the payload, the nonce of the submission, and the files that stayed here."""

    payload_sha256: str
    nonce: str
    stayed: tuple[Decision, ...]


class Stream:
    """Reads one job to its end. Whatever is published is published once, and in the words of this machine."""

    def __init__(
        self,
        settings: RunSettings,
        collected: Collected,
        results: Results,
        facts: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self.settings, self.collected, self.results, self.facts, self.say = settings, collected, results, facts, say
        self.session = collected.session
        self.config = collected.session.config
        self.matcher = Matcher.of(collected.ids)
        self.places: Places | None = None
        self.last_state: Job | None = None
        self.stayed: dict[str, Decision] = {}
        self.unwritten: RunpodError | None = None  # why something of what came back is not on this disk
        self.warned_here: set[tuple[str | None, str]] = set()  # class and text of what was warned of before the run

    def follow(self, states: Iterable[Job], sent: Submitted, save: Callable[[Job], None]) -> Iterator[None]:
        """Publish items as they come back; yields after each of them, so that the loop can stop.

        Args:
            states: of one job, the final one last. save: takes the final one, before anything is made of it.
        Raises: RunpodError: the job, its worker or its results cannot be relied on.
        """
        self.stayed = {decision.path: decision for decision in sent.stayed}
        for state in states:
            self.last_state = state
            if not state.final and is_result(state.output, sent.nonce):
                break  # an update that was late has turned the job back: it has ended all the same
            progress = None if state.final else read_progress(state.output, sent.nonce)
            if progress is None:
                continue
            self.results.attempts.add(progress.attempt)
            self._learn(progress.lines)
            if self.places is not None and self.collected.told:
                yield from self._publish(self.matcher.window(progress.attempt, progress.first, progress.lines))
        assert self.last_state is not None
        yield from self._take_result(self.last_state, sent, save)

    def stopped(self) -> bool:
        return bool(self.session.shouldfail or self.session.shouldstop)

    # --- the final result

    def _take_result(self, state: Job, sent: Submitted, save: Callable[[Job], None]) -> Iterator[None]:
        response = json.dumps(state.output, indent=1).encode()
        self._kept(lambda: result_store.save(self.results.folder, "response.json", response))
        self._kept(lambda: save(state))
        result = _verified(state, sent)
        self.results.result = result
        self.results.attempts.add(result.attempt)
        self._kept(lambda: result_store.save_members(self.results.folder, result.members))
        self._remember(result, state)
        lines = parse_lines(result.member("reports.jsonl") or b"")
        self._learn(lines)
        self._publish_collection(lines)
        xml = result.member("junit.xml")
        reports = report_lines(xml) if xml else ()
        deaths = [line for line in lines if line["kind"] == "died"]
        yield from self._publish(self.matcher.final(result.attempt, [*reports, *deaths]))
        for line in lines:
            if line["kind"] == "warning" and not self._was_warned_here(line):
                publish_warning(line, self.config, self.places)
        self._hand_coverage_over()
        self.config.hook.pytest_runpod_results(
            config=self.config, folder=self.results.folder, summary=dict(result.summary)
        )
        if result.error:
            raise WorkerFailed(
                f"The worker could not finish its work: {result.error}",
                looked_at=f"steps: {', '.join(step_text(step) for step in result.steps)}; logs in {self.results.folder}",
                todo="read logs/ in the results folder; the job was billed",
            )
        yield from self._account_for_the_rest(lines)
        if self.unwritten is not None:
            raise self.unwritten

    def _kept(self, write: Callable[[], object]) -> None:
        """Write something of what came back. That it cannot be written is told at the end: it must not cost the reports."""
        try:
            write()
        except (ResultsUnwritable, ReceiptUnwritable) as full:
            self.unwritten = self.unwritten or full

    def _account_for_the_rest(self, lines: Lines) -> Iterator[None]:
        """Every item without a result becomes an error that says so, unless the run was told to stop."""
        if self.matcher.different:
            raise ResultsUntrusted(
                "The platform ran the job again, and some tests ended otherwise than what was reported of the first time."
                if self.matcher.ran_again
                else "Reports that came while the job ran differ from those in its final result.",
                looked_at=_some(key[0] for key in self.matcher.different),
                todo="run again; do not trust this run",
            )
        status = next((line["exitstatus"] for line in reversed(lines) if line["kind"] == "end"), None)
        if not self.collected.told or status in (ExitCode.USAGE_ERROR, ExitCode.INTERNAL_ERROR):
            raise WorkerFailed(
                f"The worker's pytest could not do its work{'' if status is None else f' (exit {status})'}. The job was billed.",
                looked_at=self._end_of_the_log(),
                todo="see what pytest needs there: files (runpod_include), packages (runpod_requirements)",
            )
        missing = [] if self.stopped() or self._collection_failed_there(lines) else self.matcher.missing()
        for key in missing:
            item = self.collected.item(key)
            lost = failure(key, item, "setup", missing_text(key, _why_missing(key, lines)))
            self._explain(key, [lost])
            publish(item, key, [lost], self.config)
            yield None
        if missing:
            raise ResultsUntrusted(
                f"{len(missing)} of {len(self.matcher.expected)} selected tests came back without a result.",
                looked_at=_some(key[0] for key in missing),
                todo="read logs/pytest.txt in the results folder",
            )
        self._insist_on_the_payload(lines)

    def _end_of_the_log(self) -> str:
        log = (self.results.result.member("logs/pytest.txt") if self.results.result else None) or b""
        return log.decode("utf-8", "replace").strip()[-1500:] or "logs/pytest.txt in the results folder; it is empty"

    def _collection_failed_there(self, lines: Lines) -> bool:
        """Then nothing was run there, as nothing is run here after errors of a collection."""
        if self.config.option.continue_on_collection_errors:
            return False
        return any(line["kind"] == "collectreport" and line["report"]["outcome"] == "failed" for line in lines)

    def _insist_on_the_payload(self, lines: Lines) -> None:
        elsewhere = {
            name: path for line in lines if line["kind"] == "elsewhere" for name, path in line["modules"].items()
        }
        if elsewhere:
            raise ResultsUntrusted(
                "The tests ran against other code than what was sent: here some modules come out of the project, there not.",
                looked_at=_some(f"{name} from {path}" for name, path in sorted(elsewhere.items())),
                todo="install the project here in editable form, or put its folder on `pythonpath` in the ini file",
            )

    def _hand_coverage_over(self) -> None:
        if self.places is not None:
            folder = self.results.folder
            self.facts["coverage"] = coverage_data.hand_over(
                self.config, folder / "coverage", folder.name, self.places.local_text
            )

    # --- what the lines tell

    def _learn(self, lines: Lines) -> None:
        for line in lines:
            if line["kind"] == "session" and self.places is None:
                self.places = Places.of(line, self.config.rootpath, self.config.invocation_params.dir)
            elif line["kind"] == "collected":
                if not self.collected.told:
                    self.collected.learn(line["ids"])
                    self.matcher.expect(line["ids"])
                if line["extra"] and "extra" not in self.facts:
                    self.session.testscollected += len(line["extra"])
                    self.facts["extra"] = (
                        f"{len(line['extra'])} tests were collected there and not here: {_some(line['extra'])}"
                    )

    def _publish_collection(self, lines: Lines) -> None:
        """Errors and skips of a collection that took place there."""
        for line in lines:
            if line["kind"] == "collectreport":
                report = make_collect_report(self.config, line["report"], self.places)
                self._explain((report.nodeid, 1), [report])
                self.config.hook.pytest_collectreport(report=report)

    def _was_warned_here(self, line: dict[str, Any]) -> bool:
        """Both sides configure and collect: what both warn of while they do so is one warning."""
        message = line["message"]
        key = (message.get("category_class"), self.places.local_text(message["message_str"]) if self.places else "")
        return line["when"] != "runtest" and key in self.warned_here

    def _publish(self, finished: list[Finished]) -> Iterator[None]:
        for one in finished:
            item = self.collected.item(one.key)
            reports = make_reports(self.config, one, item, self.places)
            self._explain(one.key, reports)
            publish(item, one.key, reports, self.config)
            yield None

    def _explain(self, key: Key, reports: Sequence[pytest.TestReport | pytest.CollectReport]) -> None:
        """Say of a failure that a file caused it that is here and was not sent."""
        for report in reports:
            if not report.failed:
                continue
            for path in files_missed(report.longreprtext, self.stayed):
                rule = self.stayed[path].rule
                remedy = "" if rule.startswith("credentials") else f"; runpod_include = {path} would send it"
                add_note(report, f"{path} is here, and was not sent ({rule}){remedy}")
                self.facts.setdefault("not_sent", {}).setdefault(path, key[0])

    def _remember(self, result: Result, state: Job) -> None:
        hardware = json.loads(result.member("hardware.json") or b"{}")
        attempts = len(self.results.attempts)
        self.facts.update(
            gpu=result.proof.get("name"),
            driver=result.proof.get("driver"),
            torch=result.proof.get("torch") or hardware.get("torch"),
            image=self.settings.image,
            provider="emulator" if self.settings.provider == "emulator" else None,
            attempts=f"{attempts} (the platform ran the job again)" if attempts > 1 else None,
            steps=[
                f"{step.get('name')} {step.get('seconds', 0):.1f} s"
                for step in result.steps
                if step.get("status") != "skipped"
            ],
            failed_steps=[step_text(step) for step in result.steps if step.get("status") not in ("ok", "skipped")],
            left_out=[f"{entry.get('path')} ({entry.get('size')} bytes)" for entry in result.left_out],
            output=str(self.results.folder),
            execution_ms=state.execution_ms,
        )


def step_text(step: Any) -> str:
    exit_status = "" if step.get("exit") in (None, 0) else f", exit {step['exit']}"
    detail = f": {step['detail']}" if step.get("detail") else ""
    return f"{step.get('name')} {step.get('status')}{exit_status}{detail}"


def _verified(state: Job, sent: Submitted) -> Result:
    if state.output is None or state.status in ("CANCELLED", "TIMED_OUT"):
        found = why_without_result(state)
        raise WorkerFailed(
            found.cause,
            looked_at=f"job {state.id}: {state.status}, {state.error or 'no error text'}, {state.retries} retries",
            todo=found.todo,
        )
    return read_result(state.output, sent.payload_sha256, sent.nonce, state.error)


def _some(names: Any) -> str:
    names = list(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _why_missing(key: Key, lines: Lines) -> str:
    for line in lines:
        if line["kind"] == "collected" and key[0] in (line.get("missing") or ()):
            errors = [error for error in line.get("errors") or () if key[0].startswith(str(error.get("nodeid")))]
            texts = [text for error in errors if (text := str(error.get("longrepr") or ""))]
            return "the worker did not collect it" + (f":\n{texts[0]}" if texts else "; it is not there")
    return "the worker's pytest ended before it came to this test"
