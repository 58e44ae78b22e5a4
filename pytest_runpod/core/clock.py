"""Time, names and randomness, as arguments that production passes too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """What the upper floors need of the world outside."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def iso(self) -> str:
        """The same, as people read it: UTC, to the second."""
        ...

    def wait(self, seconds: float) -> None: ...

    def token(self) -> str:
        """Thirty-two random hexadecimal digits, new each time."""
        ...


@dataclass(frozen=True, slots=True)
class RunId:
    """Name of one run: when it began, and eight digits of chance."""

    text: str

    @classmethod
    def make(cls, clock: Clock) -> RunId:
        stamp = clock.iso().replace(":", "").replace("-", "").rstrip("Z")
        return cls(f"{stamp}-{clock.token()[:8]}")
