"""Huey on SQLite: workers are ``huey_consumer bench.job_queues.huey_side.app``."""

from __future__ import annotations

import os

import huey  # type: ignore[import-not-found]

from bench.job_queues import probe
from bench.job_queues.side import FILE, QUEUE

app = huey.SqliteHuey(QUEUE, filename=os.environ[FILE], fsync=True, results=False)
TASKS = {name: app.task(name=name)(function) for name, function in probe.TASKS.items()}


class Huey:
    """Enqueues tasks whose results nobody wants."""

    bulk = False

    def reset(self) -> None:
        """Empties the queue."""
        app.flush()

    def send(self, task: str, *arguments: float) -> None:
        """Enqueues one task."""
        TASKS[task](*arguments)

    def send_many(self, task: str, arguments: tuple[float, ...], count: int) -> None:
        """Enqueues one after another: there is no call for many."""
        for _ in range(count):
            self.send(task, *arguments)

    def pending(self) -> int:
        """Counts what waits: huey removes a task before it runs."""
        return int(app.pending_count())


def side() -> Huey:
    """Returns what is measured."""
    return Huey()
