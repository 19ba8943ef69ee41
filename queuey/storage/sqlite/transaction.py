"""One write transaction: changes of the store, and generation of ids.

All ids are generated here. An id is at least the clock and above every id that any process generated before
(``last_ticks`` of the table ``clock``, read under the write lock); within a group ids ascend from message to message.
So the order of ids is the order of commits, and a reader that reads up to ``last_ticks`` of its own snapshot misses
nothing (guarantee G1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, repeat
from random import random
from typing import Any, TypeVar

import msgspec

from queuey.model import ids
from queuey.model.errors import InvalidRequest, KeyReused
from queuey.model.ids import TICKS_PER_SECOND, Position
from queuey.model.messages import Location, NewMessage, PostKey, PostResult, Queue
from queuey.storage.sqlite import connection as driver
from queuey.storage.sqlite import row_codec
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.slice_reads import KEPT_TICKS

_SELECT_KEY = "SELECT content, locations FROM idempotency_keys WHERE qid = ? AND key = ? AND expires > ?"
_WRITE_KEY = "INSERT OR REPLACE INTO idempotency_keys (qid, key, content, locations, expires) VALUES (?, ?, ?, ?, ?)"

_encode_locations = msgspec.msgpack.Encoder().encode
_decode_locations = msgspec.msgpack.Decoder(list[Location]).decode
_MIN_WIDTH_BITS = 24
"""Min width of windows as a power of two: 2**24 ticks (1.7 s)."""


_ADD_TO_WINDOW = (
    "INSERT INTO expiry_windows (queue_partition, expired_by, message_count, first_ticks, last_ticks, longest_ttl) "
    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (queue_partition, expired_by) DO UPDATE SET "
    "message_count = message_count + ?7, first_ticks = min(first_ticks, excluded.first_ticks), "
    "last_ticks = max(last_ticks, excluded.last_ticks), longest_ttl = max(longest_ttl, excluded.longest_ttl) WHERE ?7 "
    "OR first_ticks > excluded.first_ticks OR last_ticks < excluded.last_ticks OR longest_ttl < excluded.longest_ttl"
)
"""Writes a row only if it is new, its bounds widen, or the sample has messages of it: a page less for most queues."""
_SAMPLE = 16
"""Number of messages of which one is counted, as this number, in a window that exists. From this number in one commit
on, all are."""
_REMOVE_FROM_WINDOW = (
    "UPDATE expiry_windows SET message_count = message_count - ?3 WHERE queue_partition = ?1 AND expired_by = coalesce("
    "(SELECT expired_by FROM expiry_windows WHERE queue_partition = ?1 AND expired_by = ?2), "
    "(SELECT min(expired_by) FROM expiry_windows WHERE queue_partition = ?1 AND expired_by > ?4))"
)
"""A message stored long after its id's time is in another window, usually the next one to end."""
Windows = dict[tuple[int, int], list[int]]
"""Changes of expiry windows, by ``qp`` and end: these two, the number of messages, their lowest and highest tick, and
the longest time from an id to the expiry of its message. The highest tick may be one that later messages reach."""


T = TypeVar("T")

_COLUMNS = 6
_MAX_INSERT_ROWS = 100
"""Max rows of an INSERT statement. One statement for many rows costs two thirds of single statements, and releases the
interpreter lock once instead of once per row. OR FAIL: an error undoes the transaction in any case, so SQLite need not
save the pages of each queue in a temporary file to undo the statement alone, a third of what it writes."""
_INSERT_ROWS = {
    n: "INSERT OR FAIL INTO messages (queue_partition, ticks, low, expires, body, meta) VALUES "  # noqa: S608 - constants only
    + ",".join(["(?,?,?,?,?,?)"] * n)
    for n in range(1, _MAX_INSERT_ROWS + 1)
}
_MIN_RUN = 8
"""Min average number of messages of a run, which is inserted by one statement."""
_INSERT_RUN = (
    "INSERT OR FAIL INTO messages (queue_partition, ticks, low, expires, body, meta) "
    "SELECT ?1, ?2 + rowid, ?3, ?2 + rowid + ?4, value, NULL FROM carray(?5)"
)
"""Inserts messages without metadata at half the cost per row. Rows of ``carray`` are numbered from 1."""
_INSERT_KEPT = (
    "INSERT INTO messages (queue_partition, ticks, low, expires, body, meta, stored_until) VALUES (?,?,?,?,?,?,?)"
)
MAX_AHEAD = TICKS_PER_SECOND
"""Max ticks by which ``after`` may be ahead of the clock. (An id made here may be further ahead.) Without this limit
one client could move the ids of all callers further and further into the future."""

