"""Whole micro-dollars: nothing is ever rounded in the user's disfavour of knowing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_runpod.core.money import CENT, MicroUsd, cost_ceiling, format_usd, parse_usd


@pytest.mark.parametrize("text", ["", "abc", "-1", "NaN", "Infinity", "1,5", None])
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(ValueError, match="not an amount"):
        parse_usd(text)


@given(st.integers(0, 10**12))
def test_an_amount_survives_being_written_and_read(amount):
    assert parse_usd(format_usd(amount)) == amount


@given(st.integers(0, 10**5), st.integers(1, 10**8))
def test_a_ceiling_is_whole_cents_and_never_below_the_product(seconds, rate):
    ceiling = cost_ceiling(seconds, MicroUsd(rate))
    assert ceiling % CENT == 0
    assert 0 <= ceiling * 3600 - seconds * rate < CENT * 3600


@pytest.mark.parametrize(("seconds", "rate"), [(-1, 700_000), (10, 0), (10, -5)])
def test_a_free_gpu_and_a_negative_time_are_slips(seconds, rate):
    with pytest.raises(ValueError, match="cannot"):
        cost_ceiling(seconds, MicroUsd(rate))
