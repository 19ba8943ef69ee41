"""Huey on SQLite; workers run as ``huey_consumer bench.job_queues.huey_side.app``."""

from __future__ import annotations

import os

import huey  # type: ignore[import-not-found]

from bench.job_queues import probe
from bench.job_queues.side import FILE, QUEUE

app = huey.SqliteHuey(QUEUE, filename=os.environ[FILE], fsync=True, results=False)
TASKS = {name: app.task(name=name)(function) for name, function in probe.TASKS.items()}


class Huey:
    """Enqueues tasks without results."""

    bulk = False

    def reset(self) -> None:
        app.flush()

    def send(self, task: str, *arguments: float) -> None:
        TASKS[task](*arguments)

    def send_many(self, task: str, arguments: tuple[float, ...], count: int) -> None:
        for _ in range(count):
            self.send(task, *arguments)

    def pending(self) -> int:
        """Counts the waiting tasks; Huey removes a task before it runs."""
        return int(app.pending_count())


def side() -> Huey:
    return Huey()
