"""PgQueuer on Postgres; a worker runs as ``python -m bench.job_queues.pgqueuer_side``."""

from __future__ import annotations

import asyncio
import json
import os
from functools import partial

import psycopg  # type: ignore[import-not-found]
from pgqueuer.db import PsycopgDriver, SyncPsycopgDriver  # type: ignore[import-not-found]
from pgqueuer.models import Job  # type: ignore[import-not-found]
from pgqueuer.qm import QueueManager  # type: ignore[import-not-found]
from pgqueuer.queries import Queries, SyncQueries  # type: ignore[import-not-found]

from bench.job_queues import probe
from bench.job_queues.side import POSTGRES

ADDRESS = os.environ[POSTGRES]
TABLE = "pgqueuer"


class PgQueuer:
    """Enqueues jobs; the constructor creates PgQueuer's tables unless they exist."""

    bulk = True

    def __init__(self) -> None:
        self._connection = psycopg.connect(ADDRESS, autocommit=True)
        if self._connection.execute(f"SELECT to_regclass('{TABLE}')").fetchone() == (None,):
            asyncio.run(install())
        self._queries = SyncQueries(SyncPsycopgDriver(self._connection))

    def reset(self) -> None:
        self._connection.execute(f"TRUNCATE {TABLE}")

    def send(self, task: str, *arguments: float) -> None:
        self._queries.enqueue(task, json.dumps(arguments).encode())

    def send_many(self, task: str, arguments: tuple[float, ...], count: int) -> None:
        self._queries.enqueue([task] * count, [json.dumps(arguments).encode()] * count, [0] * count)

    def pending(self) -> int:
        row = self._connection.execute(f"SELECT count(*) FROM {TABLE}").fetchone()
        return int(row[0])


def side() -> PgQueuer:
    return PgQueuer()


async def install() -> None:
    async with await psycopg.AsyncConnection.connect(ADDRESS, autocommit=True) as connection:
        await Queries(PsycopgDriver(connection)).install()


async def run(task: str, job: Job) -> None:
    probe.TASKS[task](*json.loads(job.payload))


async def work() -> None:
    async with await psycopg.AsyncConnection.connect(ADDRESS, autocommit=True) as connection:
        manager = QueueManager(Queries(PsycopgDriver(connection)))
        for task in probe.TASKS:
            manager.entrypoint(task)(partial(run, task))
        await manager.run()


if __name__ == "__main__":
    asyncio.run(work())
