"""The client's hooks, by name: a conftest.py may implement them, and on the worker none of them is called."""

from __future__ import annotations

from typing import Any


def pytest_runpod_payload_files(config: Any, files: Any) -> None:
    """For the client."""


def pytest_runpod_endpoint_spec(config: Any, spec: Any) -> None:
    """For the client."""


def pytest_runpod_test_env(config: Any, env: Any) -> None:
    """For the client."""


def pytest_runpod_results(config: Any, folder: Any, summary: Any) -> None:
    """For the client."""
