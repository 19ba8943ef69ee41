"""Messages in Cassandra.

Every read takes these steps in this order: read the clock and choose the horizons, get the queue's row, look up the
recorded buckets. Row and lookups must be recent enough to include everything that was acknowledged below the horizons.
Then :mod:`..read.slice_reads` reads the buckets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol

from queuey.model import ids
from queuey.model.errors import Outcome, StoreUnavailable
from queuey.model.ids import LOW_MIN, TICKS_PER_SECOND, Position
from queuey.model.messages import Lag, Message, NewMessage, Page, PartitionBounds, Queue, Slice, bytes_at_most, bytes_of
from queuey.storage import Messages
from queuey.storage.cassandra.catalogue.queue_cache import CachedQueue
from queuey.storage.cassandra.cluster import Encoded, InDoubt, StatementRequest
from queuey.storage.cassandra.cluster.store_loop import store_call
from queuey.storage.cassandra.read import slice_reads
from queuey.storage.cassandra.read.bucket_index import RECORD_TTL_MARGIN, BucketLookup
from queuey.storage.cassandra.read.slice_reads import GIVEN_UP, BucketSource, Extent, Gathered
from queuey.storage.cassandra.read.watched_arrivals import PolledArrivals
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.statements.consistency_levels import ResolvedLevel
from queuey.storage.cassandra.tables import names
from queuey.storage.cassandra.tables.connected import StoreParts
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.time.bucketing import CLASSES, Bucket
from queuey.storage.cassandra.time.clock import ticks
from queuey.storage.cassandra.write.write_batches import TTL_MARGIN
from queuey.storage.deadlines import Done
from queuey.storage.new_messages import check_and_weigh, check_partition, check_text
from queuey.storage.partition_watches import Wake

PUT_BYTES = 4 << 20
"""Max body bytes that one ``put`` has in flight, unless a single body is larger."""

MAX_ROWS_PER_DELETE = 100
"""Max messages that one request deletes; all are in one Cassandra partition."""

_Locations = Sequence[tuple[int, Position]]

MAX_RECORDED_BUCKETS = 64
"""Max narrow recorded buckets that one page reads. A page that is not full after them reports that there is more."""


class ReadStart(NamedTuple):
    """The bounds of a read, chosen from one reading of the clock and of the consistency level.

    Attributes:
        now: The time (ticks).
        boot: The boot time of the same moment.
        since: The read uses only a row and lookups that were read at this boot time or later.
        level: The queue's consistency level.
        empty_below: The position below which an empty read stays empty; None if an empty read proves nothing.
        horizons: The horizon of each slice (ticks).
        uppers: The upper bound of the read in each slice.
    """

    now: int
    boot: float
    since: float
    level: ResolvedLevel
    empty_below: Position | None
    horizons: Sequence[int]
    uppers: Sequence[Position]


@dataclass(slots=True)
class SliceRead:
    """A slice that may hold messages, the upper bound of its read, and what the steps of the read have found."""

    part: Slice
    upper: Position
    lookup: BucketLookup = field(init=False)
    extent: Extent = field(init=False)
    gathered: Gathered = field(init=False)


class SliceReader:
    """Reads slices of partitions, up to their horizons, from every bucket that may hold a message."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._driver = parts.driver
        self._clock = parts.clock
        self._timing = parts.timing
        self._levels = parts.levels
        self._rows = parts.rows
        self._bucket_index = parts.bucket_index
        self._empty_ranges = parts.empty_ranges
        self._generator = parts.generator
        self._watch = parts.watch

    def read_delay(self, queue: Queue) -> float:
        return self._levels.delay(queue)

    async def start_read(self, queue: Queue, slices: Sequence[Slice], *, polls: bool = False) -> ReadStart:
        """Chooses the bounds of a read. Checks the clock first if it is not known to be right; raises if it is off.

        A read must find everything that was acknowledged below its horizons. So its row and lookups may be as old as
        the shortest delay of its slices minus the clock difference, but not older than C. ``polls``: slices without
        delay may miss the newest messages, because data in memory may be old; and the clock is not checked.
        """
        now, boot = self._clock.now_and_boottime()
        if not self._watch.sound(boot):
            if not polls:
                await self._watch.require_sound()
                now, boot = self._clock.now_and_boottime()
            if polls or not self._watch.sound(boot):
                raise self._watch.refusal()
        level = self._levels.resolve(queue)
        own_delay = level.delay if queue.read_delay is None else queue.read_delay
        shortest_delay, next_id = math.inf, 0
        horizons: list[int] = []
        uppers: list[Position] = []
        for part in slices:
            delay = self._choose_delay(part, level.delay, own_delay)
            if not delay:
                next_id = next_id or self._generator.next_time()
            horizon = now - ticks(delay) if delay else next_id
            horizons.append(horizon)
            # A due slice ends at its horizon, if it reads ahead not before the next id.
            end = max(horizon, self._generator.next_time()) if part.ahead else horizon
            uppers.append(min(part.upper, (end, LOW_MIN)) if part.due else part.upper)
            if not part.early and (part.keeps_read_delay or not polls):
                shortest_delay = min(shortest_delay, delay)
        if shortest_delay == math.inf and not polls:
            shortest_delay = own_delay
        stored = self._timing.stored
        age = max(0.0, min(stored.kept.row_age, shortest_delay - stored.assumed.clock_difference))
        return ReadStart(now, boot, boot - age, level, self._levels.empty_below(level, now), horizons, uppers)

    def _choose_delay(self, part: Slice, level_delay: float, own_delay: float) -> float:
        if not part.keeps_read_delay:
            return 0.0
        return level_delay if part.ahead else own_delay

    async def read(self, queue: Queue, slices: Sequence[Slice], *, polls: bool = False) -> list[Page]:
        """Reads slices side by side. Returns a page for each; postponed if the slices before it took all bytes.

        Shows the values of names in place of the names' marked messages. The slices of one call share the bytes of one
        answer. ``polls``: see :meth:`start_read`.
        """
        start = await self.start_read(queue, slices, polls=polls)
        row = await self._rows.find_current(queue, since=start.since)
        reads = {
            number: SliceRead(part, start.uppers[number])
            for number, part in enumerate(slices)
            if 0 < part.partition <= row.queue.partitions and part.lower < start.uppers[number] and part.limit > 0
        }
        await self.find_lookups(row, reads.values(), start)
        await self._gather(row, slices, reads.values(), start)
        checked = [read.gathered.messages for read in reads.values() if not read.part.ahead]
        if marked := message_codec.collect_marked(chain.from_iterable(checked)):
            values = await names.find_values(self._parts, queue, marked, early=all(part.early for part in slices))
            for read in reads.values():
                if not read.part.ahead and read.gathered is not GIVEN_UP:
                    read.gathered = names.show_values(read.gathered, values, waits=_waits_for_names(read.part))
        pages = []
        for number, (part, horizon) in enumerate(zip(slices, start.horizons, strict=True)):
            if number not in reads:
                page = Page([], horizon, None if part.descending else max(part.lower, start.uppers[number]), more=False)
            elif reads[number].gathered is GIVEN_UP:
                page = part.make_postponed_page(horizon)
            else:
                page = slice_reads.page_of(part, reads[number].extent, reads[number].gathered, horizon)
            pages.append(page)
        return pages

    async def find_lookups(self, row: CachedQueue, reads: Iterable[SliceRead], start: ReadStart) -> None:
        qid = row.queue.qid
        missing: dict[tuple[bool, bool], list[SliceRead]] = {}
        for read in reads:
            requested = read.part
            lookup = self._bucket_index.find_cached(
                qid,
                requested.partition,
                requested.lower[0],
                read.upper[0],
                since=start.since,
                descending=requested.descending,
                kept=requested.kept,
            )
            if lookup is None:
                missing.setdefault((requested.descending, requested.kept), []).append(read)
            else:
                read.lookup = lookup
        for (descending, kept), group in missing.items():
            lookups = await self._bucket_index.read_lookups(
                [(qid, read.part.partition, (read.upper if descending else read.part.lower)[0]) for read in group],
                consistency=start.level.reads,
                trust_low_watermarks=start.empty_below is not None,
                descending=descending,
                kept=kept,
            )
            for read, lookup in zip(group, lookups, strict=True):
                read.lookup = lookup

    async def _gather(
        self, row: CachedQueue, slices: Sequence[Slice], reads: Collection[SliceRead], start: ReadStart
    ) -> None:
        max_bytes = slices[0].max_bytes if len(slices) == 1 else sum([part.max_bytes for part in slices])
        remaining = max_bytes if len(slices) > 1 and slices[0].bodies else math.inf
        room, readers, keys = slice_reads.room_for(max_bytes, row.longest_row), [], []
        for read in reads:
            requested = read.part
            read.extent = self.find_extent(row, read.lookup, requested, read.upper, start.now)
            first = slice_reads.room_for(requested.max_bytes, row.longest_row, first=True)
            now = 0 if requested.kept else start.now
            readers.append(slice_reads.read_rounds(requested, read.extent, now, first_rows=first, max_rows=room))
            keys.append((row.queue.qid, requested.partition))
        results = await slice_reads.run_readers(
            self._driver,
            readers,
            keys,
            start.level.reads,
            record_empty=self.record_empty(start),
            max_rows=room,
            enough_bytes=remaining,
        )
        if remaining < math.inf and sum([bytes_at_most(gathered.messages) for gathered in results]) < remaining:
            remaining = math.inf
        for read, gathered in zip(reads, results, strict=True):
            read.gathered = gathered if remaining > 0 else GIVEN_UP
            if read.gathered is not GIVEN_UP:
                self._raise_low_watermark(row, read, start)
                if remaining < math.inf:
                    remaining -= bytes_of(gathered.messages)

    def horizon_now(self, queue: Queue, *, keeps_read_delay: bool) -> int:
        delay = self._levels.delay(queue) if keeps_read_delay else 0.0
        return self._clock.now() - ticks(delay) if delay else self._generator.next_time()

    def record_empty(self, start: ReadStart) -> slice_reads.EmptyProbeCallback | None:
        return None if start.empty_below is None else partial(self._empty_ranges.record, below=start.empty_below)

    def find_extent(self, row: CachedQueue, lookup: BucketLookup, part: Slice, upper: Position, now: int) -> Extent:
        lower, bounded = part.lower, upper
        if part.descending:
            lower = max(lower, (lookup.low, LOW_MIN))
        else:
            bounded = min(upper, (lookup.high, LOW_MIN))
        alive = _find_lowest_alive(row, lookup.low_watermark or ids.FIRST, now)
        recorded: list[Bucket] = []
        end = None
        if lookup.recorded.time_buckets:
            starts = [position[0] for position in alive]
            recorded, end = lookup.recorded.find_nearest(
                lower[0], bounded[0] + 1, MAX_RECORDED_BUCKETS, alive=starts, descending=part.descending
            )
        if end is not None:
            lower, bounded = (
                (max(lower, (end, LOW_MIN)), bounded) if part.descending else (lower, min(bounded, (end, LOW_MIN)))
            )
        # The home buckets that the ids of live messages can be in.
        low = max(lower[0], now - row.longest_ttl * TICKS_PER_SECOND)
        high = min(bounded[0], now + CLASSES[row.home_class] * TICKS_PER_SECOND) + 1
        home = bucketing.home_buckets(row.home_class, low, high) if low < high else []
        key = (row.queue.qid, part.partition)
        sources = []
        for time_bucket in (*home, *recorded):
            lowest = (time_bucket.start, LOW_MIN)
            if time_bucket.new_ids_only:  # A message with a given id may have been written just now, however old it is.
                lowest = max(lowest, alive[time_bucket.ttl_class])
            sources.append(self._empty_ranges.shorten(key, BucketSource(time_bucket, lowest), lower))
        return Extent(sources, lower, bounded, complete=bounded == upper and lower == part.lower)

    def _raise_low_watermark(self, row: CachedQueue, read: SliceRead, start: ReadStart) -> None:
        """Raises the low watermark to the first message, after an ascending read with the delay from at or below it."""
        requested, below, gathered = read.part, start.empty_below, read.gathered
        oldest = (start.now - CLASSES[-1] * TICKS_PER_SECOND, LOW_MIN)
        if (
            below is None
            or requested.descending
            or requested.kept
            or not requested.keeps_read_delay
            or requested.lower > max(read.lookup.low_watermark or ids.FIRST, oldest)
        ):
            return
        first = gathered.messages[0].position if gathered.messages else gathered.end
        self._bucket_index.raise_low_watermark(
            (row.queue.qid, requested.partition),
            read.lookup,
            min(first, below),
            lifetime=CLASSES[row.home_class] + RECORD_TTL_MARGIN,
            consistency=start.level.writes,
        )


