"""Expiry windows: the messages of a partition grouped by the time they expire.

A window has the messages that expire in one span of time. Its width is a power of two between
1/16 and 1/8 of a message's lifetime, so a partition has few live windows (8 to 16 per TTL in use) whatever the TTL, and
everything in a window has expired soon after its first message did. A lifetime begins at the message's id, or when it
was stored if that was later: an id given by a client may be as old as it likes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from queuey.storage.sqlite.connection import Connection

_LOWEST = (
    "SELECT min(max(first_ticks, ? - longest_ttl)) FROM expiry_windows WHERE queue_partition = ? AND expired_by > ?"
)


class ExpiryWindow(NamedTuple):
    until: int
    n: int
    first: int
    last: int
    span: int


def live_windows(connection: Connection, qp: int, now: int) -> list[ExpiryWindow]:
    """Returns the expiry windows of a partition that may hold live messages, soonest to expire first."""
    rows = connection.execute(
        "SELECT expired_by, message_count, first_ticks, last_ticks, longest_ttl FROM expiry_windows WHERE "
        "queue_partition = ? AND expired_by > ? ORDER BY expired_by",
        (qp, now),
    )
    return [ExpiryWindow(*row) for row in rows]


def lowest_live(connection: Connection, qp: int, now: int) -> int | None:
    """Returns a tick below which no message of a partition is alive; None if none is alive at all.

    A read that begins there skips expired messages that are not swept yet. With one TTL per partition it is exact. The
    minimum is taken inside the database, because delayed messages may make a partition have many windows.
    """
    row: Any = connection.execute(_LOWEST, (now, qp, now)).fetchone()
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