_DELETE_MESSAGE = (
    "DELETE FROM messages WHERE queue_partition = ? AND ticks = ? AND low = ? "
    "RETURNING expires, coalesce(stored_until, expires)"
)


_HAS_MESSAGE_BETWEEN = (
    "SELECT 1 FROM messages WHERE queue_partition = ? AND (ticks, low) >= (?, ?) AND (ticks, low) <= (?, ?) LIMIT 1"
)

Row = tuple[int, int, int, int, str | bytes, bytes | None]
"""A row of ``messages``: qp, ticks, low, expires, body, meta."""

ClockRow = tuple[int, int, int | None, int]
"""A row of the query ``row_codec.SELECT_CLOCK``: last ticks, catalogue, next due time of a delayed message, next id."""


class Append(msgspec.Struct, gc=False):
    """New messages for one queue, stored all or none. With a key they are stored only once."""

    queue: Queue
    items: Sequence[NewMessage]
    after: Position | None = None
    key: PostKey | None = None


Run = tuple[int, int, int, Any]
"""Consecutive messages without metadata and with equal partition and TTL: partition, TTL, number, and bodies."""


def _split_into_runs(items: Sequence[NewMessage]) -> list[Run] | None:
    if driver.carray is None:
        return None
    starts: list[int] = []
    partition = ttl = 0
    for number, item in enumerate(items):
        if item.meta is not None or item.delay or item.kept:
            return None
        if item.partition != partition or item.ttl != ttl:
            partition, ttl = item.partition, item.ttl
            starts.append(number)
    if len(starts) * _MIN_RUN > len(items):
        return None
    runs: list[Run] = []
    try:
        for start, end in pairwise((*starts, len(items))):
            bodies = driver.carray(tuple([item.body for item in items[start:end]]))
            runs.append((items[start].partition, items[start].ttl, end - start, bodies))
    except (TypeError, ValueError):  # Text and bytes mixed, or text with a NUL.
        return None
    return runs


