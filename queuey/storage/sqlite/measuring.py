"""How much the partitions of queues hold, counted inside the database some hundred queues at a time.

Each partition is counted by a statement of its own, prepared once: for queues of a few messages that is as cheap as one
statement for many of them, which would have to sort. A snapshot is held for one chunk of queues or of a partition's
messages and no longer, because while one is held the write-ahead log cannot start over.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from queuey.ids import LOW_MIN, TICKS_MAX, Position
from queuey.messages import Measure, Queue
from queuey.storage.sqlite import rows
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.reading import RANGE

QUEUES = 500
"""Queues that are looked at in one snapshot."""
MESSAGES = 50_000
"""Messages of one partition that are counted in one snapshot, about."""
_END: Position = (TICKS_MAX + 1, LOW_MIN)

_HELD = (
    "SELECT qp, sum(n), min(max(first, ?2 - span)) FROM json_each(?1) AS asked "
    "CROSS JOIN runs ON qp >= asked.value << 8 AND qp < (asked.value + 1) << 8 WHERE until > ?2 GROUP BY qp ORDER BY qp"
)
_SUMS = f"SELECT count(*), sum(octet_length(body)), min(ticks), max(ticks), min(low), max(low) {RANGE}"
_BORDER = f"SELECT ticks, low {RANGE} ORDER BY ticks, low LIMIT 1 OFFSET ?"
_OLDEST = f"SELECT ticks, low {RANGE} ORDER BY ticks, low LIMIT 1"
_NEWEST = f"SELECT ticks, low {RANGE} ORDER BY ticks DESC, low DESC LIMIT 1"


def measure(database: Database, queues: Sequence[Queue]) -> Iterator[list[Measure]]:
    """Measures queues; see the storage contract."""
    for start in range(0, len(queues), QUEUES):
        yield from _measure_some(database, queues[start : start + QUEUES])


def _measure_some(database: Database, queues: Sequence[Queue]) -> Iterator[list[Measure]]:
    now = database.clock()
    found: defaultdict[int, list[Measure]] = defaultdict(list)
    large: defaultdict[int, list[tuple[int, Position]]] = defaultdict(list)
    with _snapshot(database) as connection:
        current = [_is_current(database, connection, queue) for queue in queues]
        asked = json.dumps([queue.qid for queue, good in zip(queues, current, strict=True) if good])
        held: Any = connection.execute(_HELD, (asked, now)).fetchall()
        for qp, count, ticks in held:
            lower = (ticks, LOW_MIN)
            if count > MESSAGES:
                large[qp >> 8].append((qp, lower))
            elif one := _count(connection, qp, lower, _END, now):
                found[qp >> 8].append(one)
    for queue, good in zip(queues, current, strict=True):
        if not good:
            yield []
        elif queue.qid in large:
            more = [one for qp, lower in large[queue.qid] if (one := _count_on(database, qp, lower, now))]
            with _snapshot(database) as connection:
                kept = _is_current(database, connection, queue)
            yield sorted(found[queue.qid] + more, key=lambda one: one.partition) if kept else []
        else:
            yield found[queue.qid]


@contextlib.contextmanager
def _snapshot(database: Database) -> Iterator[Connection]:
    """Lends a connection in a transaction: to begin one for every statement would cost more than the statements."""
    with database.readers.reading() as connection:
        connection.execute("BEGIN")
        try:
            yield connection
        finally:
            if connection.in_transaction:
                connection.execute("COMMIT")


def _is_current(database: Database, connection: Connection, queue: Queue) -> bool:
    if queue.version == database.read_catalogue(connection):
        return True
    return rows.find_queue(connection, queue.application, queue.name, queue.version) == queue


def _count(connection: Connection, qp: int, lower: Position, upper: Position, now: int) -> Measure | None:
    """Measures a range of a partition; None if nothing in it is alive."""
    where = (qp, *lower, *upper, now)
    sums: Any = connection.execute(_SUMS, where).fetchone()
    count, size, first, last, low, high = sums
    if not count:
        return None
    oldest: Any = (first, low)
    newest: Any = (last, high)
    if low != high:
        # Ids of several processes: which of these belongs to the first and to the last is not known.
        oldest = connection.execute(_OLDEST, where).fetchone()
        newest = connection.execute(_NEWEST, where).fetchone()
    return Measure(qp & 0xFF, count, size, exact=True, oldest=oldest, newest=newest)


def _count_on(database: Database, qp: int, lower: Position, now: int) -> Measure | None:
    """Measures a large partition, a snapshot for each part of it."""
    total: Measure | None = None
    border: Any = lower
    while border is not None:
        lower = border
        with _snapshot(database) as connection:
            border = connection.execute(_BORDER, (qp, *lower, *_END, now, MESSAGES)).fetchone()
            part = _count(connection, qp, lower, border or _END, now)
        if part is not None:
            total = part if total is None else _joined(total, part)
    return total


def _joined(one: Measure, other: Measure) -> Measure:
    """Returns the measure of two ranges of a partition, the second above the first."""
    count, size = one.count + other.count, one.size + other.size
    return Measure(one.partition, count, size, exact=True, oldest=one.oldest, newest=other.newest)
