"""Errors that poison the CUDA context: blamed on the test that caused them, and kept away from the others."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import pytest

# Errors that CUDA keeps: the context of the process cannot be used again. Source: CUDA runtime API, cudaError_t, those whose
# description says that the process must be terminated and relaunched.
STICKY = (
    "device-side assert triggered", "an illegal memory access was encountered", "misaligned address",
    "unspecified launch failure", "an illegal instruction was encountered", "hardware stack error", "invalid program counter",
    "operation not supported on global/shared address space", "uncorrectable ECC error encountered", "uncorrectable NVLink error",
    "the launch timed out and was terminated", "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_ASSERT", "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_ILLEGAL_INSTRUCTION", "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ECC_UNCORRECTABLE", "cudaErrorIllegalAddress", "cudaErrorAssert", "cudaErrorLaunchFailure",
)  # fmt: skip


class CudaContext:
    """Finds the test after which CUDA cannot be used in this process, and ends the session there: the rest gets a fresh one.

    A kernel fails when it is waited for, often tests later. So each test is waited for, and what it started is its own.
    """

    def __init__(self, control: dict[str, Any]) -> None:
        self.may_restart = bool(control["may_restart"])
        self.culprit: str | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_call(self) -> None:
        """After the test's own. No wrapper: each would add its frames to a traceback that somebody prints in full."""
        wait_for_cuda()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and (message := poison_in(str(report.longrepr))):
            self.culprit = self.culprit or item.nodeid
            report.__dict__["_runpod.poisoned"] = {"message": message, "by": self.culprit}
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        result = yield
        if self.culprit is not None and nextitem is not None and self.may_restart:
            item.session.shouldstop = f"the CUDA context was poisoned by {self.culprit}"
        return result


def poison_in(failure: str) -> str | None:
    """Say what has poisoned the context, if it is: asked of CUDA itself where this process has used it through torch.

    Elsewhere nothing can be asked, and the text of the *failure* decides.
    """
    if not cuda_in_use():
        return sticky_error(failure)
    try:
        wait_for_cuda()
    except RuntimeError as error:
        return sticky_error(str(error)) or str(error).split("\n", 1)[0]
    return None


def sticky_error(text: str) -> str | None:
    """Find an error after which CUDA fails in this process whatever is tried."""
    return next((message for message in STICKY if message in text), None)


def wait_for_cuda() -> None:
    """Wait for the kernels of this process. Raises: RuntimeError: one of them failed."""
    if cuda_in_use():
        sys.modules["torch"].cuda.synchronize()


def cuda_in_use() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_initialized()) and not cuda._is_in_bad_fork()
