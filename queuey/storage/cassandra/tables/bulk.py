"""Reads and loads of whole ranges in Cassandra."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from queuey.model import ids
from queuey.model.errors import StoreUnavailable, TooLate
from queuey.model.ids import LOW_MIN, Position
from queuey.model.messages import Measure, Message, Queue, Slice
from queuey.storage import Bulk, Messages, range_scans
from queuey.storage.cassandra.catalogue.queue_cache import CachedQueue
from queuey.storage.cassandra.cluster import InDoubt
from queuey.storage.cassandra.cluster.store_loop import store_call
from queuey.storage.cassandra.read.slice_reads import Gathered
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.statements.consistency_levels import ResolvedLevel
from queuey.storage.cassandra.statements.message_codec import NamedMessage
from queuey.storage.cassandra.tables import names
from queuey.storage.cassandra.tables.connected import StoreParts
from queuey.storage.cassandra.tables.counting import Counting
from queuey.storage.cassandra.tables.messages import SliceRead, SliceReader
from queuey.storage.cassandra.time.clock import ticks
from queuey.storage.deadlines import in_thread, iterate_in_thread
from queuey.storage.new_messages import check_partition

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from queuey.storage.arrow_format import MessageColumns
    from queuey.storage.cassandra.read.arrow_scan import Columns
    from queuey.storage.cassandra.write.bulk_load import Loader

T = TypeVar("T")

LOADED_AT_ONCE = 5000
"""Max messages that a load divides among buckets at a time."""
MAX_PAGE_BYTES = 64 << 20
"""Max bytes of one page of a bucket, were all its rows as long as the queue's longest."""


