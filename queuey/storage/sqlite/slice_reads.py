"""Reads slices of a partition: rows, ids only, and counts of live messages."""

from __future__ import annotations

import contextlib
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from queuey.model import ids
from queuey.model.ids import TICKS_PER_SECOND, Position
from queuey.model.messages import (
    KEPT_SECONDS,
    MAX_ESCAPED_BYTES,
    MAX_MESSAGE_FRAME_BYTES,
    Message,
    Page,
    Slice,
    bytes_of,
)
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.row_codec import decode_meta

FROM_LIVE_RANGE = (
    "FROM messages WHERE queue_partition = ? AND (ticks, low) >= (?, ?) AND (ticks, low) < (?, ?) AND expires > ?"
)
"""Live rows of a partition, from a position (inclusive) up to a position (exclusive)."""
KEPT_TICKS = KEPT_SECONDS * TICKS_PER_SECOND


def include_kept(query: str) -> str:
    return query.replace("expires > ?", "coalesce(stored_until, expires) > ?")


_SELECT_ROWS = {
    (
        bodies,
        descending,
    ): f"SELECT ticks, low, expires, {columns} {FROM_LIVE_RANGE} ORDER BY ticks {order}, low {order} LIMIT ?"
    for bodies, columns in ((True, "body, meta"), (False, "'', NULL"))
    for descending, order in ((False, "ASC"), (True, "DESC"))
}
_SELECT_KEPT_ROWS = {order: include_kept(query) for order, query in _SELECT_ROWS.items()}
_MAX_META_OVERHEAD = 64
"""Number of bytes by which the overhead of metadata as JSON may exceed its overhead in the column."""

_RECENT_TICKS = 2 * TICKS_PER_SECOND
"""Max ticks between now and the start of a read that does not look up the lowest live message."""
FROM_POSITION = "FROM messages WHERE (queue_partition, ticks, low) >= (?, ?, ?) ORDER BY queue_partition, ticks, low"
"""Rows of a partition from a position on, followed by the rows of the next partitions."""
_SELECT_KEYS = f"SELECT queue_partition, ticks, low, expires {FROM_POSITION}"
MAX_CHUNK_KEYS = 256
"""Number of rows read at a time. The last rows may belong to the next partition."""
_SELECT_LOWEST_LIVE = (
    "SELECT min(max(first_ticks, ? - longest_ttl)) FROM expiry_windows WHERE queue_partition = ? AND expired_by > ?"
)


def read_slice(connection: Connection, qp: int, part: Slice, horizon: int, now: int) -> Page:
    """Reads one page below a horizon that was sampled before this call."""
    lower, upper = find_bounds(connection, qp, part, horizon, now)
    messages: list[Message] = []
    more = False
    if lower < upper and part.limit > 0:
        query = (_SELECT_KEPT_ROWS if part.kept else _SELECT_ROWS)[part.bodies, part.descending]
        cursor = connection.execute(query, (qp, *lower, *upper, now, part.limit))
        messages, more = _read_bounded(cursor, part)
    return Page(messages, horizon, _find_next_bound(part, messages, upper, more=more), more)


def find_bounds(connection: Connection, qp: int, part: Slice, horizon: int, now: int) -> tuple[Position, Position]:
    """Returns the bounds of a slice: ``due`` ones end at the horizon, old ones begin at the lowest live message.

    If a partition has no live messages, an old slice is empty.
    """
    lower, upper = part.lower, part.upper
    if part.due:
        upper = min(upper, (horizon, ids.LOW_MIN))
    if lower[0] < now - _RECENT_TICKS:
        alive = find_lowest_live(connection, qp, now, kept=part.kept)
        lower = max(lower, upper if alive is None else (alive, ids.LOW_MIN))
    return lower, upper


def to_messages(rows: list[Any], partition: int) -> list[Message]:
    return [
        Message(ticks, low, partition, expires, body, None if meta is None else decode_meta(meta))
        for ticks, low, expires, body, meta in rows
    ]


def _read_bounded(cursor: Iterator[Any], part: Slice) -> tuple[list[Message], bool]:
    max_bytes = part.max_bytes if part.bodies else sys.maxsize
    messages: list[Message] = []
    upper = exact = measured = 0
    for ticks, low, expires, body, meta in cursor:
        decoded = None
        upper += MAX_MESSAGE_FRAME_BYTES + MAX_ESCAPED_BYTES * len(body)
        if meta is not None:
            decoded = decode_meta(meta)
            upper += _MAX_META_OVERHEAD + MAX_ESCAPED_BYTES * len(meta)
        messages.append(Message(ticks, low, part.partition, expires, body, decoded))
        if upper >= max_bytes:
            # Each message is measured exactly only once, and only if the upper bound exceeds the limit.
            exact += bytes_of(messages[measured:])
            upper, measured = exact, len(messages)
            if exact >= max_bytes:
                return messages, True
    return messages, len(messages) >= part.limit


