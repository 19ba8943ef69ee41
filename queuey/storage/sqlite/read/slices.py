"""Slices of a partition, and the rows they give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from queuey import ids
from queuey.ids import TICKS_PER_SECOND, Position
from queuey.messages import FREE_HEADERS, Message, Page, Slice
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.read.expiry_windows import lowest_live
from queuey.storage.sqlite.row_codec import decode_meta

RANGE = "FROM messages WHERE queue_partition = ? AND (ticks, low) >= (?, ?) AND (ticks, low) < (?, ?) AND expires > ?"
"""Of a partition, from and up to a position, what has not expired."""
_ROWS = f"SELECT ticks, low, expires, body, meta {RANGE} "
ASCENDING = _ROWS + "ORDER BY ticks, low LIMIT ?"
DESCENDING = _ROWS + "ORDER BY ticks DESC, low DESC LIMIT ?"

_RECENT = 2 * TICKS_PER_SECOND
"""Reads that begin this near to now do not ask where live messages begin."""


def read_slice(connection: Connection, qp: int, wanted: Slice, horizon: int, now: int) -> Page:
    """Reads one page.

    Args:
        connection: A reading connection.
        qp: Queue and partition.
        wanted: The slice.
        horizon: Ticks; nothing at or above is read. Sampled before this call.
        now: Ticks; what has expired by then is not shown.
    """
    lower, upper = bounds(connection, qp, wanted, horizon, now)
    rows: list[Any] = []
    more = False
    if lower < upper and wanted.limit > 0:
        cursor = connection.execute(
            DESCENDING if wanted.descending else ASCENDING, (qp, *lower, *upper, now, wanted.limit)
        )
        rows, more = _bounded(cursor, wanted.limit, wanted.max_bytes)
    messages = to_messages(rows, wanted.partition)
    return Page(messages, horizon, _next(wanted, messages, upper, more=more), more)


def bounds(connection: Connection, qp: int, wanted: Slice, horizon: int, now: int) -> tuple[Position, Position]:
    """Returns the positions between which a slice may have messages; see :func:`read_slice`. There may be none."""
    lower, upper = wanted.lower, min(wanted.upper, (horizon, ids.LOW_MIN))
    if lower[0] < now - _RECENT:
        alive = lowest_live(connection, qp, now)
        lower = max(lower, upper if alive is None else (alive, ids.LOW_MIN))
    return lower, upper


def to_messages(rows: list[Any], partition: int) -> list[Message]:
    """Returns the messages of rows (ticks, low, expires, body, meta)."""
    return [
        Message(ticks, low, partition, expires, body, None if meta is None else decode_meta(meta))
        for ticks, low, expires, body, meta in rows
    ]


def _bounded(cursor: Iterator[Any], limit: int, max_bytes: int) -> tuple[list[Any], bool]:
    """Takes rows (body and metadata last) until one of the two bounds; returns them and whether a bound was met."""
    rows: list[Any] = []
    size = 0
    for row in cursor:
        rows.append(row)
        size += len(row[3])
        if row[4] is not None and len(row[4]) > FREE_HEADERS:
            size += len(row[4])
        if size >= max_bytes:
            return rows, True
    return rows, len(rows) >= limit


def _next(wanted: Slice, messages: list[Message], upper: ids.Position, *, more: bool) -> ids.Position | None:
    if wanted.descending:
        last = messages[-1].position if more and messages else ids.FIRST
        return ids.preceding(last) if last > ids.FIRST else None
    if more and messages:
        return ids.following(messages[-1].position)
    return max(wanted.lower, upper)
