"""Half a surrogate in a text, as os.fsdecode makes them, would end a process of xdist: execnet carries UTF-8 only."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest


class Encodable:
    """In a process of xdist: reports leave it in UTF-8, with an escape for what has none (`\\udcff`)."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_report_to_serializable(self) -> Generator[None, Any, Any]:
        return encodable((yield))


def encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {encodable(key): encodable(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)([encodable(part) for part in value])
    return value
