"""The plugin of a remote run: pytest's loop, replaced; everything else of pytest stays as it is. A local run never meets it."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.runner import call_and_report

from pytest_runpod import approval, compatibility, fixtures, hookspecs
from pytest_runpod.errors import COLLECTION_FAILED_HERE, ExitCode, RunpodError, SettingsRefused, worse
from pytest_runpod.forwarding import Word, interactive, needing_collection_here
from pytest_runpod.interrupts import Interrupts
from pytest_runpod.options import KNOWN, RunSettings, parse_settings
from pytest_runpod.report import summary_lines
from pytest_runpod.selection import words_of
from pytest_runpod.session import RUN, Packed, RemoteRun, pack_payload
from pytest_runpod.wiring import SystemClock, approvals_folder

CUDA_ID: Final = "runpod::cuda"


def enter(config: pytest.Config, arguments: tuple[str, ...]) -> None:
    """Make this session a remote one. Raises: pytest.UsageError: settings that cannot be used, all of them named."""
    try:
        settings = settings_of(config)
        words = words_of(config, arguments)
        _refuse_unusable(words, settings)
    except SettingsRefused as refused:
        raise pytest.UsageError(str(refused)) from refused
    _switch_xdist_off(config)
    hookspecs.make_known(config.pluginmanager)
    run = RemoteRun(config, settings, words, SystemClock(), _Terminal(config).say)
    config.stash[RUN] = run
    config.pluginmanager.register(fixtures, "runpod-fixtures")
    config.pluginmanager.register(RemoteHooks(run), "runpod-remote")


def settings_of(config: pytest.Config) -> RunSettings:
    """Read options, environment and ini file of *config*. Raises: SettingsRefused."""
    written = config._inicfg if hasattr(config, "_inicfg") else config.inicfg  # pytest 9 warns about the public name
    ini: dict[str, Any] = {key: None for key in written if key.startswith("runpod_")}
    ini.update({f"runpod_{name}": config.getini(f"runpod_{name}") or None for name in KNOWN})
    options = {name: config.getoption(f"runpod_{name}", None) for name in KNOWN}
    options["approved_sha"] = config.getoption("approved_sha", None)
    return parse_settings(options, os.environ, ini, config.rootpath, config.invocation_params.dir)


def prepare(config: pytest.Config, arguments: tuple[str, ...]) -> int:
    """Pack and print; nothing is asked of anybody. The manifest is kept, so that a later difference can be named."""
    try:
        settings = settings_of(config)
        hookspecs.make_known(config.pluginmanager)
        packed = pack_payload(config, settings)
        approval.remember(packed.payload, approvals_folder(settings))
    except RunpodError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)
    sys.stdout.write(
        approval.prepared_text(packed.payload, packed.decisions, verbose=config.getoption("verbose") > 0) + "\n"
    )
    if found := compatibility.differences(config, settings, words_of(config, arguments), packed.payload.paths):
        sys.stdout.write("\n".join(["", "A run from here would be refused:", *(f"  {line}" for line in found), ""]))
    return ExitCode.OK


def approved(config: pytest.Config, arguments: tuple[str, ...]) -> tuple[RunSettings, Packed]:
    """Settings and payload for an endpoint that is made ahead of its run. Raises: RunpodError: it could not be used."""
    settings = settings_of(config)
    hookspecs.make_known(config.pluginmanager)
    packed = pack_payload(config, settings)
    approval.check_approval(packed.payload, settings, approvals_folder(settings))
    compatibility.check(config, settings, words_of(config, arguments), packed.payload.paths)
    return settings, packed


class RemoteHooks:
    """What a remote session does otherwise than a local one."""

    def __init__(self, run: RemoteRun) -> None:
        self.run = run
        self.collects_there = run.settings.collect == "worker"
        self.deselected: set[str] = set()
        self.warned: set[tuple[str | None, str]] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool | None:
        """With `--runpod-collect=worker` nothing is imported here: the worker tells what there is."""
        if not self.collects_there:
            return None
        session.items, session.testscollected = [], 0
        return True

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.deselected.update(item.nodeid for item in items)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        if when != "runtest" and self.run.stream is None:
            self.warned.add((warning_message.category.__name__, str(warning_message.message)))

    def _refuse_halves_of_twins(self, session: pytest.Session) -> None:
        """Items with one id are told apart by their position among all of that id; of some of them nobody could tell which."""
        twins = sorted(self.deselected.intersection(item.nodeid for item in session.items))
        if twins:
            raise pytest.UsageError(
                "Several tests have one node id, and only some of them are selected. Nothing was created, nothing was billed.\n"
                f"  looked at: {', '.join(twins[:10])}\n"
                "  to do:     give them ids of their own, or select all of them"
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run what was collected on the worker; what must not be billed is left to pytest's own loop."""
        here = not self.collects_there
        if session.config.option.collectonly or _collection_failed(session) or (here and not session.items):
            return None
        self._refuse_halves_of_twins(session)
        self.run.begin(session, self.warned, self.deselected)
        session.testscollected += 1
        with _our_own_warnings_ignored(), Interrupts(self.run.say) as interrupts:
            try:
                self._run_cuda_item(
                    CudaItem.from_parent(session, name="cuda", nodeid=CUDA_ID, run=self.run), interrupts
                )
            finally:
                with interrupts.while_deleting():
                    self._finish()
        if self.collects_there:
            _end_as_after_a_collection(session)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _run_cuda_item(self, cuda: CudaItem, interrupts: Interrupts) -> None:
        """Setup: the endpoint and the job. Between: everybody's reports. Call: the proof. Teardown: confirmed deletion."""
        session = cuda.session
        setup = call_and_report(cuda, "setup", log=True)
        if setup.passed:
            for _ in self.run.follow():
                if session.shouldfail or session.shouldstop:
                    break
        cuda.ihook.pytest_runtest_logstart(nodeid=cuda.nodeid, location=cuda.location)
        if setup.passed and not (session.shouldfail or session.shouldstop):
            call_and_report(cuda, "call", log=True)
        with interrupts.while_deleting():
            call_and_report(cuda, "teardown", log=True, nextitem=None)
        cuda.ihook.pytest_runtest_logfinish(nodeid=cuda.nodeid, location=cuda.location)

    def _finish(self) -> None:
        try:
            self.run.finish()
        except RunpodError as error:
            self.run.blame(error)
            self.run.say(str(error))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Iterator[None]:
        """The worst exit code wins; reporters that are called inside see it already."""
        session.exitstatus = worse(int(session.exitstatus), self.run.exit_code)
        result = yield
        session.exitstatus = worse(int(session.exitstatus), self.run.exit_code)
        return result

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        lines = summary_lines(self.run.facts) if self.run.begun else []
        if self.run.stream is None and _collection_failed(terminalreporter._session):
            lines = COLLECTION_FAILED_HERE.splitlines()
        if lines:
            terminalreporter.section("runpod")
            for line in lines:
                terminalreporter.write_line(line)


