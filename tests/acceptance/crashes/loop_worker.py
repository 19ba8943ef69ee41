"""A worker whose loop is left in many ways: ``loop_worker.py sync|async URL KEY APP QUEUE LIMIT RECORD SEED``.

A handler that sees that its job is lost tidies up for a while and goes on with the next one, as the pages advise. What
it does is appended to a file, a line in one piece: ``begun BODY``, ``done BODY``, ``lost BODY``; ``back BODY`` if the
job was lost no more afterwards. SIGTERM ends it in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from queuey.client import AsyncClient, AsyncJob, Client, Job, RetryPolicy

TTL = 2.0
STEP = 0.05
"""Seconds between two looks at ``job.lost``."""
UNTIL_LOST = "until-lost"
"""How bodies begin whose first handler waits until its job is lost."""
ENOUGH = 20.0
"""Seconds for which it waits."""
NEVER_FAILS = "calm"
"""Name of the file beside the record that ends the mistakes of handlers."""
RETRY = RetryPolicy(rounds=3, base=0.05, cap=0.3, retry_after_cap=0.5, deadline=3, cool_down=0.1)


class HandlerFailed(Exception):
    """A mistake of a handler, which leaves its loop."""


def is_lost(job: Job | AsyncJob) -> bool:
    """Returns the same as the property, which type checkers expect not to change."""
    return job.lost


class Handler:
    """Works on jobs, and sometimes makes mistakes.

    Args:
        record: The file.
        seed: Of its mistakes.
    """

    def __init__(self, record: str, seed: int) -> None:
        self._rng = random.Random(seed)
        self._calm = Path(record).with_name(NEVER_FAILS)
        self._file = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(self, what: str, job: Job | AsyncJob) -> None:
        """Appends a line."""
        os.write(self._file, f"{what} {job.body}\n".encode())

    def steps(self, job: Job | AsyncJob) -> Iterator[float]:
        """Works on a job; gives the seconds that each step takes.

        Raises:
            HandlerFailed: It has made a mistake.
        """
        self.say("begun", job)
        waits = job.deliveries == 1 and job.body.startswith(UNTIL_LOST)
        for _ in range(int(ENOUGH / STEP) if waits else self._rng.choice((0, 1, 2, 10))):
            yield STEP
            if is_lost(job):
                self.say("lost", job)
                yield self._rng.uniform(0, 4)
                if not is_lost(job):
                    self.say("back", job)
                return
        if self._rng.random() < 0.03 and not self._calm.exists():
            raise HandlerFailed
        self.say("done", job)


def work(url: str, key: str, app: str, queue: str, limit: int, handler: Handler) -> None:
    """Works for ever, with threads."""
    with Client(url, key=key, application=app, retry=RETRY, timeout=2) as client:
        while True:
            with contextlib.suppress(HandlerFailed):
                for job in client.job_queue(queue).claim(limit=limit, ttl=TTL):
                    for pause in handler.steps(job):
                        time.sleep(pause)


async def work_in_task(url: str, key: str, app: str, queue: str, limit: int, handler: Handler) -> None:
    """Works for ever, in a task."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with AsyncClient(url, key=key, application=app, retry=RETRY, timeout=2) as client:
        while True:
            jobs = client.job_queue(queue).claim(limit=limit, ttl=TTL)
            with contextlib.suppress(HandlerFailed):
                async for job in jobs:
                    for pause in handler.steps(job):
                        await asyncio.sleep(pause)
            await jobs.aclose()  # it is a generator


def main(colour: str, url: str, key: str, app: str, queue: str, limit: str, record: str, seed: str) -> None:
    """Is the program."""
    handler = Handler(record, int(seed))
    if colour == "sync":
        end: Callable[..., None] = lambda *_: sys.exit()  # noqa: E731 - it is a handler of signals
        signal.signal(signal.SIGTERM, end)
        work(url, key, app, queue, int(limit), handler)
    else:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(work_in_task(url, key, app, queue, int(limit), handler))


if __name__ == "__main__":
    main(*sys.argv[1:])
