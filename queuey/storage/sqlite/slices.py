"""Slices of a partition: their rows, their positions alone, and how much of them is alive."""

from __future__ import annotations

import contextlib
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from queuey import ids
from queuey.ids import TICKS_PER_SECOND, Position
from queuey.messages import FRAME, KEPT_SECONDS, MOST_ESCAPED, Message, Page, Slice, rendered_bytes
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.row_codec import decode_meta

RANGE = "FROM messages WHERE queue_partition = ? AND (ticks, low) >= (?, ?) AND (ticks, low) < (?, ?) AND expires > ?"
"""Rows of a partition, from and up to a position, that have not expired."""
KEPT_TICKS = KEPT_SECONDS * TICKS_PER_SECOND


def with_kept(query: str) -> str:
    """Returns a query of live messages as one that also finds kept ones."""
    return query.replace("expires > ?", "coalesce(stored_until, expires) > ?")


_ROWS = {
    (bodies, descending): f"SELECT ticks, low, expires, {columns} {RANGE} ORDER BY ticks {order}, low {order} LIMIT ?"
    for bodies, columns in ((True, "body, meta"), (False, "'', NULL"))
    for descending, order in ((False, "ASC"), (True, "DESC"))
}
_KEPT_ROWS = {order: with_kept(query) for order, query in _ROWS.items()}
_BESIDE = 64
"""Number of bytes that JSON takes beside the texts of metadata, more than the column has beside them."""

_RECENT = 2 * TICKS_PER_SECOND
"""Max ticks between now and the beginning of a read that does not ask where live messages begin."""
FROM = "FROM messages WHERE (queue_partition, ticks, low) >= (?, ?, ?) ORDER BY queue_partition, ticks, low"
"""Rows of a partition, from a position on, and of the partitions behind it."""
_KEYS = f"SELECT queue_partition, ticks, low, expires {FROM}"
KEYS_TOGETHER = 256
"""Number of rows that are read together; some of the last ones may be of the next partition."""
_LOWEST = (
    "SELECT min(max(first_ticks, ? - longest_ttl)) FROM expiry_windows WHERE queue_partition = ? AND expired_by > ?"
)


def read_slice(connection: Connection, qp: int, wanted: Slice, horizon: int, now: int) -> Page:
    """Reads one page, below a horizon that was sampled before this call."""
    lower, upper = bounds(connection, qp, wanted, horizon, now)
    rows: list[Any] = []
    more = False
    if lower < upper and wanted.limit > 0:
        query = (_KEPT_ROWS if wanted.kept else _ROWS)[wanted.bodies, wanted.descending]
        cursor = connection.execute(query, (qp, *lower, *upper, now, wanted.limit))
        rows, more = _bounded(cursor, wanted.limit, wanted.max_bytes if wanted.bodies else sys.maxsize)
    messages = to_messages(rows, wanted.partition)
    return Page(messages, horizon, _next(wanted, messages, upper, more=more), more)


def bounds(connection: Connection, qp: int, wanted: Slice, horizon: int, now: int) -> tuple[Position, Position]:
    """Returns the positions between which a slice may have messages; see :func:`read_slice`. There may be none."""
    lower, upper = wanted.lower, wanted.upper
    if wanted.due:
        upper = min(upper, (horizon, ids.LOW_MIN))
    if lower[0] < now - _RECENT:
        alive = lowest_live(connection, qp, now, kept=wanted.kept)
        lower = max(lower, upper if alive is None else (alive, ids.LOW_MIN))
    return lower, upper


def to_messages(rows: list[Any], partition: int) -> list[Message]:
    """Returns the messages of rows (ticks, low, expires, body, meta)."""
    return [
        Message(ticks, low, partition, expires, body, None if meta is None else decode_meta(meta))
        for ticks, low, expires, body, meta in rows
    ]


