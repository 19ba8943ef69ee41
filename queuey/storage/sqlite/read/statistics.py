"""Measures partitions, counted inside the database some hundred queues at a time.

Each partition is counted by one statement, prepared once: for queues of a few messages that is as cheap as one
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
from queuey.storage.sqlite import row_codec
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.read.live_keys import FROM
from queuey.storage.sqlite.read.slices import RANGE

QUEUES = 500
"""Max queues that are read in one snapshot."""
MESSAGES = 50_000
"""Max messages of one partition that are counted in one snapshot, about."""
SPARE = 8
"""Number of rows to read beyond the expected ones of a partition, because the counts of windows may be a little low."""
_END: Position = (TICKS_MAX + 1, LOW_MIN)

_HELD = (
    "SELECT queue_partition, sum(message_count), min(max(first_ticks, ?2 - longest_ttl)) FROM json_each(?1) AS asked "
    "CROSS JOIN expiry_windows ON queue_partition >= asked.value << 8 AND queue_partition < (asked.value + 1) << 8 "
    "WHERE expired_by > ?2 "
    "GROUP BY queue_partition ORDER BY queue_partition"
)
_SOME = (
    "SELECT count(*), sum(size), min(ticks), max(ticks), min(low), max(low), min(expires) "  # noqa: S608 - constants only
    f"FROM (SELECT queue_partition, ticks, low, expires, octet_length(body) AS size {FROM} LIMIT ?) WHERE "
    "queue_partition = ?"
)
"""Selects rows of the partition among the first ones from a position on."""
_NEXT = f"SELECT queue_partition, ticks, low {FROM} LIMIT 1 OFFSET ?"
_ALIVE = f"SELECT count(*), sum(octet_length(body)) {RANGE}"
_OLDEST = f"SELECT ticks, low {RANGE} ORDER BY ticks, low LIMIT 1"
_NEWEST = f"SELECT ticks, low {RANGE} ORDER BY ticks DESC, low DESC LIMIT 1"


def measure(database: Database, queues: Sequence[Queue], *, messages: int = MESSAGES) -> Iterator[list[Measure]]:
    """Measures queues, at most ``messages`` of a partition in one snapshot; see the storage contract."""
    for start in range(0, len(queues), QUEUES):
        yield from _measure_some(database, queues[start : start + QUEUES], messages)


def _measure_some(database: Database, queues: Sequence[Queue], messages: int) -> Iterator[list[Measure]]:
    now = database.clock()
    found: defaultdict[int, list[Measure]] = defaultdict(list)
    large: defaultdict[int, list[tuple[int, Measure | None, Position]]] = defaultdict(list)
    with _snapshot(database) as connection:
        current = [_is_current(database, connection, queue) for queue in queues]
        asked = json.dumps([queue.qid for queue, good in zip(queues, current, strict=True) if good])
        held: Any = connection.execute(_HELD, (asked, now)).fetchall()
        for qp, count, ticks in held:
            one, border = _count(connection, qp, (ticks, LOW_MIN), min(max(0, count) + SPARE, messages), now)
            if border is not None:
                large[qp >> 8].append((qp, one, border))
            elif one is not None:
                found[qp >> 8].append(one)
    for queue, good in zip(queues, current, strict=True):
        if not good:
            yield []
        elif queue.qid in large:
            more = [_count_on(database, qp, one, border, now, messages) for qp, one, border in large[queue.qid]]
            with _snapshot(database) as connection:
                kept = _is_current(database, connection, queue)
            every = found[queue.qid] + [one for one in more if one is not None]
            yield sorted(every, key=lambda one: one.partition) if kept else []
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
    return row_codec.find_queue(connection, queue.application, queue.name, queue.version) == queue


def _count(
    connection: Connection, qp: int, lower: Position, limit: int, now: int
) -> tuple[Measure | None, Position | None]:
    """Measures live messages among ``limit`` rows of a partition.

    Returns:
        The measure, None if there are none; and the next position of the partition, None at its end.
    """
    sums: Any = connection.execute(_SOME, (qp, *lower, limit, qp)).fetchone()
    count, size, first, last, low, high, ended = sums
    following: Any = connection.execute(_NEXT, (qp, *lower, limit)).fetchone() if count == limit else None
    border: Position | None = following[1:] if following is not None and following[0] == qp else None
    if not count:
        return None, border
    oldest: Any = (first, low)
    newest: Any = (last, high)
    where = (qp, *lower, *(border or _END), now)
    if ended <= now:
        [(count, size)] = connection.execute(_ALIVE, where).fetchall()
        if not count:
            return None, border
    if low != high or ended <= now:
        # Ids of several processes, or some that have expired: these four belong to other messages.
        oldest = connection.execute(_OLDEST, where).fetchone()
        newest = connection.execute(_NEWEST, where).fetchone()
    return Measure(qp & 0xFF, count, size, exact=True, oldest=oldest, newest=newest), border


def _count_on(
    database: Database, qp: int, total: Measure | None, border: Position | None, now: int, messages: int
) -> Measure | None:
    """Measures the rest of a large partition, a snapshot for each part of it."""
    while border is not None:
        with _snapshot(database) as connection:
            part, border = _count(connection, qp, border, messages, now)
        if part is not None:
            total = part if total is None else _joined(total, part)
    return total


def _joined(one: Measure, other: Measure) -> Measure:
    """Returns the measure of two ranges of a partition, the second above the first."""
    count, size = one.count + other.count, one.size + other.size
    return Measure(one.partition, count, size, exact=True, oldest=one.oldest, newest=other.newest)
