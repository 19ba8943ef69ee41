"""Slices of a partition, and their rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from queuey import ids
from queuey.ids import TICKS_PER_SECOND, Position
from queuey.messages import FRAME, MOST_ESCAPED, Message, Page, Slice, rendered_bytes
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.read.expiry_windows import lowest_live
from queuey.storage.sqlite.row_codec import decode_meta

RANGE = "FROM messages WHERE queue_partition = ? AND (ticks, low) >= (?, ?) AND (ticks, low) < (?, ?) AND expires > ?"
"""Rows of a partition, from and up to a position, that have not expired."""
_ROWS = {
    (bodies, descending): f"SELECT ticks, low, expires, {columns} {RANGE} ORDER BY ticks {order}, low {order} LIMIT ?"
    for bodies, columns in ((True, "body, meta"), (False, "'', NULL"))
    for descending, order in ((False, "ASC"), (True, "DESC"))
}
_BESIDE = 64
"""Number of bytes that JSON takes beside the texts of metadata, more than the column has beside them."""

_RECENT = 2 * TICKS_PER_SECOND
"""Max ticks between now and the beginning of a read that does not ask where live messages begin."""


def read_slice(connection: Connection, qp: int, wanted: Slice, horizon: int, now: int) -> Page:
    """Reads one page, below a horizon that was sampled before this call."""
    lower, upper = bounds(connection, qp, wanted, horizon, now)
    rows: list[Any] = []
    more = False
    if lower < upper and wanted.limit > 0:
        query = _ROWS[wanted.bodies, wanted.descending]
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
