"""A bare loop on Postgres: ``python -m bench.job_queues.skip_locked_side LIMIT`` claims, runs and deletes so many jobs.

A worker that dies loses its transaction, and its jobs are another's: the same guarantee as that of the others.
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
"""Of a worker that has found nothing."""
TABLE = "CREATE TABLE IF NOT EXISTS jobs (id bigserial PRIMARY KEY, task text NOT NULL, arguments jsonb NOT NULL)"
INSERT = "INSERT INTO jobs (task, arguments) VALUES (%s, %s)"
CLAIM = "SELECT id, task, arguments FROM jobs ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"
DELETE = "DELETE FROM jobs WHERE id = ANY(%s)"


class SkipLocked:
    """Inserts rows."""

    bulk = True

    def __init__(self) -> None:
        self._connection = psycopg.connect(ADDRESS, autocommit=True)
        self._connection.execute(TABLE)

    def reset(self) -> None:
        """Empties the table."""
        self._connection.execute("TRUNCATE jobs")

    def send(self, task: str, *arguments: float) -> None:
        """Inserts and commits one row."""
        self._connection.execute(INSERT, (task, json.dumps(arguments)))

    def send_many(self, task: str, arguments: tuple[float, ...], count: int) -> None:
        """Inserts rows in one transaction."""
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(INSERT, [(task, json.dumps(arguments)) for _ in range(count)])

    def pending(self) -> int:
        """Counts the rows."""
        row = self._connection.execute("SELECT count(*) FROM jobs").fetchone()
        return int(row[0])


def side() -> SkipLocked:
    """Returns what is measured."""
    return SkipLocked()


def work(limit: int) -> None:
    """Runs jobs until the process is ended."""
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