class Counts(Protocol):
    """Counts messages; see :mod:`.counting`."""

    async def inspect(self, queue: Queue, *, rough: bool = False) -> tuple[int, list[PartitionBounds]]: ...

    async def lag(self, queue: Queue, offsets: Sequence[tuple[int, Position | None]]) -> list[Lag]: ...


class CassandraMessages(Messages):
    """Messages on Cassandra. Puts write new rows before they delete old ones; a delete returns the number of ids."""

    def __init__(self, parts: StoreParts, reader: SliceReader, counts: Counts, arrivals: PolledArrivals) -> None:
        self._driver = parts.driver
        self._clock = parts.clock
        self._levels = parts.levels
        self._rows = parts.rows
        self._bucket_index = parts.bucket_index
        self._generator = parts.generator
        self._stamps = parts.stamps
        self._watch = parts.watch
        self._writer = parts.writer
        self._reader = reader
        self._counts = counts
        self._arrivals = arrivals

    # Writing

    async def append(
        self, queue: Queue, items: Sequence[NewMessage], *, after: Position | None = None
    ) -> list[Position]:
        def begin(done: Done) -> Callable[[], Outcome]:
            def stored(positions: list[Position] | None, error: Exception | None) -> None:
                if error is None:
                    self._arrivals.notify_appended(queue, items)
                done(positions, error)

            return self._writer.begin(queue, items, stored, after).withdraw

        check_and_weigh(queue, items)
        positions: list[Position] = await self._driver.calls.wait_for_end(
            begin, "Cassandra did not finish the write in time", raise_given_up=True
        )
        return positions

    def write_within(self, queue: Queue) -> float:
        level = self._levels.resolve(queue)
        return max(level.deadline, level.undone_within)

    @store_call()
    async def put(self, queue: Queue, locations: _Locations, item: NewMessage) -> None:
        # Each id is written by a request of its own: after an error with outcome ``unknown`` some may be written.
        for partition, _ in locations:
            check_partition(queue, partition)
        check_text(item.body)
        if not locations:
            return
        await self._watch.require_sound()
        body, meta = message_codec.encode(item.body, item.meta)
        with self._driver.calls.deadline.preparing():
            size = message_codec.row_size(body, meta)
            row = await self._rows.cover(await self._rows.find_current(queue), {item.ttl}, size, given=True)
        level = self._levels.resolve(row.queue)
        now = self._clock.now()
        targets = [
            (partition, position, _bucket_to_put(row, position, item.ttl, now)) for partition, position in locations
        ]
        by_partition: dict[int, list[Bucket]] = {}
        for partition, _, time_bucket in targets:
            if bucketing.is_indexed(time_bucket, row.home_class):
                by_partition.setdefault(partition, []).append(time_bucket)
        for partition, buckets in by_partition.items():
            with self._driver.calls.deadline.preparing():
                await self._bucket_index.record(row.queue.qid, partition, buckets, consistency=level.writes)
        candidates = await self._find_buckets(row, locations, level.reads, kept=_may_keep_expired(row))
        qid, longest = row.queue.qid, bucketing.max_cassandra_ttl(now)
        inserts: list[StatementRequest] = []
        deletes: list[StatementRequest] = []
        for (partition, position, time_bucket), other_buckets in zip(targets, candidates, strict=True):
            self._generator.avoid_low(position[1])
            stamp = self._stamps.make_above(position[0])
            lives = item.ttl + math.ceil(max(0, position[0] - now) / TICKS_PER_SECOND) + TTL_MARGIN
            expires = max(now, position[0]) + item.ttl * TICKS_PER_SECOND
            key = (qid, partition, time_bucket.code, message_codec.uuid_of(position))
            column = meta if isinstance(meta, bytes) else None  # Metadata of an earlier message must not remain.
            values = (*key, body, expires, column, stamp, min(lives, longest))
            inserts.append(StatementRequest(message_codec.INSERT[time_bucket.ttl_class], values, level.writes))
            deletes += [
                StatementRequest(
                    message_codec.DELETE[other.ttl_class], (stamp, qid, partition, other.code, key[3]), level.writes
                )
                for other in other_buckets
                if other != time_bucket
            ]
        await self._driver.ask_all(inserts, max_in_flight=max(1, PUT_BYTES // max(1, len(body))))
        self._arrivals.notify_rewritten(qid, {partition for partition, _ in locations})
        try:
            # Deletes come last: readers must always find a message, and if the write fails, the old one must stay.
            await self._driver.ask_all(deletes)
        except StoreUnavailable as error:
            raise InDoubt(f"the message was written, but the one that it replaces may still exist: {error}") from error

    @store_call()
    async def delete(self, queue: Queue, locations: Iterable[tuple[int, Position]]) -> int:
        # Cassandra does not report which rows existed, so this returns the number of ids.
        valid_locations = [location for location in locations if 0 < location[0] <= queue.partitions]
        await self._watch.require_sound()
        row = await self._rows.find_current(queue)
        if not valid_locations:
            return 0
        level = self._levels.resolve(row.queue)
        rows: dict[tuple[int, Bucket], list[bytes]] = {}
        candidates = await self._find_buckets(row, valid_locations, level.reads, kept=_may_keep_expired(row))
        for (partition, position), buckets in zip(valid_locations, candidates, strict=True):
            stamp = self._stamps.make_above(position[0])
            for time_bucket in buckets:
                key = message_codec.key_of(row.queue.qid, partition, time_bucket.code)
                deletes = rows.setdefault((partition, time_bucket), [])
                deletes.append(message_codec.encode_delete(key, position, stamp))
        batches = [
            Encoded(
                message_codec.DELETE[time_bucket.ttl_class],
                message_codec.DELETE_VALUE_COUNT,
                encoded[first : first + MAX_ROWS_PER_DELETE],
                message_codec.routing_of(row.queue.qid, partition, time_bucket.code),
                level.writes,
            )
            for (partition, time_bucket), encoded in rows.items()
            for first in range(0, len(encoded), MAX_ROWS_PER_DELETE)
        ]
        await self._driver.ask_all(batches)
        return len(valid_locations)

    # Reading

    @store_call()
    async def fetch(self, queue: Queue, locations: _Locations, *, kept: bool = False) -> list[Message]:
        await self._watch.require_sound()
        row = await self._rows.find_current(queue)
        valid_locations = [location for location in locations if 0 < location[0] <= row.queue.partitions]
        if not valid_locations:
            return []
        level = self._levels.resolve(row.queue)
        candidates = await self._find_buckets(row, valid_locations, level.reads, kept=kept)
        now = self._clock.now()
        fetches: list[StatementRequest] = []
        owners: list[int] = []
        for number, (partition, position) in enumerate(valid_locations):
            for time_bucket in candidates[number]:
                key = (row.queue.qid, partition, time_bucket.code, message_codec.uuid_of(position))
                fetches.append(StatementRequest(message_codec.FETCH[time_bucket.ttl_class], key, level.reads))
                owners.append(number)
        messages: dict[int, Message] = {}
        answers = await self._driver.ask_all(fetches)
        for number, answer in zip(owners, answers, strict=True):
            for fetched_row in answer:
                message = message_codec.decode_message(fetched_row, valid_locations[number][0])
                if kept or message.expires > now:
                    messages.setdefault(number, message)
        return [messages[number] for number in sorted(messages)]

    def read(self, queue: Queue, slices: Sequence[Slice]) -> Coroutine[Any, Any, list[Page]]:
        # Guarantee G1 holds if the queue keeps the read delay of its consistency level. A read has at most about five
        # times the sum of the slices' ``max_bytes`` in memory (see :mod:`..read.slice_reads`).
        return self._driver.calls.run_async(
            self._reader.read(queue, slices), "Cassandra did not answer the read in time"
        )

    @store_call()
    async def inspect(self, queue: Queue, *, rough: bool = False) -> tuple[int, list[PartitionBounds]]:
        return await self._counts.inspect(queue, rough=rough)

    @store_call()
    async def lag(self, queue: Queue, offsets: Sequence[tuple[int, Position | None]]) -> list[Lag]:
        return await self._counts.lag(queue, offsets)

    def watch(
        self, queue: Queue, partition: int, wake: Wake, *, keeps_read_delay: bool = True, early: bool = False
    ) -> Callable[[], None]:
        return self._arrivals.watch(queue, partition, wake, keeps_read_delay=keeps_read_delay, early=early)

    def share_news(self, stored: Callable[[int, Collection[int]], None], wanted: Callable[[], None]) -> None:
        self._arrivals.share_news(stored, wanted)

    def hear_news(self, moment: int, partitions: Iterable[int]) -> bool:
        return self._arrivals.receive_news(moment, partitions)

    # Lookups by id

    async def _find_buckets(
        self, row: CachedQueue, locations: _Locations, reads: str, *, kept: bool
    ) -> list[list[Bucket]]:
        """Returns the buckets that may hold each location: buckets of given ids first, narrower before wider ones.

        Reads the bucket index, not the cache: a caller that names an id already knows its message. ``kept``: includes
        buckets in which all messages have expired.
        """
        candidates = []
        lookups = await self._find_lookups(row, locations, reads, kept=kept)
        for lookup, (_, (tick, _)) in zip(lookups, locations, strict=True):
            own = bucketing.bucket_of(tick, row.home_class, bucketing.HOME_WIDTH)
            recorded = [other for other in lookup.recorded.find_overlapping(tick, tick + 1) if other != own]
            recorded.sort(key=lambda other: (other.new_ids_only, other.end - other.start, -other.ttl_class))
            candidates.append([*recorded, own])
        return candidates

    async def _find_lookups(
        self, row: CachedQueue, locations: _Locations, reads: str, *, kept: bool
    ) -> list[BucketLookup]:
        by_location: dict[tuple[int, int], BucketLookup] = {}
        pending: dict[int, list[int]] = {}
        low_watermarks = self._levels.is_empty_read_proof(self._levels.resolve(row.queue))
        for partition, tick in sorted({(partition, position[0]) for partition, position in locations}):
            pending.setdefault(partition, []).append(tick)
        while pending:
            keys = [(row.queue.qid, partition, times[0]) for partition, times in pending.items()]
            fetched = await self._bucket_index.read_lookups(
                keys, consistency=reads, trust_low_watermarks=low_watermarks, kept=kept
            )
            lookups = dict(zip(pending, fetched, strict=True))
            for partition, lookup in lookups.items():
                by_location.update(((partition, tick), lookup) for tick in pending[partition] if tick < lookup.high)
                pending[partition] = [tick for tick in pending[partition] if tick >= lookup.high]
            pending = {partition: times for partition, times in pending.items() if times}
        return [by_location[partition, position[0]] for partition, position in locations]


def _may_keep_expired(row: CachedQueue) -> bool:
    return row.queue.on_expiry == "dead-letter"


def _bucket_to_put(row: CachedQueue, position: Position, ttl: int, now: int) -> Bucket:
    """Returns the bucket of a message with a given id, of at least the home class and never one of new ids.

    This includes ids ahead of the clock: low watermarks may pass such an id before a slow write is done.
    """
    tick = position[0]
    kind = max(row.home_class, bucketing.class_of(ttl + max(0, tick - now) / TICKS_PER_SECOND))
    return bucketing.bucket_of(tick, kind, bucketing.PUT_WIDTH)


def _waits_for_names(part: Slice) -> bool:
    """Returns whether a page ends before a message that may still become the value of its name, so none is missed."""
    return not (part.descending or part.early)


def _find_lowest_alive(row: CachedQueue, low_watermark: Position, now: int) -> list[Position]:
    return [
        max(low_watermark, (now - (row.longest_ttl if kind == row.home_class else seconds) * TICKS_PER_SECOND, LOW_MIN))
        for kind, seconds in enumerate(CLASSES)
    ]
