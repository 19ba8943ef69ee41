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
from queuey.storage.sqlite import measuring, rows
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.messages import SqliteMessages, behind
from queuey.storage.sqlite.reading import RANGE, bounds
from queuey.storage.sqlite.transaction import Transaction

if TYPE_CHECKING:
    from pyarrow import RecordBatch

LOADED_AT_ONCE = 1000
_STEP = 64
"""Rows between looks at the size of a batch."""
_TAKE = [itemgetter(number) for number in range(6)]
_BODY = 3

# Bodies as blobs: text would be decoded only to be encoded again. They come after ``expires`` in a row, so that what
# lies on further pages of a long one is not read without need.
_PLACES = f"SELECT ticks, low, expires {RANGE} ORDER BY ticks, low LIMIT ?"
_ROWS = (
    f"SELECT ticks, low, expires, CAST(body AS BLOB), typeof(body) = 'text', meta {RANGE} ORDER BY ticks, low LIMIT ?"
)
_NTH = f"SELECT ticks, low {RANGE} ORDER BY ticks, low LIMIT 1 OFFSET ?"
_COUNT = f"SELECT count(*) {RANGE}"


class SqliteBulk(SqliteMessages):
    """The bulk contract on SQLite."""

    def horizon(self, queue: Queue) -> int:
        """See the contract."""
        with self._db.readers.reading() as connection:
            safe = self._sample(connection, queue)
        return behind(queue, safe, self._db.clock())

    def scan_arrow(self, queue: Queue, part: Slice, *, bodies: bool = True) -> Iterator[RecordBatch]:
        """See the contract. Each batch is a read of its own, so that no snapshot is held while one is used."""
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
        with self._db.readers.reading() as connection:
            where = self._where(connection, queue, part)
            cursor = connection.execute(_ROWS if bodies else _PLACES, (*where, max(0, part.limit)))
            return _gathered(cursor, 6 if bodies else 3, part.limit, part.max_bytes)

    def _where(self, connection: Connection, queue: Queue, part: Slice) -> tuple[int, int, int, int, int, int]:
        """Returns the parameters of ``RANGE`` for a slice."""
        safe = self._sample(connection, queue)
        now = self._db.clock()
        qp = queue.qid << 8 | part.partition if 0 < part.partition <= queue.partitions else -1
        lower, upper = bounds(connection, qp, part, behind(queue, safe, now) if part.delayed else safe, now)
        return (qp, *lower, *upper, now)

    def reach(self, queue: Queue, part: Slice) -> tuple[int, Position]:
        """See the contract."""
        if part.limit <= 0:
            return 0, part.lower
        with self._db.readers.reading() as connection:
            where = self._where(connection, queue, part)
            last: Any = connection.execute(_NTH, (*where, part.limit - 1)).fetchone()
            if last is not None:
                return part.limit, ids.following(last)
            count: Any = connection.execute(_COUNT, where).fetchone()
        return count[0], max(part.lower, where[3:5])

    def measure(self, queues: Sequence[Queue]) -> Iterator[list[Measure]]:
        """See the contract. Everything is counted, so measures are exact."""
        yield from measuring.measure(self._db, queues)

    def load(self, queue: Queue, messages: Iterable[Message]) -> int:
        """See the contract. Each thousand is one transaction."""
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
        """See the contract. One transaction, in which ``last`` is what any reader of any process may have passed."""
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


def _gathered(cursor: Iterator[Any], width: int, limit: int, max_bytes: int) -> tuple[list[list[Any]], bool]:
    """Takes rows until one of the two bounds; returns their columns and whether a bound was met.

    Rows are taken apart a few at a time: to hold thousands of them would set off the collector of garbage.
    """
    columns: list[list[Any]] = [[] for _ in range(width)]
    left = max(1, max_bytes)
    while left > 0 and (chunk := list(islice(cursor, _STEP))):
        if width > _BODY:
            size = sum(map(len, map(_TAKE[_BODY], chunk)))
            if size >= left:
                chunk = chunk[: _reaching(chunk, left)]
            left -= size
        for take, column in zip(_TAKE, columns, strict=False):
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
    # So that watchers in other processes notice ids that lie below those minted before.
    transaction.advance()
    alive = [message for message in messages if message.expires > transaction.now]
    for message in alive:
        lifetime = message.expires - max(transaction.now, message.ticks)
        meta = rows.encode_meta(message.meta)
        transaction.put(queue.qid << 8 | message.partition, message.position, lifetime, message.body, meta)
    return len(alive)
