"""What a watchdog does next, at every moment of a receipt's life."""

from dataclasses import replace

import pytest

from pytest_runpod.core.leftovers import Standing, standing
from pytest_runpod.core.lifecycle import Phase
from pytest_runpod.core.receipt import Receipt, Where
from pytest_runpod.core.watch import GIVE_UP_S, RETRY_S, Step, next_step, steady

OPEN = Receipt(
    run="r", name="pytest-runpod-1", where=Where("runpod", "https://m", "https://j"), payload_sha256="p", worker_sha256="w",
    created_at=0.0, deadline_at=1800.0, ledger="/l", phase=Phase.RUNNING,
)  # fmt: skip
CLEAN = replace(OPEN, phase=Phase.CLEAN, cleanup_confirmed=True)


@pytest.mark.parametrize(
    ("receipt", "now", "run_ended", "tried_at", "step"),
    [
        (OPEN, 10, False, None, Step.WAIT),
        (OPEN, 10, True, None, Step.CLEAN),
        (OPEN, 1800, False, None, Step.CLEAN),
        (OPEN, 10, True, 9, Step.WAIT),
        (OPEN, 10 + RETRY_S, True, 10, Step.CLEAN),
        (OPEN, 1800 + GIVE_UP_S, True, None, Step.CLEAN),
        (OPEN, 1801 + GIVE_UP_S, True, None, Step.CLEAN),
        (OPEN, 1801 + GIVE_UP_S, True, 1800 + GIVE_UP_S, Step.GIVE_UP),
        (CLEAN, 10, True, None, Step.END),
        (CLEAN, 1801 + GIVE_UP_S, False, None, Step.END),
    ],
)
def test_it_waits_acts_and_ends(receipt, now, run_ended, tried_at, step):
    assert next_step(receipt, now, run_ended=run_ended, tried_at=tried_at) is step


def test_a_clock_that_is_set_back_does_not_move_the_deadline():
    assert next_step(OPEN, steady(-90_000, began=0, passed=1800), run_ended=False, tried_at=None) is Step.CLEAN


@pytest.mark.parametrize(
    ("receipt", "now", "watched", "found"),
    [
        (OPEN, 10, True, Standing.WATCHED),
        (OPEN, 10, False, Standing.ABANDONED),
        (OPEN, 1801, True, Standing.ABANDONED),
        (replace(OPEN, phase=Phase.UNRESOLVED), 10, True, Standing.UNRESOLVED),
        (CLEAN, 1801, False, Standing.CLEAN),
    ],
)
def test_a_receipt_is_left_alone_only_while_somebody_watches_it_or_it_is_clean(receipt, now, watched, found):
    assert standing(receipt, now, watched=watched) is found
