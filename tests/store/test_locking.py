"""Marks and locks go with the process that holds them."""

import multiprocessing
import os
import signal

from pytest_runpod.store.locking import is_marked, marked


def _hold(path, ready):
    with marked(path):
        ready.set()
        signal.pause()


def test_a_mark_lives_as_long_as_its_process(tmp_path):
    path = tmp_path / "mark"
    assert not is_marked(path)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(path, ready))
    holder.start()
    assert ready.wait(60)
    assert is_marked(path)
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert not is_marked(path)
