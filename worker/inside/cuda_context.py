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

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        result = yield
        wait_for_cuda()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and (message := sticky_error(str(report.longrepr))) and not cuda_still_works():
            report.__dict__["_runpod.poisoned"] = {"message": message, "by": self.culprit or item.nodeid}
            self.culprit = self.culprit or item.nodeid
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        result = yield
        if self.culprit is not None and nextitem is not None and self.may_restart:
            item.session.shouldstop = f"the CUDA context was poisoned by {self.culprit}"
        return result


def sticky_error(text: str) -> str | None:
    """Find, in the text of a failure, an error after which CUDA fails in this process whatever is tried."""
    return next((message for message in STICKY if message in text), None)


def wait_for_cuda() -> None:
    """Wait for the kernels of this process, if it has used CUDA through torch. Raises: RuntimeError: one of them failed."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized() and not cuda._is_in_bad_fork():
        cuda.synchronize()


def cuda_still_works() -> bool:
    """Probe the context. Without torch, or before it has used CUDA, nothing can be probed: the error's text then decides."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return False
    try:
        wait_for_cuda()
    except RuntimeError:
        return False
    return True
