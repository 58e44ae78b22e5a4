"""The SDK's handler: may rely on the SDK and this folder. One job at a time; a cancelled job takes its processes with it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import job as worker_job
from bootstrap import start_wall_timer


class Progress:
    """Publishes updates through the SDK, which starts a thread for each; waits for the last one to be answered."""

    def __init__(self, job: dict[str, Any], send: Any) -> None:
        self.job, self.send = job, send
        self.threads: list[threading.Thread] = []

    def __call__(self, update: dict[str, Any]) -> None:
        before = set(threading.enumerate())
        self.send(self.job, update)
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        self.threads += [thread for thread in threading.enumerate() if thread not in before]

    async def settle(self, limit_s: float = 30.0) -> None:
        """Wait until each update was answered: a late one would turn the finished job back to running."""
        until = time.monotonic() + limit_s
        for thread in self.threads:
            await asyncio.to_thread(thread.join, max(0.0, until - time.monotonic()))


def main() -> None:
    import runpod

    async def handler(job: dict[str, Any]) -> dict[str, Any]:
        progress = Progress(job, runpod.serverless.progress_update)
        try:
            return await worker_job.run_job(job["input"], progress)
        finally:
            await progress.settle()

    runpod.serverless.start({"handler": handler})


if __name__ == "__main__":
    start_wall_timer(float(os.environ["PYTEST_RUNPOD_WALL_AT"]) - time.time())
    os.environ.setdefault("RUNPOD_LOG_LEVEL", "INFO")
    main()
