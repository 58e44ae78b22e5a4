"""Between the SDK and a job: the last progress update was answered before the job is done."""

import asyncio
import threading
import time


def test_the_last_update_is_answered_before_the_handler_returns(worker_path):
    import handler

    answered = []

    def send(job, update):  # as the SDK does: a thread for each update
        threading.Thread(target=lambda: (time.sleep(0.2), answered.append(update)), daemon=True).start()

    progress = handler.Progress({"id": "j"}, send)
    progress({"n": 1})
    progress({"n": 2})
    asyncio.run(progress.settle())
    assert sorted(update["n"] for update in answered) == [1, 2]


def test_an_update_that_is_never_answered_holds_the_result_back_for_a_bounded_time(worker_path):
    import handler

    let_go = threading.Event()
    progress = handler.Progress({}, lambda job, update: threading.Thread(target=let_go.wait, daemon=True).start())
    for number in range(3):
        progress({"n": number})
    began = time.monotonic()
    asyncio.run(progress.settle(limit_s=0.3))
    assert time.monotonic() - began < 2
    let_go.set()