class CudaItem(pytest.Item):
    """The item `runpod::cuda`: its setup makes the endpoint, its call is the proof, its teardown the confirmed deletion."""

    def __init__(self, *, run: RemoteRun, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.run = run

    def setup(self) -> None:
        """Request our session fixtures, and only those: the autouse fixtures of the tests belong on the worker."""
        from _pytest.fixtures import TopRequest

        manager = self.session._fixturemanager
        self._fixtureinfo = manager.getfixtureinfo(node=self, func=None, cls=None)
        self.fixturenames: list[str] = []
        self.funcargs: dict[str, Any] = {}
        TopRequest(self, _ispytest=True).getfixturevalue("runpod_results")  # type: ignore[arg-type]

    def runtest(self) -> None:
        self.run.prove()

    def reportinfo(self) -> tuple[Path | str, int | None, str]:
        return "runpod", 0, CUDA_ID

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return self._text(excinfo) or super().repr_failure(excinfo)

    def _repr_failure_py(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """pytest asks this one for what fails in setup and teardown."""
        return self._text(excinfo) or super()._repr_failure_py(excinfo, style)

    def _text(self, excinfo: pytest.ExceptionInfo[BaseException]) -> str | None:
        self.run.blame(excinfo.value)
        return str(excinfo.value) if isinstance(excinfo.value, RunpodError) else None


class _Terminal:
    """Says what happens, in pytest's own terminal, between the dots."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def say(self, text: str) -> None:
        manager = self.config.pluginmanager
        reporter, capture = manager.get_plugin("terminalreporter"), manager.get_plugin("capturemanager")
        if reporter is None or self.config.getoption("verbose") < 0:
            return
        shown = capture.global_and_fixture_disabled() if capture else nullcontext()
        with suppress(OSError), shown:  # a terminal that is gone must not keep anybody from cleaning up
            reporter.ensure_newline()
            reporter.write_line(f"runpod: {text}")
            reporter.currentfspath = None  # the next dot begins a line of its own, with its file name


def _collection_failed(session: pytest.Session) -> bool:
    return bool(session.testsfailed) and not session.config.option.continue_on_collection_errors


def _refuse_unusable(words: tuple[Word, ...], settings: RunSettings) -> None:
    problems = []
    if options := interactive(words):
        problems.append(f"{', '.join(options)} cannot reach a worker; leave it out, or run without --runpod")
    if settings.collect == "worker" and (options := needing_collection_here(words)):
        problems.append(
            f"{', '.join(options)} needs a collection here, and --runpod-collect=worker leaves it to the worker"
        )
    if problems:
        raise SettingsRefused(problems)


def _switch_xdist_off(config: pytest.Config) -> None:
    """`-n` means processes on the worker: here one controller owns one endpoint. The worker gets the option as it was given."""
    if hasattr(config.option, "numprocesses"):
        config.option.numprocesses = None
        config.option.dist = "no"
        config.option.tx = []
        config.option.looponfail = False


def _end_as_after_a_collection(session: pytest.Session) -> None:
    """Errors of a collection on the worker end the session as those of one here: interrupted, or without tests."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    errors = (
        [one for one in reporter.stats.get("error", ()) if isinstance(one, pytest.CollectReport)] if reporter else []
    )
    if errors and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{len(errors)} error{'s' if len(errors) != 1 else ''} during collection")
    if not session.items and not session.testsfailed:
        session.testscollected = 0


@contextmanager
def _our_own_warnings_ignored() -> Iterator[None]:
    """A user's `filterwarnings = error` is about the user's code: what our libraries may say must not end the run."""
    with warnings.catch_warnings():
        for module in ("requests", "urllib3", "junitparser", "filelock", "platformdirs", "pytest_runpod"):
            warnings.filterwarnings("ignore", module=rf"{module}(\.|$)")
        yield
