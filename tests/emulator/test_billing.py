"""Bills: worker seconds times rate, cut into buckets of time."""

from datetime import datetime, timezone

import pytest

from pytest_runpod.emulator.billing import Query, Span, bill, bucket_of, moment
from pytest_runpod.emulator.validation import ApiError

NOON = datetime(2026, 12, 31, 12, tzinfo=timezone.utc).timestamp()
SPANS = [Span("mine", NOON - 60, NOON + 30, 0.6), Span("other", NOON, NOON + 10, 6.0)]


def amounts(value):
    return [(record["startTime"][11:16], record["totalAmount"]) for record in value["records"]]


def test_a_worker_that_lived_across_an_hour_is_billed_in_both():
    value = bill(SPANS, Query("mine"), NOON + 100)
    assert amounts(value) == [("11:00", 0.01), ("12:00", 0.005)]
    assert value["metadata"]["totals"]["totalAmount"] == 0.015
    assert value["metadata"]["uniqueServerlessCount"] == 1


def test_the_window_is_half_open_and_snapped_outwards_to_the_edges():
    at = NOON + 100
    assert amounts(bill(SPANS, Query("mine", start=NOON), at)) == [("12:00", 0.005)]
    assert amounts(bill(SPANS, Query("mine", end=NOON), at)) == [("11:00", 0.01)]
    assert amounts(bill(SPANS, Query("mine", end=NOON + 1), at)) == [("11:00", 0.01), ("12:00", 0.005)]
    assert len(bill(SPANS, Query(), at)["records"]) == 3
    assert amounts(bill(SPANS, Query("mine", bucket="day"), at)) == [("00:00", 0.015)]


def test_what_is_younger_than_the_lag_is_not_seen():
    assert amounts(bill(SPANS, Query("mine"), NOON + 30, lag_s=30)) == [("11:00", 0.01)]
    assert amounts(bill(SPANS, Query("mine"), NOON + 30, lag_s=3600)) == []


@pytest.mark.parametrize(
    ("size", "begin", "end"),
    [
        ("hour", "2026-12-31T12:00", "2026-12-31T13:00"),
        ("day", "2026-12-31T00:00", "2027-01-01T00:00"),
        ("week", "2026-12-28T00:00", "2027-01-04T00:00"),
        ("month", "2026-12-01T00:00", "2027-01-01T00:00"),
        ("year", "2026-01-01T00:00", "2027-01-01T00:00"),
    ],
)
def test_buckets_have_the_edges_of_the_calendar(size, begin, end):
    edges = (moment(f"{one}:00Z", "x") for one in (begin, end))
    assert bucket_of(NOON + 5, size) == tuple(edges)


def test_a_bucket_or_a_time_that_is_none_is_refused():
    with pytest.raises(ApiError, match="bucketSize"):
        bill(SPANS, Query(bucket="minute"), NOON)
    with pytest.raises(ApiError, match="startTime"):
        moment("yesterday", "startTime")
