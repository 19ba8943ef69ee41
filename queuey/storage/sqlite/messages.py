"""Messages of the embedded store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from operator import attrgetter
from time import monotonic
from typing import Any

from queuey.model import ids
from queuey.model.errors import StoreBusy
from queuey.model.ids import TICKS_PER_SECOND, Position
from queuey.model.messages import (
    Lag,
    Message,
    NewMessage,
    Page,
    PartitionBounds,
    PostKey,
    PostResult,
    Queue,
    Slice,
    body_bytes,
    bytes_of,
)
from queuey.storage import KeyedPosts, Messages
from queuey.storage.bridge import thread_state
from queuey.storage.new_messages import check_and_weigh, check_partition, check_text
from queuey.storage.partition_watches import Wake
from queuey.storage.sqlite import row_codec
from queuey.storage.sqlite.committed_arrivals import CommittedArrivals
from queuey.storage.sqlite.connection import READ_PAUSE, Connection, TooLong
from queuey.storage.sqlite.database import Database, threaded
from queuey.storage.sqlite.slice_reads import (
    estimate_live,
    find_lowest_live,
    include_kept,
    read_live_windows,
    read_slice,
    to_messages,
)
from queuey.storage.sqlite.transaction import Append, Transaction

MAX_LOOP_MESSAGES = 1000
"""Max messages of a read that is tried in the loop's thread."""
MAX_COUNTED = 10_000
"""Max messages that are counted exactly; larger counts are estimated from the expiry windows."""
_MAX_LONG_PARTITIONS = 1000
"""Max partitions remembered because their reads take too long."""

_get_partition, _get_max_bytes = attrgetter("partition"), attrgetter("max_bytes")
_SELECT_MESSAGE = (
    "SELECT ticks, low, expires, body, meta FROM messages WHERE queue_partition = ? AND ticks = ? AND low = ? "
    "AND expires > ?"
)
_SELECT_KEPT_MESSAGE = include_kept(_SELECT_MESSAGE)
_COUNT_ABOVE = (
    "SELECT count(*) FROM (SELECT 1 FROM messages "
    "WHERE queue_partition = ? AND (ticks, low) > (?, ?) AND ticks < ? AND expires > ? LIMIT ?)"
)
_SELECT_FIRST_ORDERED = (
    "SELECT ticks, low FROM messages WHERE queue_partition = ? AND ticks >= ? AND expires > ? ORDER BY ticks {0}, "
    "low {0} LIMIT 1"
)
_SELECT_OLDEST = _SELECT_FIRST_ORDERED.format("ASC")
_SELECT_NEWEST = _SELECT_FIRST_ORDERED.format("DESC")
_SELECT_FIRST_ABOVE = (
    "SELECT ticks FROM messages WHERE queue_partition = ? AND (ticks, low) > (?, ?) AND ticks < ? AND expires > ? "
    "ORDER BY ticks, low LIMIT 1"
)


