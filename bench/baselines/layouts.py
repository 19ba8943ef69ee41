"""Child process that stores messages of many queues in SQLite, in one of the layouts of decision 10, without a service.

``python -m bench.baselines.layouts LAYOUT PAGE_BYTES FILE QUEUES`` prints its figures as JSON. The file is not synced,
so that CPU time does not depend on the disk.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from bench.load.traffic import bodies

COMMIT_ROWS, MESSAGES_PER_QUEUE, MEASURED_COMMITS = 64, 8, 200
HOT_ROWS, HOT_INTERVAL, READS = 5_000, 8, 2_000
"""Messages of the queue that is read, of which one follows each seven of other queues; number of reads."""
_VALUES = "low INTEGER NOT NULL, expires INTEGER NOT NULL, body NOT NULL, meta BLOB, stored_until INTEGER"
_BY_ARRIVAL = f"CREATE TABLE messages (queue_partition INTEGER NOT NULL, ticks INTEGER PRIMARY KEY, {_VALUES})"
CLUSTERED = "by queue and id"
LAYOUTS = {
    CLUSTERED: f"CREATE TABLE messages (queue_partition INTEGER NOT NULL, ticks INTEGER NOT NULL, {_VALUES}, "
    "PRIMARY KEY (queue_partition, ticks, low)) WITHOUT ROWID",
    "by arrival, index by queue": f"{_BY_ARRIVAL}; CREATE INDEX messages_by_queue ON messages (queue_partition)",
    "by arrival, no index": _BY_ARRIVAL,
}
INSERT = "INSERT INTO messages (queue_partition, ticks, low, expires, body) VALUES "
READ = (
    "SELECT ticks, low, expires, body, meta FROM messages WHERE queue_partition = ? AND (ticks, low) >= (?, ?) "
    "AND expires > ? ORDER BY ticks, low LIMIT ?"
)


class File:
    """A file with messages of many queues."""

    def __init__(self, layout: str, page_bytes: int, path: Path, queues: int) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.execute(f"PRAGMA page_size = {page_bytes}")
        for pragma in ("journal_mode = WAL", "synchronous = OFF", "cache_size = -16384", "wal_autocheckpoint = 0"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._connection.execute(LAYOUTS[layout])
        self._queues = range(1, queues + 1)
        self._hot_queue = queues + 1
        self._rng, self._texts, self._tick = random.Random(7), bodies(256), 10**17

    def fill(self) -> None:
        for number in range(len(self._queues) * MESSAGES_PER_QUEUE // COMMIT_ROWS):
            self.commit()
            if number % 32 == 0:
                self.checkpoint()
        self.checkpoint()

    def commit(self, *, hot: bool = False) -> None:
        """Commits messages of random queues, or every eighth of the queue that is read."""
        parameters: list[Any] = []
        for number in range(COMMIT_ROWS):
            self._tick += 1
            queue = self._hot_queue if hot and number % HOT_INTERVAL == 0 else self._rng.choice(self._queues)
            text = self._texts[self._tick % len(self._texts)]
            parameters += (queue << 8 | 1, self._tick, -(1 << 60), self._tick + 10**12, text)
        with self._connection:
            self._connection.execute(INSERT + ",".join(["(?,?,?,?,?)"] * COMMIT_ROWS), parameters)

    def checkpoint(self) -> int:
        """Copies the log into the file, and starts it over. Returns its number of pages."""
        pages, _ = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        return pages

    def fill_hot_queue(self) -> list[int]:
        """Returns the ticks at which reads begin."""
        for _ in range(HOT_ROWS * HOT_INTERVAL // COMMIT_ROWS):
            self.commit(hot=True)
        self.checkpoint()
        rows: Any = self._connection.execute(
            "SELECT ticks FROM messages WHERE queue_partition = ? ORDER BY ticks", (self._hot_queue << 8 | 1,)
        )
        return [ticks for (ticks,) in rows][:-100]

    def read(self, starts: list[int], limit: int) -> None:
        bounds = (self._hot_queue << 8 | 1, self._rng.choice(starts), -(1 << 62), 0, limit)
        self._connection.execute(READ, bounds).fetchall()


def time_calls(call: Callable[[], object], count: int) -> float:
    """Returns CPU microseconds of a call."""
    began = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - began) * 1e6 / count


def measure(layout: str, page_bytes: int, path: Path, queues: int) -> dict[str, float]:
    file, pages = File(layout, page_bytes, path, queues), []
    file.fill()
    commit = time_calls(file.commit, MEASURED_COMMITS)
    checkpoint = time_calls(lambda: pages.append(file.checkpoint()), 1)
    figures = {
        "CPU of a post": (commit + checkpoint / MEASURED_COMMITS) / COMMIT_ROWS,
        "pages of a commit": pages[0] / MEASURED_COMMITS,
    }
    if "messages_by_queue" in LAYOUTS[layout] or layout == CLUSTERED:
        starts = file.fill_hot_queue()
        for limit in (1, 100):
            figures[f"CPU of a read of {limit}"] = time_calls(partial(file.read, starts, limit), READS)
    return figures


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))))
