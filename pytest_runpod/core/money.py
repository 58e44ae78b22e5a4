"""Whole micro-dollars. Decimal at the edge, integers inside, rounding always against the user."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Final, NewType

MicroUsd = NewType("MicroUsd", int)

MICRO: Final = 1_000_000
CENT: Final = 10_000


def parse_usd(text: str | int | float | Decimal) -> MicroUsd:
    """Read an amount of US dollars; fractions of a micro-dollar are rounded up.

    Raises: ValueError: not a number, not finite, or negative.

    >>> parse_usd("0.58")
    580000
    """
    try:
        value = Decimal(str(text).strip().removeprefix("$"))
    except InvalidOperation:
        raise ValueError(f"{text!r} is not an amount of US dollars") from None
    if not value.is_finite() or value < 0:
        raise ValueError(f"{text!r} is not an amount of US dollars")
    return MicroUsd(int((value * MICRO).to_integral_value(rounding=ROUND_CEILING)))


def format_usd(amount: int) -> str:
    """Write micro-dollars for people, whole cents where that is exact.

    >>> format_usd(1_360_000), format_usd(576_123), format_usd(-20_000)
    ('$1.36', '$0.576123', '-$0.02')
    """
    sign = "-" if amount < 0 else ""
    whole, rest = divmod(abs(amount), MICRO)
    digits = f"{rest:06d}"
    digits = digits[:2] if digits.endswith("0000") else digits.rstrip("0")
    return f"{sign}${whole}.{digits}"


def cost_ceiling(busy_s: int, rate: MicroUsd) -> MicroUsd:
    """Bound what one GPU can cost from above, in whole cents.

    Args:
        busy_s: Seconds the endpoint may exist: job lifetime plus shutdown reserve.
        rate: Price of one GPU hour, in millionths of a US dollar.
    Returns: Micro-dollars, a multiple of 10_000; never less than the exact product.
    Raises: ValueError: *busy_s* is negative or *rate* not positive (a free GPU is a parsing slip).

    >>> cost_ceiling(1200 + 600, MicroUsd(700_000))
    350000
    """
    if busy_s < 0:
        raise ValueError(f"a duration cannot be negative: {busy_s}")
    if rate <= 0:
        raise ValueError(f"a GPU hour cannot cost {format_usd(rate)}")
    exact_hours = busy_s * rate
    cents = -(-exact_hours // (3600 * CENT))
    return MicroUsd(cents * CENT)