def _bounded(cursor: Iterator[Any], limit: int, max_bytes: int) -> tuple[list[Any], bool]:
    """Collects rows (body and metadata last) until one of the two bounds; returns them and whether a bound was met."""
    rows: list[Any] = []
    most = exact = measured = 0
    for row in cursor:
        rows.append(row)
        most += FRAME + MOST_ESCAPED * len(row[3])
        if row[4] is not None:
            most += _BESIDE + MOST_ESCAPED * len(row[4])
        if most >= max_bytes:
            # Each row is measured once, and only if what it takes at most could be too much.
            exact += sum([_rendered_bytes(row) for row in rows[measured:]])
            most, measured = exact, len(rows)
            if exact >= max_bytes:
                return rows, True
    return rows, len(rows) >= limit


def _rendered_bytes(row: Any) -> int:  # noqa: ANN401 - as SQLite has it
    return rendered_bytes(row[3], None if row[4] is None else decode_meta(row[4]))


def _next(wanted: Slice, messages: list[Message], upper: ids.Position, *, more: bool) -> ids.Position | None:
    if wanted.descending:
        last = messages[-1].position if more and messages else ids.FIRST
        return ids.preceding(last) if last > ids.FIRST else None
    if more and messages:
        return ids.following(messages[-1].position)
    return max(wanted.lower, upper)


def live_keys(
    connection: Connection, qp: int, ticks: int, low: int, end: int, end_low: int, now: int, *, limit: int
) -> Iterator[list[tuple[int, int, int, int]]]:
    """Yields live messages of a range, at most ``limit`` in all, some hundred at a time.

    Each is the partition, the ticks and low of the id, and its expiry.

    A search that ends at an upper bound has SQLite compare every row's key with it, and for that it reads the whole
    row, the further pages of a long body included. So the statement only has a lower bound, and its results are cut
    off here. (A row has ``expires`` before ``body``: the columns up to there are always on its first page.)
    """
    upper = (qp, end, end_low)
    with contextlib.closing(connection.execute(_KEYS, (qp, ticks, low))) as cursor:
        more = (qp, ticks, low) < upper
        while more and limit > 0:
            rows: list[Any] = list(islice(cursor, min(KEYS_TOGETHER, limit)))
            more = bool(rows) and rows[-1] < upper
            if not more:
                del rows[bisect_left(rows, upper) :]
            keys = [row for row in rows if row[3] > now]
            limit -= len(keys)
            if keys:
                yield keys


class ExpiryWindow(NamedTuple):
    """A part of a partition's messages: those whose rows go in one span of time.

    A row goes when its message expires, that of a kept one ``KEPT_SECONDS`` later. The width is a power of two between
    1/16 and 1/8 of a row's lifetime, so a partition has few live windows (8 to 16 per TTL in use) whatever the TTL, and
    everything in a window is to go soon after its first row. A lifetime begins at the message's id, or when it was
    stored if that was later: an id given by a client may be as old as it likes. ``span`` is the longest time from an id
    to the message's end.
    """

    until: int
    n: int
    first: int
    last: int
    span: int


def live_windows(connection: Connection, qp: int, now: int) -> list[ExpiryWindow]:
    """Returns the expiry windows of a partition that may hold live messages, the soonest to go first."""
    rows = connection.execute(
        "SELECT expired_by, message_count, first_ticks, last_ticks, longest_ttl FROM expiry_windows WHERE "
        "queue_partition = ? AND expired_by > ? ORDER BY expired_by",
        (qp, now),
    )
    return [ExpiryWindow(*row) for row in rows]


def lowest_live(connection: Connection, qp: int, now: int, *, kept: bool = False) -> int | None:
    """Returns a tick below which no message of a partition is alive, or with ``kept`` stored; None if none is at all.

    A read that begins there skips expired messages that are not swept yet. With one TTL per partition it is exact. The
    minimum is taken inside the database, because delayed messages may make a partition have many windows.
    """
    row: Any = connection.execute(_LOWEST, (now - KEPT_TICKS if kept else now, qp, now)).fetchone()
    lowest: int | None = row[0]
    return lowest


def estimate(windows: Iterable[ExpiryWindow], now: int, above: int) -> int:
    """Estimates the live messages with ticks above ``above``, assuming that each window is evenly filled."""
    total = 0.0
    for window in windows:
        lower = max(window.first, now - window.span, above)
        length = window.last - window.first + 1
        share = min(1.0, max(0.0, (window.last + 1 - lower) / length))
        total += max(0, window.n) * share
    return round(total)