class CassandraBulk(Bulk):
    """Bulk access on Cassandra. Scans and loads check before each piece that the queue has not changed."""

    def __init__(self, parts: StoreParts, reader: SliceReader, counting: Counting, messages: Messages) -> None:
        self._parts = parts
        self._driver = parts.driver
        self._clock = parts.clock
        self._timing = parts.timing
        self._levels = parts.levels
        self._rows = parts.rows
        self._bucket_index = parts.bucket_index
        self._generator = parts.generator
        self._stamps = parts.stamps
        self._watch = parts.watch
        self._reader = reader
        self._counting = counting
        self._messages = messages

    def scan(self, queue: Queue, part: Slice) -> AsyncIterator[list[Message]]:
        return range_scans.scan(self._messages, queue, part)

    def measure(self, queues: Sequence[Queue]) -> AsyncIterator[list[Measure]]:
        return iterate_in_thread(self._counting.measure(queues))

    def scan_arrow(self, queue: Queue, part: Slice, *, bodies: bool = True) -> AsyncIterator[RecordBatch]:
        return iterate_in_thread(self._scan_arrow(queue, part, bodies=bodies))

    async def extent(self, queue: Queue, part: Slice) -> tuple[int, Position]:
        return await in_thread(partial(self._find_extent, queue, part))

    async def load(self, queue: Queue, messages: Iterable[Message]) -> int:
        return await in_thread(partial(self._load, queue, messages))

    async def load_unread(self, queue: Queue, messages: Sequence[Message]) -> int:
        return await in_thread(partial(self._load_unread, queue, messages))

    @store_call()
    async def horizon(self, queue: Queue) -> int:
        # Sends no request while the cached row of the queue is recent enough.
        start = await self._reader.start_read(queue, [Slice(1)])
        await self._rows.find_current(queue)
        return start.horizons[0]

    def _scan_arrow(self, queue: Queue, part: Slice, *, bodies: bool = True) -> Iterator[RecordBatch]:
        # The horizon is chosen once, when the scan begins.
        for columns, _ in self._read_columns(queue, part, bodies=bodies):
            for start in range(0, len(columns), max(1, part.limit)):
                self._run(self._rows.find_current(queue))
                yield columns.batch.slice(start, part.limit)

    def _find_extent(self, queue: Queue, part: Slice) -> tuple[int, Position]:
        """Returns the number of messages, ``part.limit`` at most, and the position after the last one."""
        count, position = 0, part.lower
        for columns, end in self._read_columns(queue, part, bodies=False):
            missing = part.limit - count
            if len(columns) >= missing:
                last = columns.slice(missing - 1, missing)
                return part.limit, ids.following((int(last.ticks[0]), int(last.low[0])))
            count, position = count + len(columns), end
        return count, position

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._driver.calls.run(work)

    def _read_columns(self, queue: Queue, part: Slice, *, bodies: bool) -> Iterator[tuple[Columns, Position]]:
        """Reads a slice upwards.

        Yields:
            Live messages, possibly none, and the position up to which the slice has been read.
        """
        from queuey.storage.cassandra.read import arrow_scan  # noqa: PLC0415 - needs Arrow, which only pipelines install

        start = self._run(self._reader.start_read(queue, [part]))
        row = self._run(self._rows.find_current(queue, since=start.since))
        upper = max(part.lower, min(part.upper, (start.horizons[0], LOW_MIN)))
        if not 0 < part.partition <= row.queue.partitions or part.limit <= 0:
            yield arrow_scan.NOTHING[bodies], upper
            return
        key = (row.queue.qid, part.partition)
        note = self._reader.record_empty(start)
        max_rows = min(part.limit, max(1, MAX_PAGE_BYTES // row.longest_row)) if bodies else part.limit
        reading = arrow_scan.ScanContext(self._driver, key, start.level.reads, bodies, max_rows, part.max_bytes, note)
        pace = arrow_scan.Pace(reading)
        position = part.lower
        while position < upper:
            remaining_slice = msgspec.structs.replace(part, lower=position)
            read = SliceRead(remaining_slice, upper)
            self._run(self._reader.find_lookups(row, [read], start))
            extent = self._reader.find_extent(row, read.lookup, remaining_slice, upper, self._clock.now())
            for columns, end in arrow_scan.scan(reading, extent, pace):
                self._run(self._rows.find_current(queue))
                yield self._show_values(row.queue, part, arrow_scan.select_alive(columns, self._clock.now())), end
            position = extent.upper
            yield arrow_scan.NOTHING[bodies], position

    def _show_values(self, queue: Queue, part: Slice, columns: Columns) -> Columns:
        from queuey.storage.cassandra.read import arrow_scan  # noqa: PLC0415 - as above

        named = arrow_scan.find_named(columns)
        if not named:
            return columns
        messages: list[Message] = [
            NamedMessage(int(columns.ticks[row]), int(columns.low[row]), part.partition, 0, b"", None, name or "")
            for row, (name, _) in named.items()
        ]
        find = names.find_values(self._parts, queue, message_codec.collect_marked(messages))
        values = self._run(find)
        shown_messages = names.show_values(Gathered(messages, part.lower, more=False), values, waits=False).messages
        shown = {message.position for message in shown_messages}
        rows = {row for row, message in zip(named, messages, strict=True) if message.position in shown}
        return arrow_scan.select_shown(columns, named, rows)

    def _load(self, queue: Queue, messages: Iterable[Message]) -> int:
        # Loaded messages go to separate buckets, as put messages do (see :mod:`..write.bulk_load`).
        from queuey.storage import arrow_format  # noqa: PLC0415 - needs Arrow, which only pipelines install

        self._run(self._watch.require_sound())
        loader = self._make_loader(self._run(self._rows.find_current(queue)))
        written = 0
        for piece in arrow_format.split_into_chunks(messages, LOADED_AT_ONCE):
            self._cover_loaded(self._run(self._rows.find_current(queue)), piece, given=True)
            written += loader.write(piece)
        return written

    def _load_unread(self, queue: Queue, messages: Sequence[Message]) -> int:
        """Writes in time for all readers, or raises TooLate. After other errors, some may be written."""
        # :func:`window` decides when it is too late. After any other error some of the messages may be written.
        from queuey.storage import arrow_format  # noqa: PLC0415 - needs Arrow, which only pipelines install
        from queuey.storage.cassandra.write.bulk_load import stamps_at  # noqa: PLC0415 - likewise

        self._run(self._watch.require_sound())
        row = self._run(self._rows.find_current(queue))
        loaded = arrow_format.columns_of(messages)
        self._cover_loaded(row, loaded)
        if not loaded:
            return 0
        lowest = int(loaded.ticks.min())
        within = self._window(queue, lowest)
        now, began = self._clock.now_and_boottime()
        if now >= within.begin:
            raise TooLate(written=False)
        loader = self._make_loader(row)
        placed = loader.place(loaded, now)
        loader.record_buckets(placed)
        self._run(self._rows.find_current(queue))
        if self._clock.now() >= within.begin:
            raise TooLate(written=False)

        # The write timestamps are older than the check above. So if a later call fails this check, its deletes win over
        # rows of this call that are still in flight, wherever this process stops.
        written = loader.send(placed, now, partial(stamps_at, now, self._stamps.max_ticks_ahead))
        ended, arrived = self._clock.now_and_boottime()
        try:
            self._run(self._watch.confirm(arrived))
        except StoreUnavailable as refused:
            raise InDoubt(str(refused)) from refused
        # Readers may use other timing parameters than when the load began.
        if ended > min(within.end, self._window(queue, lowest).end) or not self._watch.is_timed_correctly_since(began):
            raise TooLate(written=True)
        return written

    def _window(self, queue: Queue, lowest: int) -> Window:
        self._run(self._watch.require_sound())
        assumed = self._timing.stored.assumed
        delay, difference = self._levels.delay(queue), assumed.clock_difference
        return window(lowest, self._levels.resolve(queue), delay, difference=difference, age=assumed.row_age)

    def _make_loader(self, row: CachedQueue) -> Loader:
        from queuey.storage.cassandra.write.bulk_load import Loader  # noqa: PLC0415 - needs Arrow

        return Loader(self._driver, self._bucket_index, row, self._levels.resolve(row.queue), self._clock, self._stamps)

    def _cover_loaded(self, row: CachedQueue, messages: MessageColumns, *, given: bool = False) -> None:
        """Refuses messages that cannot be loaded, and extends the queue's row to cover the others.

        Also keeps this process from making their ids. ``given``: readers' horizons may have passed their ids.
        """
        from queuey.storage.cassandra.write.bulk_load import find_longest_row  # noqa: PLC0415 - needs Arrow

        for partition in set(messages.partitions.tolist()):
            check_partition(row.queue, partition)
        self._run(self._rows.cover(row, (), find_longest_row(messages), given=given))
        own_low = self._generator.low
        if (messages.low == own_low).any():
            self._generator.avoid_low(own_low)


class Window(NamedTuple):
    """Deadlines for a write at ids that no reader has passed (ticks): when it must have begun, and when it must end."""

    begin: int
    end: int


def window(lowest: int, level: ResolvedLevel, delay: float, *, difference: float, age: float) -> Window:
    """Decides when messages may be written at given ids so that no reader misses them.

    A reader whose horizon lies above *lowest* chose it when its clock showed more than lowest + D. On our clock that is
    after lowest + D - S. So the reader finds the messages if, by our clock,

    * they are acknowledged by lowest + D - S, because its queries find everything acknowledged before them;
    * their buckets are recorded by lowest + D - S - C, because it uses no lookup that began more than C (and never more
      than D - S) before it chose its horizon. The age of a lookup matters only for ids of the past second or so: ids
      ahead of the clock are recorded before their time comes.

    The messages lie in buckets of given ids, which readers always query. So if an attempt's rows reached Cassandra too
    late and a repeated attempt finds them there, they are not hidden from later readers.

    W is reserved for the write itself: a write that begins in time normally ends in time. If a queue has so short a
    delay that lowest + D - S would lie below lowest, lowest counts: then its readers' clocks must agree with ours, as
    for messages that are appended to such a queue.
    """
    spare = max(0.0, min(level.undone_within, delay - difference))
    return Window(lowest + ticks(spare - max(level.deadline, min(age, spare))), lowest + ticks(spare))
