"""Every deliberate error. One root, few branches, by what the reader does next; data in attributes. Imports nothing of ours.

An error says what happened and what did not (money first), what was looked at, and what to do. Never a key, a header or
a whole response.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

COLLECTION_FAILED_HERE = (
    "The collection failed on this machine. Nothing was created, nothing was billed.\n"
    "If the tests import what only the worker has: --runpod-collect=worker"
)


class ExitCode(IntEnum):
    """Exit codes of a run. 0 to 5 are pytest's own; among ours the worst one wins (`worse`)."""

    OK = 0
    TESTS_FAILED = 1
    INTERRUPTED = 2
    INTERNAL_ERROR = 3
    USAGE_ERROR = 4
    APPROVAL = 10
    BUDGET = 11
    INFRASTRUCTURE = 12
    CLEANUP = 13
    RESULTS = 14


def worse(one: int, other: int) -> int:
    """Choose the exit code that a caller must hear about: ours before pytest's, unresolved clean-up before all.

    >>> int(worse(1, 12)), int(worse(13, 14)), int(worse(0, 1)), int(worse(143, 13)), int(worse(143, 1))
    (12, 13, 1, 13, 143)
    """
    order = [0, 5, 1, 2, 4, 3, 10, 11, 14, 12, 13]
    others = order.index(10) - 0.5  # 143 of a SIGTERM, what `pytest.exit` was given: above pytest's own, below ours
    return max(one, other, key=lambda code: order.index(code) if code in order else others)


class RunpodError(Exception):
    """A run that cannot go on, in three lines: what happened, what was looked at, what to do."""

    exit_code: ExitCode = ExitCode.INFRASTRUCTURE

    def __init__(self, happened: str, *, looked_at: str = "", todo: str = "") -> None:
        super().__init__(happened)
        self.happened = happened
        self.looked_at = looked_at
        self.todo = todo

    def __str__(self) -> str:
        lines = [self.happened]
        if self.looked_at:
            lines.append(f"  looked at: {self.looked_at}")
        if self.todo:
            lines.append(f"  to do:     {self.todo}")
        return "\n".join(lines)


class SettingsRefused(RunpodError):
    """Options, ini keys or variables that contradict each other or make no sense; all of them at once."""

    exit_code = ExitCode.USAGE_ERROR

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("pytest-runpod cannot use these settings. Nothing was created, nothing was billed.")
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join([self.happened, *(f"  - {problem}" for problem in self.problems)])


class PayloadRefused(RunpodError):
    """What was chosen must not, or cannot, be sent."""

    exit_code = ExitCode.APPROVAL


class ApprovalRefused(RunpodError):
    """The digest is missing, or is not the one of what was packed."""

    exit_code = ExitCode.APPROVAL


class BudgetRefused(RunpodError):
    """A reservation would pass a limit, a price is above the ceiling, or the ledger cannot be trusted."""

    exit_code = ExitCode.BUDGET


class ProviderError(RunpodError):
    """The provider said no, said nothing, or said something that we do not understand."""


class ProviderRefused(ProviderError):
    """An answer with an error status. *status*: the HTTP status code."""

    def __init__(self, happened: str, *, status: int, looked_at: str = "", todo: str = "") -> None:
        super().__init__(happened, looked_at=looked_at, todo=todo)
        self.status = status


class ProviderUnreachable(ProviderError):
    """No connection: the request never left, so nothing happened there."""


class FateUnknown(ProviderError):
    """A request that may have had its effect, and whose answer was lost. It is never sent again; look by name."""


class WorkerFailed(ProviderError):
    """The worker could not do its work, or the provider lost it."""


class CleanupUnresolved(RunpodError):
    """Something that we asked for may still exist, and cost."""

    exit_code = ExitCode.CLEANUP


class ResultsUntrusted(RunpodError):
    """Results that are incomplete, damaged, or not of this run."""

    exit_code = ExitCode.RESULTS


class ResultsUnwritable(RunpodError):
    """What came back cannot be kept here: a full disk, a folder that is read-only."""

    exit_code = ExitCode.RESULTS


class WatchdogFailed(RunpodError):
    """Nobody would delete the endpoint if this process died."""


class StillLocked(RunpodError):
    """Another process works on the same file."""


class ReceiptUnwritable(RunpodError):
    """A receipt, or what belongs to it, cannot be written."""


class ReceiptRefused(RunpodError):
    """What is asked for does not fit what the receipt says."""

    exit_code = ExitCode.USAGE_ERROR


class ReceiptDamaged(RunpodError):
    """A receipt that cannot be read, or that is of another version: it is never overwritten."""

    exit_code = ExitCode.CLEANUP
