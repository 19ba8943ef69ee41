"""Celery on Redis; workers run as ``celery --app bench.job_queues.celery_side worker``."""

from __future__ import annotations

import os

import celery
import redis  # type: ignore[import-not-found]

from bench.job_queues import probe
from bench.job_queues.side import QUEUE, REDIS

app = celery.Celery("bench", broker=os.environ[REDIS])
app.conf.update(
    task_default_queue=QUEUE,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
)
TASKS = {name: app.task(name=name)(function) for name, function in probe.TASKS.items()}


class Celery:
    """Sends tasks; workers acknowledge them after they ran."""

    bulk = False

    def __init__(self) -> None:
        self._redis = redis.Redis.from_url(os.environ[REDIS])

    def reset(self) -> None:
        self._redis.flushall()

    def send(self, task: str, *arguments: float) -> None:
        TASKS[task].delay(*arguments)

    def send_many(self, task: str, arguments: tuple[float, ...], count: int) -> None:
        for _ in range(count):
            self.send(task, *arguments)

    def pending(self) -> int:
        return int(self._redis.llen(QUEUE)) + int(self._redis.hlen("unacked"))


def side() -> Celery:
    return Celery()