def _find_next_bound(part: Slice, messages: list[Message], upper: ids.Position, *, more: bool) -> ids.Position | None:
    """Returns where the next slice begins; for a descending one the position before the last message, or None."""
    if part.descending:
        last = messages[-1].position if more and messages else ids.FIRST
        return ids.preceding(last) if last > ids.FIRST else None
    if more and messages:
        return ids.following((messages[-1].ticks, messages[-1].low))
    return max(part.lower, upper)


def read_live_keys(
    connection: Connection, qp: int, ticks: int, low: int, end: int, end_low: int, now: int, *, limit: int
) -> Iterator[list[tuple[int, int, int, int]]]:
    """Yields the keys of live messages of a range, at most ``limit`` in all, in chunks of ``MAX_CHUNK_KEYS``.

    A key is a tuple of ``qp``, ticks, low and expiry (ticks).

    With an upper bound SQLite would compare it with every row's key, and to do so would read the whole row including
    the overflow pages of a long body. So the statement has only a lower bound, and the result is cut off here. (The
    column ``expires`` precedes ``body``, so it is always on the first page of a row.)
    """
    upper = (qp, end, end_low)
    with contextlib.closing(connection.execute(_SELECT_KEYS, (qp, ticks, low))) as cursor:
        more = (qp, ticks, low) < upper
        while more and limit > 0:
            rows: list[Any] = list(islice(cursor, min(MAX_CHUNK_KEYS, limit)))
            more = bool(rows) and rows[-1] < upper
            if not more:
                del rows[bisect_left(rows, upper) :]
            keys = [row for row in rows if row[3] > now]
            limit -= len(keys)
            if keys:
                yield keys


class ExpiryWindow(NamedTuple):
    """The messages of a partition with rows to be removed in one interval of time.

    A row is removed when its message expires, or ``KEPT_SECONDS`` later if the message is kept. The width of a window
    is a power of two between 1/16 and 1/8 of a row's lifetime. So a partition has few live windows (8 to 16 per TTL in
    use) whatever the TTL, and all rows of a window can be removed soon after its first row. A lifetime begins at the
    id's time or when the message was stored, whichever is later, because an id given by a client may be arbitrarily
    old.

    Attributes:
        expired_by: When all rows of the window can be removed (ticks).
        message_count: Number of messages, estimated: of n single messages with a standard deviation below 4 sqrt(n).
        first, last: No id has ticks below or above.
        span: The longest time from an id to the expiry of its message (ticks).
    """

    expired_by: int
    message_count: int
    first: int
    last: int
    span: int


def read_live_windows(connection: Connection, qp: int, now: int) -> list[ExpiryWindow]:
    rows = connection.execute(
        "SELECT expired_by, message_count, first_ticks, last_ticks, longest_ttl FROM expiry_windows WHERE "
        "queue_partition = ? AND expired_by > ? ORDER BY expired_by",
        (qp, now),
    )
    return [ExpiryWindow(*row) for row in rows]


def find_lowest_live(connection: Connection, qp: int, now: int, *, kept: bool = False) -> int | None:
    """Returns a tick below which a partition has no live messages, or with ``kept`` no stored ones.

    Returns None if the partition has none at all. A read that starts at this tick skips expired messages that have not
    been swept. With one TTL per partition the tick is exact. The minimum is computed in the database, because with
    delayed messages a partition may have many windows.
    """
    row: Any = connection.execute(_SELECT_LOWEST_LIVE, (now - KEPT_TICKS if kept else now, qp, now)).fetchone()
    lowest: int | None = row[0]
    return lowest


def estimate_live(windows: Iterable[ExpiryWindow], now: int, above: int) -> int:
    """Estimates the live messages above a tick as if ids were spread evenly over each window."""
    total = 0.0
    for window in windows:
        lower = max(window.first, now - window.span, above)
        end = min(window.last, max(now, window.first)) + 1  # Later messages may still come into the window.
        share = min(1.0, max(0.0, (end - lower) / (end - window.first)))
        total += max(0, window.message_count) * share
    return round(total)
