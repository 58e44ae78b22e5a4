"""What workers are told, and how often."""

import itertools

from pytest_runpod.emulator import worker_routes
from pytest_runpod.emulator.model import Account
from pytest_runpod.emulator.worker_routes import STOP_AGAIN_S, Waiters, WorkerRoutes

BODY = {
    "name": "n",
    "type": "QUEUE",
    "scaling": {"type": "QUEUE_DELAY", "queueDelay": 1},
    "gpu": {"pools": ["AMPERE_16"]},
    "image": "img:tag",
}


def test_a_stop_signal_is_repeated_until_the_worker_lets_go_but_not_at_once(monkeypatch):
    numbers, time = itertools.count(), [1000.0]
    monkeypatch.setattr(worker_routes.time, "monotonic", lambda: time[0])
    account = Account(lambda: 1_000_000.0, lambda: f"{next(numbers):08x}" * 4)
    routes = WorkerRoutes(account, Waiters())
    endpoint = account.endpoint(account.create(BODY)["id"])
    job = account.run(endpoint.id, {"input": {"x": 1}})
    worker = account.worker_started(endpoint)
    account.take(endpoint, worker.id)
    account.cancel(endpoint.id, job.id)
    told = []
    for pause in (0.0, STOP_AGAIN_S / 2, STOP_AGAIN_S):
        time[0] += pause
        told.append(routes._to_tell(endpoint, worker.id))
    assert told == [[job.id], [], [job.id]]
    account.released(endpoint, worker.id, job.id)
    time[0] += STOP_AGAIN_S
    assert routes._to_tell(endpoint, worker.id) == []
