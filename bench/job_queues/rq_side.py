"""RQ: workers are ``rq worker --worker-class rq.SimpleWorker``."""

from __future__ import annotations

import os

import redis  # type: ignore[import-not-found]
import rq  # type: ignore[import-not-found]

from bench.job_queues import probe
from bench.job_queues.side import QUEUE, REDIS


class Rq:
    """Enqueues jobs whose results nobody wants, which spares RQ to store them."""

    bulk = True

    def __init__(self) -> None:
        self._redis = redis.Redis.from_url(os.environ[REDIS])
        self._queue = rq.Queue(QUEUE, connection=self._redis)

    def reset(self) -> None:
        """Empties the server."""
        self._redis.flushall()

    def send(self, task: str, *arguments: float) -> None:
        """Enqueues one job."""
        self._queue.enqueue_call(probe.TASKS[task], args=arguments, result_ttl=0)

    def send_many(self, task: str, arguments: tuple[float, ...], count: int) -> None:
        """Enqueues jobs in one pipeline."""
        function = probe.TASKS[task]
        self._queue.enqueue_many([rq.Queue.prepare_data(function, args=arguments, result_ttl=0) for _ in range(count)])

    def pending(self) -> int:
        """Counts what is in the queue and in the registry of what runs."""
        return int(self._redis.llen(self._queue.key)) + int(self._redis.zcard(f"rq:wip:{QUEUE}"))


def side() -> Rq:
    """Returns what is measured."""
    return Rq()