class Transaction:
    """A transaction between BEGIN IMMEDIATE and COMMIT.

    Args:
        connection: A connection in a write transaction.
        now: The clock, read under the write lock (ticks).
        low: The ``low`` of ids made here.
        clock: The row of the table ``clock`` if it is known not to have changed.

    Attributes:
        catalogue: The version of the catalogue.
        last: The highest id made so far by any process (ticks).
        touched: The ``qp`` of all partitions with new messages.
        messages: Number of appended messages.
        passed: Set at the end: True if ``last`` has passed ids that were ahead of it.
    """

    __slots__ = (
        "_added",
        "_clock_before",
        "_counts",
        "_delayed",
        "_delayed_low",
        "_due",
        "_kept",
        "_low",
        "_next_id",
        "_removed",
        "_row_values",
        "catalogue",
        "connection",
        "last",
        "messages",
        "now",
        "passed",
        "touched",
    )

    def __init__(self, connection: Connection, now: int, low: int, clock: ClockRow | None = None) -> None:
        self.connection = connection
        self.now = now
        self._low = low
        self._clock_before: ClockRow = clock or connection.execute(row_codec.SELECT_CLOCK).fetchone()  # type: ignore[assignment]
        self.last, self.catalogue, self._due, self._next_id = self._clock_before
        self._row_values: list[Any] = []
        """Values of collected rows, ``_COLUMNS`` for each."""
        self._kept: list[tuple[Any, ...]] = []
        """Collected rows of kept messages."""
        self._counts: dict[tuple[int, int], list[int]] = {}
        """Count, lowest and highest tick of collected rows, neither delayed nor kept, by ``qp`` and lifetime."""
        self._delayed: list[int] = []
        self._delayed_low = 0
        self._added: Windows = {}
        self._removed: Windows = {}
        self.touched: set[int] = set()
        self.messages = 0
        self.passed = False

    # Messages

    def append(self, append: Append) -> list[Position]:
        """Stores new messages with new ids; see the storage contract. Some rows wait for :meth:`flush`.

        Raises:
            QueueChanged: The queue's row is out of date. Nothing was stored.
            InvalidRequest: ``after`` is too far ahead. Nothing was stored.
        """
        queue = append.queue
        self.verify(queue)
        first = max(self.last + 1, self.now)
        if append.after is not None:
            first = max(first, self._find_tick_above(append.after))
        count = len(append.items)
        free_ticks: Iterable[int] = range(first, first + count)
        if self._delayed or self._due is not None:
            free_ticks = self._find_free_ticks(first, count)
        if count >= _MIN_RUN and isinstance(free_ticks, range) and (runs := _split_into_runs(append.items)) is not None:
            return self._append_runs(queue, runs, free_ticks[:count])
        ticks = iter(free_ticks)
        low = self._low
        base = queue.qid << 8
        parameters = self._row_values
        positions: list[Position] = []
        counts = self._counts
        for item in append.items:
            qp = base | item.partition
            span = item.ttl * TICKS_PER_SECOND
            meta = None if item.meta is None else row_codec.encode_meta(item.meta)
            if item.delay:
                position = self._make_delayed_position(first + int(item.delay * TICKS_PER_SECOND))
            else:
                self.last = tick = next(ticks)
                position = tick, low
            positions.append(position)
            if item.kept:
                self._add_kept((qp, *position, position[0] + span, item.body, meta), span)
                continue
            if item.delay:
                self._count(self._added, qp, span, position[0] + span, position[0], position[0], span)
                self.touched.add(qp)
            else:
                entry = counts.get((qp, span))
                if entry is None:
                    counts[qp, span] = [1, tick, tick]
                else:
                    entry[0] += 1
                    entry[2] = tick
            parameters += (qp, *position, position[0] + span, item.body, meta)
        self.messages += len(positions)
        if len(parameters) >= _COLUMNS * _MAX_INSERT_ROWS:
            self.flush(whole_chunks=True)
        return positions

    def _find_tick_above(self, after: Position) -> int:
        if after[0] > max(self.last, self.now + MAX_AHEAD):
            raise InvalidRequest({"after": "lies more than a second ahead of the clock"})
        return after[0] + 1

    def _append_runs(self, queue: Queue, runs: Sequence[Run], ticks: range) -> list[Position]:
        """Inserts each run by one statement, with consecutive ticks, at once. Returns the positions."""
        first = ticks.start
        for partition, ttl, count, bodies in runs:
            qp, span, last = queue.qid << 8 | partition, ttl * TICKS_PER_SECOND, first + count - 1
            self.connection.execute(_INSERT_RUN, (qp, first - 1, self._low, span, bodies))
            entry = self._counts.setdefault((qp, span), [0, first, last])
            entry[0] += count
            entry[2] = self.last = last
            first = last + 1
        self.messages += len(ticks)
        return list(zip(ticks, repeat(self._low)))

    def _add_kept(self, row: Row, span: int) -> None:
        qp, ticks, _, expires, _, _ = row
        stored_until = expires + KEPT_TICKS
        self._kept.append((*row, stored_until))
        self._count(self._added, qp, span + KEPT_TICKS, stored_until, ticks, ticks, span)
        self.touched.add(qp)

    def append_once(self, append: Append, key: PostKey) -> PostResult:
        """Stores messages and their key, unless the key shows that they were stored before.

        Raises:
            KeyReused: The key was used for another post. Nothing was stored.
            QueueChanged, InvalidRequest: See :meth:`append`. Nothing was stored.
        """
        self.verify(append.queue)
        connection, qid = self.connection, append.queue.qid
        row: Any = connection.execute(_SELECT_KEY, (qid, key.text, self.now)).fetchone()
        if row is not None:
            content, locations = row
            if content != key.content:
                raise KeyReused(key.text)
            return PostResult(_decode_locations(locations), replayed=True)
        positions = self.append(append)
        stored = [(item.partition, position) for item, position in zip(append.items, positions, strict=True)]
        expires = self.now + key.seconds * TICKS_PER_SECOND
        connection.execute(_WRITE_KEY, (qid, key.text, key.content, _encode_locations(stored), expires))
        return PostResult(stored, replayed=False)

    def _find_free_ticks(self, first: int, count: int) -> Iterable[int]:
        """Returns at least ``count`` ascending ticks from ``first`` on that no id given by a client uses.

        A client that knows an id of this process could otherwise PUT an id that is about to be made. All ids ahead of
        ``last`` are in the table ``delayed`` or were put by this transaction.
        """
        size = count
        while True:
            taken = {due for due in self._delayed if first <= due < first + size}
            if self._due is not None and self._due < first + size:
                bounds = (first, first + size - 1)
                rows: Any = self.connection.execute("SELECT ticks FROM delayed WHERE ticks BETWEEN ? AND ?", bounds)
                taken.update(ticks for (ticks,) in rows)
            if not taken:
                return range(first, first + size)
            if size - len(taken) >= count:
                return (tick for tick in range(first, first + size) if tick not in taken)
            # Doubled, so that a long sequence of used ticks is passed in a few steps.
            size = 2 * size + len(taken)

    def _make_delayed_position(self, due: int) -> Position:
        """Returns a position for a delayed message. ``due`` must be above ``last``.

        Ids of other transactions may have the same ticks. So ``low`` starts at a random number in each transaction; it
        is incremented for each message, so that messages with the same due time keep their order.
        """
        if not self._delayed_low:
            self._delayed_low = ids.random_low() & ~0xFFFF
        self._delayed_low += 1
        self._delayed.append(due)
        return due, self._delayed_low

    def put(self, qp: int, position: Position, lifetime: int, body: str | bytes, meta: bytes | None) -> None:
        """Stores a message at a given id, replacing a message there.

        ``lifetime`` (ticks) counts from the clock of ids or from the id's time, whichever is later.
        """
        self.flush()
        expires = max(self.last, position[0]) + lifetime
        self.remove([(qp, position)])
        self.connection.execute(_INSERT_ROWS[1], (qp, *position, expires, body, meta))
        self._count(self._added, qp, lifetime, expires, position[0], position[0], expires - position[0])
        self.touched.add(qp)
        if position[0] > self.last:
            self._delayed.append(position[0])

    def put_all(self, rows: Sequence[Row]) -> None:
        """Stores many messages at given ids, replacing messages there. No id may occur twice.

        Cheaper than :meth:`put` if no id is in use.
        """
        keys: dict[int, list[Position]] = {}
        for qp, ticks, low, expires, _, _ in rows:
            keys.setdefault(qp, []).append((ticks, low))
            self._count(self._added, qp, expires - max(self.now, ticks), expires, ticks, ticks, expires - ticks)
            if ticks > self.last:
                self._delayed.append(ticks)
        self.flush()
        for qp, positions in keys.items():
            if self.connection.execute(_HAS_MESSAGE_BETWEEN, (qp, *min(positions), *max(positions))).fetchall():
                self.remove([(qp, position) for position in positions])
        self.touched.update(keys)
        self._row_values = [value for row in rows for value in row]
        self.flush()

    def remove(self, keys: Iterable[tuple[int, Position]]) -> int:
        """Deletes messages by partition (``qp``) and id. Returns how many of them had not expired."""
        self.flush()
        alive = 0
        for qp, position in keys:
            removed: Any = self.connection.execute(_DELETE_MESSAGE, (qp, *position)).fetchall()
            for expires, goes in removed:
                alive += expires > self.now
                # As if it was stored at its id's time.
                self._count(self._removed, qp, goes - position[0], goes, goes, goes, 0)
        return alive

    def _count(
        self,
        windows: Windows,
        qp: int,
        lifetime: int,
        removed_at: int,
        first: int,
        last: int | None,
        span: int,
        count: int = 1,
    ) -> None:
        """Counts rows that are stored for ``lifetime`` and removed at ``removed_at`` (ticks) in their window.

        Windows are 1/16 to 1/8 of the lifetime wide, a power of two. ``first`` and ``last`` are the lowest and highest
        ticks of the messages; ``span`` is the longest time from an id to the expiry of its message. Without ``last``
        it is the highest tick that any message of this lifetime can have in the window: later ones do not change it.
        """
        width = max(_MIN_WIDTH_BITS, lifetime.bit_length() - 4)
        until = ((removed_at >> width) + 1) << width
        if last is None:
            last = until - lifetime - 1
        entry = windows.get((qp, until))
        if entry is None:
            windows[qp, until] = [qp, until, count, first, last, span]
            return
        entry[2] += count
        entry[3] = min(entry[3], first)
        entry[4] = max(entry[4], last)
        entry[5] = max(entry[5], span)

    def flush(self, *, whole_chunks: bool = False) -> None:
        """Inserts the collected rows and counts them in their windows. With ``whole_chunks`` a rest stays collected."""
        for (qp, span), (count, lowest, highest) in self._counts.items():
            # Rows across two windows are all counted in the later one, so the count of the earlier one is slightly low.
            self._count(self._added, qp, span, highest + span, lowest, None, span, count)
            self.touched.add(qp)
        self._counts.clear()
        if self._kept:
            self.connection.executemany(_INSERT_KEPT, self._kept)
            self._kept.clear()
        parameters = self._row_values
        if not parameters:
            return
        width = _COLUMNS * _MAX_INSERT_ROWS
        start = 0
        while len(parameters) - start >= width:
            self.connection.execute(_INSERT_ROWS[_MAX_INSERT_ROWS], parameters[start : start + width])
            start += width
        rest = len(parameters) - start
        if rest and not whole_chunks:
            self.connection.execute(_INSERT_ROWS[rest // _COLUMNS], parameters[start:])
            start += rest
        self._row_values = parameters[start:]

    # The catalogue

    def verify(self, queue: Queue) -> None:
        """Checks that a queue's row is current. Costs nothing if no queue has changed since the row was read.

        Raises:
            QueueChanged: The row is out of date.
        """
        if queue.version != self.catalogue:
            row_codec.verify(self.connection, queue)

    @property
    def last_before(self) -> int:
        """:attr:`last` at the begin of the transaction."""
        return self._clock_before[0]

    def bump_catalogue_version(self) -> int:
        """Marks all queue rows read before as possibly out of date. Returns the new version of the catalogue."""
        self.catalogue += 1
        return self.catalogue

    def make_queue_number(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    # The transaction itself

    def run_isolated(self, work: Callable[[Transaction], T]) -> T:
        """Runs ``work``. If it raises, its effects are undone, and those of the other operations of the group stay."""
        self.flush()
        before = (self.last, self.catalogue, self._next_id, list(self._delayed), set(self.touched), self.messages)
        windows = [{key: list(entry) for key, entry in counts.items()} for counts in (self._added, self._removed)]
        self.connection.execute("SAVEPOINT one")
        try:
            result = work(self)
            self.flush()
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK TO one")
                self.connection.execute("RELEASE one")
            self.last, self.catalogue, self._next_id, self._delayed, self.touched, self.messages = before
            self._added, self._removed = windows
            self._row_values, self._kept, self._counts = [], [], {}  # Nothing was collected before.
            raise
        self.connection.execute("RELEASE one")
        return result

    def advance(self) -> int:
        """Advances ``last`` to the clock, because a reader is about to read ids up to there. Returns ``last``."""
        self.last = max(self.last, self.now)
        return self.last

    def write_collected(self) -> ClockRow | None:
        """Writes collected changes. The next statement must be COMMIT.

        Returns:
            The row of ``clock``, or None if it is not known without reading it.
        """
        self.flush()
        if self._added:
            for entry in self._added.values():
                count = entry[2]
                entry.append(count if count >= _SAMPLE else _SAMPLE if random() * _SAMPLE < count else 0)  # noqa: S311
            self.connection.executemany(_ADD_TO_WINDOW, self._added.values())
        if self._removed:
            self.connection.executemany(_REMOVE_FROM_WINDOW, [entry[:4] for entry in self._removed.values()])
        ahead: list[int] = []
        if self._delayed and (ahead := [due for due in self._delayed if due > self.last]):
            self.connection.executemany("INSERT OR IGNORE INTO delayed (ticks) VALUES (?)", [(due,) for due in ahead])
        self.passed = self._due is not None and self._due <= self.last
        if self.passed:
            self.connection.execute("DELETE FROM delayed WHERE ticks <= ?", (self.last,))
        if (self.last, self.catalogue, self._due, self._next_id) != self._clock_before:
            changed = (self.last, self.catalogue, self._next_id)
            self.connection.execute(
                "UPDATE clock SET last_ticks = ?, catalogue_version = ?, next_queue_id = ?", changed
            )
        if self.passed:
            return None
        if self._due is not None:
            ahead.append(self._due)
        return self.last, self.catalogue, min(ahead, default=None), self._next_id
