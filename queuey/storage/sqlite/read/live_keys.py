"""Positions of a partition's messages, without their bodies.

A search that ends at an upper bound has SQLite compare every row's key with it, and for that it reads the whole row,
the further pages of a long body included. So these statements only have a lower bound, and their results are cut off
here. (A row has ``expires`` before ``body``: the columns up to there are always on its first page.)
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Any

from queuey.storage.sqlite.connection import Connection

FROM = "FROM messages WHERE (queue_partition, ticks, low) >= (?, ?, ?) ORDER BY queue_partition, ticks, low"
"""Rows of a partition, from a position on, and of the partitions behind it."""
_KEYS = f"SELECT queue_partition, ticks, low, expires {FROM}"
_STEP = 256
"""Number of rows that are read together; some of the last ones may be of the next partition."""


def live_keys(
    connection: Connection, qp: int, ticks: int, low: int, end: int, end_low: int, now: int, *, limit: int
) -> Iterator[list[tuple[int, int, int, int]]]:
    """Yields live messages of a range, at most ``limit`` in all, some hundred at a time.

    Each is the partition, the ticks and low of the id, and its expiry.
    """
    upper = (qp, end, end_low)
    with contextlib.closing(connection.execute(_KEYS, (qp, ticks, low))) as cursor:
        more = (qp, ticks, low) < upper
        while more and limit > 0:
            rows: list[Any] = list(islice(cursor, min(_STEP, limit)))
            more = bool(rows) and rows[-1] < upper
            if not more:
                del rows[bisect_left(rows, upper) :]
            keys = [row for row in rows if row[3] > now]
            limit -= len(keys)
            if keys:
                yield keys
