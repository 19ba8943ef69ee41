"""Procrastinate with async tasks.

Workers run as ``procrastinate --app bench.job_queues.procrastinate_side.app worker``.
"""

from __future__ import annotations

import os

import procrastinate  # type: ignore[import-not-found]
import psycopg  # type: ignore[import-not-found]

from bench.job_queues import probe
from bench.job_queues.side import POSTGRES, QUEUE

ADDRESS = os.environ[POSTGRES]
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=ADDRESS))
PENDING = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"


async def counted(port: int, total: int) -> None:
    probe.count_run(port, total)


async def timed(port: int, sent: float) -> None:
    probe.report_delay(port, sent)


FUNCTIONS = {"counted": counted, "timed": timed}
TASKS = {name: app.task(name=name, queue=QUEUE)(function) for name, function in FUNCTIONS.items()}
NAMES = {"counted": ("port", "total"), "timed": ("port", "sent")}
"""Names of each task's arguments; procrastinate passes arguments by name."""


class Procrastinate:
    """Defers jobs synchronously, through the app's synchronous connector.

    The constructor opens the app and creates its tables unless they exist.
    """

    bulk = True

    def __init__(self) -> None:
        self._connection = psycopg.connect(ADDRESS, autocommit=True)
        app.open()
        if self._connection.execute("SELECT to_regclass('procrastinate_jobs')").fetchone() == (None,):
            app.schema_manager.apply_schema()

    def reset(self) -> None:
        self._connection.execute("TRUNCATE procrastinate_jobs CASCADE")

    def send(self, task: str, *arguments: float) -> None:
        TASKS[task].defer(**dict(zip(NAMES[task], arguments, strict=True)))

    def send_many(self, task: str, arguments: tuple[float, ...], count: int) -> None:
        TASKS[task].batch_defer(*(dict(zip(NAMES[task], arguments, strict=True)) for _ in range(count)))

    def pending(self) -> int:
        row = self._connection.execute(PENDING).fetchone()
        return int(row[0])


def side() -> Procrastinate:
    return Procrastinate()