class SqliteMessages(Messages, KeyedPosts):
    """Messages in SQLite, with and without keys of their posts.

    On an event loop, a read of one short slice is first tried in the loop's thread. Puts advance the clock of ids.
    """

    exact_horizon = True

    def __init__(self, database: Database, arrivals: CommittedArrivals) -> None:
        self._db = database
        self._arrivals = arrivals
        self._long_until: dict[int, float] = {}
        """Monotonic time until which no read of a partition (``qp``) is tried in the loop's thread."""

    def append(
        self, queue: Queue, items: Sequence[NewMessage], *, after: Position | None = None
    ) -> Coroutine[Any, Any, list[Position]]:
        return self._db.write(Append(queue, items, after), check_and_weigh(queue, items))

    def append_once(
        self, queue: Queue, items: Sequence[NewMessage], key: PostKey, *, after: Position | None = None
    ) -> Coroutine[Any, Any, PostResult]:
        return self._db.write(Append(queue, items, after, key), check_and_weigh(queue, items))

    async def put(self, queue: Queue, locations: Sequence[tuple[int, Position]], item: NewMessage) -> None:
        for partition, _ in locations:
            check_partition(queue, partition)
        check_text(item.body)
        base = queue.qid << 8
        meta = row_codec.encode_meta(item.meta)
        lifetime = item.ttl * TICKS_PER_SECOND

        def work(transaction: Transaction) -> None:
            transaction.verify(queue)
            # Otherwise ids up to now would count as ahead of the clock.
            transaction.advance()
            for partition, position in locations:
                transaction.put(base | partition, position, lifetime, item.body, meta)

        await self._db.write(work, weight=len(locations) * body_bytes(item.body))

    @threaded
    def fetch(self, queue: Queue, locations: Sequence[tuple[int, Position]], *, kept: bool = False) -> list[Message]:
        messages: list[Message] = []
        query = _SELECT_KEPT_MESSAGE if kept else _SELECT_MESSAGE
        now = self._db.clock()
        with self._db.readers.lend() as connection:
            self._db.verify(connection, queue)
            for partition, position in locations:
                if 0 < partition <= queue.partitions:
                    row = connection.execute(query, (queue.qid << 8 | partition, *position, now)).fetchall()
                    messages += to_messages(row, partition)
        return messages

    async def delete(self, queue: Queue, locations: Iterable[tuple[int, Position]]) -> int:
        base = queue.qid << 8
        keys = [(base | partition, position) for partition, position in locations if 0 < partition <= queue.partitions]

        def work(transaction: Transaction) -> int:
            transaction.verify(queue)
            return transaction.remove(keys)

        return await self._db.write(work)

    async def read(self, queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        # A short read is tried in the loop's thread, unless one of this partition has just taken too long. Not in a
        # thread that may block (see `bridge`): there `_read` reads at once.
        if not thread_state.may_block and len(slices) == 1 and slices[0].limit <= MAX_LOOP_MESSAGES:
            key = queue.qid << 8 | slices[0].partition
            if not self._long_until or monotonic() >= self._long_until.get(key, 0.0):
                try:
                    return self._db.readers.read_without_waiting(partial(self._read_pages, queue, slices, wait=False))
                except TooLong:
                    if len(self._long_until) >= _MAX_LONG_PARTITIONS:
                        self._long_until.clear()
                    self._long_until[key] = monotonic() + READ_PAUSE
                except StoreBusy:
                    pass
        return await self._read(queue, slices)

    @threaded
    def _read(self, queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        with self._db.readers.lend() as connection:
            return self._read_pages(queue, slices, connection)

    def _read_pages(
        self, queue: Queue, slices: Sequence[Slice], connection: Connection, *, wait: bool = True
    ) -> list[Page]:
        """Reads slices in order until the sum of their ``max_bytes`` is used up. The remaining slices are put off.

        Without ``wait`` raises ``StoreBusy`` if the clock must be advanced.
        """
        safe = sample_horizon(self._db, connection, queue, list(map(_get_partition, slices)), wait=wait)
        now = self._db.clock()
        pages: list[Page] = []
        remaining_bytes = sum(map(_get_max_bytes, slices))
        for piece in slices:
            horizon = safe
            if queue.read_delay and piece.keeps_read_delay and not piece.ahead:
                horizon = apply_read_delay(queue, safe, now)
            if remaining_bytes <= 0:
                pages.append(piece.make_postponed_page(horizon))
                continue
            qp = queue.qid << 8 | piece.partition if 0 < piece.partition <= queue.partitions else -1
            pages.append(page := read_slice(connection, qp, piece, horizon, now))
            if piece.bodies and len(slices) > 1:
                remaining_bytes -= bytes_of(page.messages)
        return pages

    @threaded
    def inspect(
        self,
        queue: Queue,
        *,
        rough: bool = False,  # noqa: ARG002 - counts are bounded in any case
    ) -> tuple[int, list[PartitionBounds]]:
        with self._db.readers.lend() as connection:
            horizon = sample_horizon(self._db, connection, queue)
            now = self._db.clock()
            partitions = [
                self._inspect_partition(connection, queue.qid << 8 | partition, partition, now)
                for partition in range(1, queue.partitions + 1)
            ]
        return apply_read_delay(queue, horizon, now), partitions

    def _inspect_partition(self, connection: Connection, qp: int, partition: int, now: int) -> PartitionBounds:
        alive = find_lowest_live(connection, qp, now)
        if alive is None:
            return PartitionBounds(partition, 0, exact=True, oldest=None, newest=None)
        count, exact = _count_live(connection, qp, (alive - 1, ids.LOW_MAX), ids.TICKS_MAX + 1, now)
        oldest: Any = connection.execute(_SELECT_OLDEST, (qp, alive, now)).fetchone()
        newest: Any = connection.execute(_SELECT_NEWEST, (qp, alive, now)).fetchone()
        return PartitionBounds(partition, count, exact=exact, oldest=oldest, newest=newest)

    @threaded
    def lag(self, queue: Queue, offsets: Sequence[tuple[int, Position | None]]) -> list[Lag]:
        lags: list[Lag] = []
        with self._db.readers.lend() as connection:
            safe = sample_horizon(self._db, connection, queue)
            now = self._db.clock()
            horizon = apply_read_delay(queue, safe, now)
            for partition, offset in offsets:
                qp = queue.qid << 8 | partition if 0 < partition <= queue.partitions else -1
                alive = find_lowest_live(connection, qp, now)
                if alive is None:
                    lags.append(Lag(0, exact=True, seconds=0.0))
                    continue
                above = max(offset or ids.FIRST, (alive - 1, ids.LOW_MAX))
                count, exact = _count_live(connection, qp, above, horizon, now)
                first: Any = connection.execute(_SELECT_FIRST_ABOVE, (qp, *above, horizon, now)).fetchone()
                seconds = 0.0 if first is None else max(0, now - first[0]) / TICKS_PER_SECOND
                lags.append(Lag(count, exact=exact, seconds=seconds))
        return lags

    def watch(
        self, queue: Queue, partition: int, wake: Wake, *, keeps_read_delay: bool = True, early: bool = False
    ) -> Callable[[], None]:
        return self._arrivals.watch(queue, partition, wake, keeps_read_delay=keeps_read_delay, early=early)

    def share_news(self, stored: Callable[[int, Collection[int]], None], wanted: Callable[[], None]) -> None:
        self._arrivals.share_news(stored, wanted)

    def hear_news(self, moment: int, partitions: Iterable[int]) -> bool:
        return self._arrivals.receive_news(moment, partitions)


def sample_horizon(
    database: Database, connection: Connection, queue: Queue, numbers: Iterable[int] | None = None, *, wait: bool = True
) -> int:
    """Checks that a queue's row is current. Returns the horizon without the read delay.

    Advances the clock first if a delayed message of these partitions has become due.

    Raises:
        QueueChanged: The row is out of date.
        StoreBusy: The clock must be advanced, and ``wait`` is false.
    """
    last, catalogue = database.read_clock(connection, queue, numbers, wait=wait)
    if queue.version != catalogue:
        row_codec.verify(connection, queue)
    return last + 1


def _count_live(connection: Connection, qp: int, above: Position, horizon: int, now: int) -> tuple[int, bool]:
    row: Any = connection.execute(_COUNT_ABOVE, (qp, *above, horizon, now, MAX_COUNTED + 1)).fetchone()
    count: int = row[0]
    if count <= MAX_COUNTED:
        return count, True
    return max(count, estimate_live(read_live_windows(connection, qp, now), now, above[0])), False


def apply_read_delay(queue: Queue, horizon: int, now: int) -> int:
    return min(horizon, now - int(queue.read_delay * TICKS_PER_SECOND)) if queue.read_delay else horizon
