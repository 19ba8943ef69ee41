"""Expiry windows: the messages of a partition grouped by when they expire.

A window holds the messages whose expiry falls into one window. Windows are as wide as a power of two that is between
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
_NARROWEST = 24
"""Windows are at least 2**24 ticks (1.7 s) wide."""


class ExpiryWindow(NamedTuple):
    """A row of ``expiry_windows``; see the schema."""

    until: int
    n: int
    first: int
    last: int
    span: int


def window_end(lifetime: int, expires: int) -> int:
    """Returns ``until`` of the run that a message belongs to: the end of its window, above ``expires``."""
    width = max(_NARROWEST, lifetime.bit_length() - 4)
    return ((expires >> width) + 1) << width


class WindowCounts:
    """Changes to expiry windows, gathered over a transaction and written at its end."""

    __slots__ = ("_added", "_removed")

    def __init__(self) -> None:
        self._added: dict[tuple[int, int], list[int]] = {}
        self._removed: dict[tuple[int, int], list[int]] = {}

    def add(self, qp: int, until: int, first: int, last: int, span: int, count: int) -> None:
        """Counts new messages into a run: ids from ``first`` to ``last``, all expiring ``span`` after their ids."""
        key = qp, until
        entry = self._added.get(key)
        if entry is None:
            self._added[key] = [count, first, last, span]
            return
        entry[0] += count
        entry[1] = min(entry[1], first)
        entry[2] = max(entry[2], last)
        entry[3] = max(entry[3], span)

    def remove(self, qp: int, ticks: int, expires: int) -> None:
        """Counts a removed message, out of the run it would be in if it was stored at its id's time."""
        entry = self._removed.setdefault((qp, window_end(expires - ticks, expires)), [0, expires])
        entry[0] += 1
        entry[1] = min(entry[1], expires)

    def copy(self) -> WindowCounts:
        """Returns an independent copy."""
        twin = WindowCounts()
        twin._added = {key: list(entry) for key, entry in self._added.items()}
        twin._removed = {key: list(entry) for key, entry in self._removed.items()}
        return twin

    def write(self, connection: Connection) -> None:
        """Brings the table up to date."""
        if self._added:
            connection.executemany(
                "INSERT INTO expiry_windows (queue_partition, expired_by, message_count, first_ticks, last_ticks, "
                "longest_ttl) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (queue_partition, expired_by) DO UPDATE SET message_count = message_count + "
                "excluded.message_count, first_ticks = min(first_ticks, excluded.first_ticks), "
                "last_ticks = max(last_ticks, excluded.last_ticks), longest_ttl = max(longest_ttl, "
                "excluded.longest_ttl)",
                [(qp, until, *entry) for (qp, until), entry in self._added.items()],
            )
        if self._removed:
            # A message stored long after its id's time is in no such run, but mostly in the next that ends.
            connection.executemany(
                "UPDATE expiry_windows SET message_count = message_count - ?1 WHERE queue_partition = ?2 AND "
                "expired_by = coalesce("
                "(SELECT expired_by FROM expiry_windows WHERE queue_partition = ?2 AND expired_by = ?3), "
                "(SELECT min(expired_by) FROM expiry_windows WHERE queue_partition = ?2 AND expired_by > ?4))",
                [(n, qp, until, expires) for (qp, until), (n, expires) in self._removed.items()],
            )


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

    A read that begins there skips what has expired and is not swept yet. With one TTL per partition it is exact. The
    minimum is taken inside the database, because delayed messages may make a partition have many windows.
    """
    row: Any = connection.execute(_LOWEST, (now, qp, now)).fetchone()
    lowest: int | None = row[0]
    return lowest


def estimate(windows: Iterable[ExpiryWindow], now: int, above: int) -> int:
    """Estimates the live messages with ticks above ``above``, taking each run as evenly spread."""
    total = 0.0
    for run in windows:
        lower = max(run.first, now - run.span, above)
        length = run.last - run.first + 1
        share = min(1.0, max(0.0, (run.last + 1 - lower) / length))
        total += max(0, run.n) * share
    return round(total)
