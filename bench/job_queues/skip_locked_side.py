"""A bare loop on Postgres that claims, runs and deletes jobs in batches.

Run a worker as ``python -m bench.job_queues.skip_locked_side LIMIT``; LIMIT is the number of jobs per transaction. If a
worker dies, its transaction is rolled back and other workers get its jobs: the guarantee that the other systems give.
"""

from __future__ import annotations

import json
import os
import sys
import time

import psycopg  # type: ignore[import-not-found]

from bench.job_queues import probe
from bench.job_queues.side import POSTGRES

ADDRESS = os.environ[POSTGRES]
PAUSE_SECONDS = 0.01
"""Pause after a claim that found no jobs."""
TABLE = "CREATE TABLE IF NOT EXISTS jobs (id bigserial PRIMARY KEY, task text NOT NULL, arguments jsonb NOT NULL)"
INSERT = "INSERT INTO jobs (task, arguments) VALUES (%s, %s)"
CLAIM = "SELECT id, task, arguments FROM jobs ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"
DELETE = "DELETE FROM jobs WHERE id = ANY(%s)"


class SkipLocked:
    """Inserts jobs as rows of a table, which the constructor creates unless it exists."""

    bulk = True

    def __init__(self) -> None:
        self._connection = psycopg.connect(ADDRESS, autocommit=True)
        self._connection.execute(TABLE)

    def reset(self) -> None:
        self._connection.execute("TRUNCATE jobs")

    def send(self, task: str, *arguments: float) -> None:
        self._connection.execute(INSERT, (task, json.dumps(arguments)))

    def send_many(self, task: str, arguments: tuple[float, ...], count: int) -> None:
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(INSERT, [(task, json.dumps(arguments)) for _ in range(count)])

    def pending(self) -> int:
        row = self._connection.execute("SELECT count(*) FROM jobs").fetchone()
        return int(row[0])


def side() -> SkipLocked:
    return SkipLocked()


def work(limit: int) -> None:
    with psycopg.connect(ADDRESS) as connection:
        while True:
            rows = connection.execute(CLAIM, (limit,)).fetchall()
            for _, task, arguments in rows:
                probe.TASKS[task](*arguments)
            if rows:
                connection.execute(DELETE, ([row[0] for row in rows],))
            connection.commit()
            if not rows:
                time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    work(int(sys.argv[1]))
