"""RQ on Redis; workers run as ``rq worker --worker-class rq.SimpleWorker``."""

from __future__ import annotations

import os

import redis  # type: ignore[import-not-found]
import rq  # type: ignore[import-not-found]

from bench.job_queues import probe
from bench.job_queues.side import QUEUE, REDIS


class Rq:
    """Enqueues jobs without results, so RQ need not store any."""

    bulk = True

    def __init__(self) -> None:
        self._redis = redis.Redis.from_url(os.environ[REDIS])
        self._queue = rq.Queue(QUEUE, connection=self._redis)

    def reset(self) -> None:
        self._redis.flushall()

    def send(self, task: str, *arguments: float) -> None:
        self._queue.enqueue_call(probe.TASKS[task], args=arguments, result_ttl=0)

    def send_many(self, task: str, arguments: tuple[float, ...], count: int) -> None:
        function = probe.TASKS[task]
        self._queue.enqueue_many([rq.Queue.prepare_data(function, args=arguments, result_ttl=0) for _ in range(count)])

    def pending(self) -> int:
        return int(self._redis.llen(self._queue.key)) + int(self._redis.zcard(f"rq:wip:{QUEUE}"))


def side() -> Rq:
    return Rq()
