"""Bills, as `GET /v2/billing/serverless` shows them: what workers have cost, in buckets of time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from pytest_runpod.emulator.validation import ApiError

WINDOW_S: Final = 30 * 86400.0  # default window. Source: the provider's OpenAPI document
BUCKETS: Final = ("hour", "day", "week", "month", "year")
AMOUNTS: Final = ("totalAmount", "gpuAmount", "cpuAmount", "diskAmount", "feeAmount")


@dataclass(frozen=True)
class Span:
    """One worker's life: what is billed. *rate*: US dollars per hour; times in seconds since the epoch."""

    endpoint_id: str
    begin: float
    end: float
    rate: float


@dataclass(frozen=True)
class Query:
    """What is asked for: half-open, snapped outwards to the edges of buckets."""

    endpoint_id: str | None = None
    start: float | None = None
    end: float | None = None
    bucket: str = "hour"


def bill(spans: Iterable[Span], query: Query, now: float, lag_s: float = 0.0) -> dict[str, Any]:
    """Sum up *spans*, as far as a lag of *lag_s* seconds lets them be seen. Deleted endpoints stay in."""
    if query.bucket not in BUCKETS:
        raise ApiError(422, f"bucketSize must be one of {', '.join(BUCKETS)}")
    last = now if query.end is None else query.end
    first = last - WINDOW_S if query.start is None else query.start
    edge = bucket_of(max(first, last - 1e-6), query.bucket)[1]
    begin = bucket_of(first, query.bucket)[0]
    sums: dict[tuple[float, str], float] = {}
    for span in spans:
        if query.endpoint_id in (None, span.endpoint_id):
            for piece, amount in _pieces(span, min(span.end, now - lag_s), query.bucket):
                if begin <= piece < edge:
                    sums[piece, span.endpoint_id] = sums.get((piece, span.endpoint_id), 0.0) + amount
    records = [_record(piece, name, amount, query.bucket) for (piece, name), amount in sorted(sums.items())]
    return {
        "records": records,
        "metadata": {
            "query": {
                "startTime": iso(begin), "endTime": iso(edge), "bucketSize": query.bucket, "serverlessId": query.endpoint_id,
            },
            "recordCount": len(records),
            "uniqueServerlessCount": len({record["serverlessId"] for record in records}),
            "totals": _amounts(sum(sums.values())),
        },
    }  # fmt: skip


def bucket_of(seconds: float, size: str) -> tuple[float, float]:
    """Begin and end of the bucket that holds a moment. Weeks begin on Monday; all is UTC.

    >>> bucket_of(3700.0, "hour")
    (3600.0, 7200.0)
    """
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if size == "hour":
        begin = day + timedelta(hours=moment.hour)
        return begin.timestamp(), (begin + timedelta(hours=1)).timestamp()
    if size == "day":
        return day.timestamp(), (day + timedelta(days=1)).timestamp()
    if size == "week":
        begin = day - timedelta(days=day.weekday())
        return begin.timestamp(), (begin + timedelta(days=7)).timestamp()
    begin = day.replace(day=1) if size == "month" else day.replace(month=1, day=1)
    months = begin.month if size == "month" else 12  # months of that year which are over when the bucket is
    after = begin.replace(year=begin.year + months // 12, month=months % 12 + 1)
    return begin.timestamp(), after.timestamp()


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str | None, name: str) -> float | None:
    """Read a time of RFC 3339. Raises: ApiError: 422, it is none."""
    if text is None:
        return None
    try:
        read = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as slip:
        raise ApiError(422, f"{name} must be a time of RFC 3339") from slip
    return (read if read.tzinfo else read.replace(tzinfo=timezone.utc)).timestamp()


def _pieces(span: Span, end: float, size: str) -> Iterable[tuple[float, float]]:
    """Cut a span at the edges of buckets: begin of the bucket, and the amount."""
    begin = span.begin
    while begin < end:
        edge, after = bucket_of(begin, size)
        stop = min(end, after)
        yield edge, (stop - begin) * span.rate / 3600
        begin = stop


def _record(begin: float, endpoint_id: str, amount: float, size: str) -> dict[str, Any]:
    end = bucket_of(begin, size)[1]
    return {"startTime": iso(begin), "endTime": iso(end), "serverlessId": endpoint_id, **_amounts(amount)}


def _amounts(amount: float) -> dict[str, float]:
    gpu = round(amount, 6)
    return {name: gpu if name in ("totalAmount", "gpuAmount") else 0 for name in AMOUNTS}
