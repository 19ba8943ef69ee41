"""Whole ranges out of the embedded store and into it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from queuey import ids
from queuey.errors import TooLate
from queuey.ids import Position
from queuey.messages import Measure, Message, Queue, Slice
from queuey.storage import items as items_of
from queuey.storage.sqlite import row_codec
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.messages import SqliteMessages, behind
from queuey.storage.sqlite.read import statistics
from queuey.storage.sqlite.read.live_keys import live_keys
from queuey.storage.sqlite.read.slices import RANGE, bounds
from queuey.storage.sqlite.write.transaction import Row, Transaction

if TYPE_CHECKING:
    from pyarrow import RecordBatch

LOADED_AT_ONCE = 1000
_STEP = 64
"""Max rows between checks of the size of a batch."""
_TAKE = [itemgetter(number) for number in range(6)]
_BODY = 3

# Bodies as blobs: text would be decoded only to be encoded again.
_ROWS = (
    f"SELECT ticks, low, expires, CAST(body AS BLOB), typeof(body) = 'text', meta {RANGE} ORDER BY ticks, low LIMIT ?"
)


class SqliteBulk(SqliteMessages):
    def horizon(self, queue: Queue) -> int:
        with self._db.readers.reading() as connection:
            safe = self._sample(connection, queue)
        return behind(queue, safe, self._db.clock())

    def scan_arrow(self, queue: Queue, part: Slice, *, bodies: bool = True) -> Iterator[RecordBatch]:
        from queuey.storage import columns  # noqa: PLC0415 - needs Arrow, which only pipelines install

        more = True
        while more:
            values, more = self._columns(queue, part, bodies=bodies)
            if not values[0]:
                return
            part = msgspec.structs.replace(part, lower=ids.following((values[0][-1], values[1][-1])))
            if bodies:
                values[4:] = [list(map(columns.marked, values[4], values[5]))]
            yield columns.batch_from(*values)

    def _columns(self, queue: Queue, part: Slice, *, bodies: bool) -> tuple[list[list[Any]], bool]:
        """Reads the first rows of a slice; returns their columns and whether there may be more."""
        limit = max(0, part.limit)
        with self._db.readers.reading() as connection:
            where = self._where(connection, queue, part)
            if bodies:
                return _gathered(connection.execute(_ROWS, (*where, limit)), limit, part.max_bytes)
            found: list[list[int]] = [[], [], []]
            for keys in live_keys(connection, *where, limit=limit):
                for take, column in zip(_TAKE[1:4], found, strict=True):
                    column.extend(map(take, keys))
        return found, len(found[0]) >= limit

    def _where(self, connection: Connection, queue: Queue, part: Slice) -> tuple[int, int, int, int, int, int]:
        """Returns the parameters of ``RANGE`` for a slice: partition, lower and upper position, now."""
        safe = self._sample(connection, queue)
        now = self._db.clock()
        qp = queue.qid << 8 | part.partition if 0 < part.partition <= queue.partitions else -1
        lower, upper = bounds(connection, qp, part, behind(queue, safe, now) if part.delayed else safe, now)
        return (qp, *lower, *upper, now)

    def extent(self, queue: Queue, part: Slice) -> tuple[int, Position]:
        count = 0
        end = part.lower
        with self._db.readers.reading() as connection:
            where = self._where(connection, queue, part)
            for keys in live_keys(connection, *where, limit=part.limit):
                count += len(keys)
                end = ids.following(keys[-1][1:3])
        return count, end if count >= part.limit else max(part.lower, where[3:5])

    def measure(self, queues: Sequence[Queue]) -> Iterator[list[Measure]]:
        yield from statistics.measure(self._db, queues)

    def load(self, queue: Queue, messages: Iterable[Message]) -> int:
        written = 0
        left = iter(messages)
        while some := list(islice(left, LOADED_AT_ONCE)):
            _check(queue, some)

            def work(transaction: Transaction, some: list[Message] = some) -> int:
                transaction.verify(queue)
                return _load(transaction, queue, some)

            written += self._db.writer.perform(work)
        return written

    def load_unread(self, queue: Queue, messages: Sequence[Message]) -> int:
        messages = list(messages)
        _check(queue, messages)
        lowest = min((message.ticks for message in messages), default=None)

        def work(transaction: Transaction) -> int:
            transaction.verify(queue)
            if lowest is None:
                return 0
            if lowest <= transaction.last:
                raise TooLate(written=False)
            return _load(transaction, queue, messages)

        return self._db.writer.perform(work)


def _gathered(cursor: Iterator[Any], limit: int, max_bytes: int) -> tuple[list[list[Any]], bool]:
    """Collects rows until one of the two bounds; returns their columns and whether a bound was met.

    Rows are taken apart a few at a time: thousands of them would set off the garbage collector.
    """
    columns: list[list[Any]] = [[] for _ in _TAKE]
    left = max(1, max_bytes)
    step = 1
    while left > 0 and (chunk := list(islice(cursor, step))):
        size = sum(map(len, map(_TAKE[_BODY], chunk)))
        if size >= left:
            chunk = chunk[: _reaching(chunk, left)]
        left -= size
        # No more than fits if bodies go on like these: long ones would be read again and again.
        step = min(_STEP, max(1, left * step // max(1, size)))
        for take, column in zip(_TAKE, columns, strict=True):
            column.extend(map(take, chunk))
    return columns, left <= 0 or len(columns[0]) >= limit


def _reaching(chunk: list[Any], size: int) -> int:
    """Returns how many rows it takes until their bodies are of a size, all if they are not."""
    ends = accumulate(len(row[_BODY]) for row in chunk)
    return next((number for number, end in enumerate(ends, 1) if end >= size), len(chunk))


def _check(queue: Queue, messages: Sequence[Message]) -> None:
    for message in messages:
        items_of.check_partition(queue, message.partition)
        items_of.check_text(message.body)


def _load(transaction: Transaction, queue: Queue, messages: Sequence[Message]) -> int:
    """Stores messages at their ids; returns how many were alive."""
    # So that ids up to now are not ahead of the clock.
    transaction.advance()
    alive = [message for message in messages if message.expires > transaction.now]
    base = queue.qid << 8
    # By id, so that of several messages for one id the last one stays.
    found: dict[tuple[int, int, int], Row] = {}
    for one in alive:
        key = (base | one.partition, one.ticks, one.low)
        found[key] = (*key, one.expires, one.body, row_codec.encode_meta(one.meta))
    transaction.put_all(list(found.values()))
    return len(alive)
