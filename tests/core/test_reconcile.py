"""A submission whose answer was lost: what one look at counters and lists says about it."""

import pytest

from pytest_runpod.core.cloud import Health, Job
from pytest_runpod.core.reconcile import Arrived, NoTrace, Unnamed, fate_of_submission

IDLE = Health(jobs={"inQueue": 0, "completed": 0}, workers={})
BUSY = Health(jobs={"inQueue": 1, "completed": 0}, workers={})
ONE, OTHER = Job("j1", "IN_QUEUE"), Job("j2", "COMPLETED")


@pytest.mark.parametrize(
    ("health", "jobs", "kind"),
    [
        (IDLE, (), NoTrace),
        (None, None, NoTrace),
        (BUSY, (ONE,), Arrived),
        (IDLE, (ONE,), Arrived),
        (BUSY, None, Unnamed),
        (BUSY, (), Unnamed),
        (BUSY, (ONE, OTHER), Unnamed),
    ],
)
def test_only_a_single_job_is_taken_for_ours(health, jobs, kind):
    fate = fate_of_submission(health, jobs)
    assert isinstance(fate, kind)
    if isinstance(fate, Arrived):
        assert fate.job_id == "j1"
