"""A text that shows itself in no traceback: pytest prints arguments and local variables by their `repr`."""

from __future__ import annotations


class Secret(str):
    """A key, or a header with one. Equal to its text, and sent as it; shown as three stars."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"
