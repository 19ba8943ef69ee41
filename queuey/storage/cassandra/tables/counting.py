"""Counts messages, measures the lag of groups, and measures the size of partitions.

Small ranges are read. For large ones Cassandra counts the messages, and their bytes are estimated. A bucket holds some
ten thousand messages by design (see :class:`..time.bucketing.BucketWidths`). Only a few of many narrow buckets are
counted; the others are assumed to hold as many on average.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Self

import msgspec

from queuey.model import ids
from queuey.model.errors import QueueChanged
from queuey.model.ids import LOW_MIN, TICKS_PER_SECOND, Position
from queuey.model.messages import KEPT_SECONDS, Lag, Measure, PartitionBounds, Queue, Slice
from queuey.storage.cassandra.catalogue import queue_cache
from queuey.storage.cassandra.catalogue.queue_cache import CachedQueue
from queuey.storage.cassandra.cluster import Driver, Encoded, Rows, StatementRequest, TooManyDead
from queuey.storage.cassandra.cluster.store_loop import run_concurrently
from queuey.storage.cassandra.read import bucket_index, slice_reads
from queuey.storage.cassandra.read.bucket_index import BucketLookup
from queuey.storage.cassandra.read.slice_reads import BucketSource, Extent, Gathered, Probe
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.tables.connected import StoreParts
from queuey.storage.cassandra.tables.messages import SliceReader
from queuey.storage.cassandra.time.bucketing import Bucket

MAX_LOOKUPS = 64
"""Max partitions of one queue whose recorded buckets a measurement reads together."""
MAX_CONCURRENT_COUNTS = 4
"""Max partitions of one call that are counted concurrently."""
MAX_CONCURRENT_MEASURES, MAX_QUEUES_PER_CHUNK = 48, 500
"""Max queues that are measured concurrently, and max queues whose results are returned together."""
SAMPLE = 100
"""Max messages read at each end of a large partition to estimate its bytes."""

MAX_LISTED, MAX_ROUGHLY_LISTED = 2000, 100
"""Max messages that a count and a rough count list. Up to that number a count is exact."""
MAX_COUNTED_BUCKETS, MAX_ROUGHLY_COUNTED_BUCKETS = 8, 2
"""Max narrow buckets that Cassandra counts, for a count and for a rough count."""
END: Position = (ids.TICKS_MAX + 1, LOW_MIN)
"""A position above every id."""

FIRST_ROWS = 8
"""Max rows of the first read of a bucket that is measured; bodies may be large."""
MORE_ROWS, MORE_BYTES = 200, 128 << 10
"""Max rows, and about the max bytes, of the second read of a bucket."""
LAST_ROWS = 50
"""Max rows read at the upper end of a bucket that has more rows than both reads returned."""
MAX_BUCKETS = 16
"""Max buckets of a partition whose buckets are all read; partitions with more are estimated as a whole."""


class Tally(NamedTuple):
    size: int
    exact: bool
    oldest: Position | None
    newest: Position | None


NOTHING = Tally(0, exact=True, oldest=None, newest=None)


class BucketRange(NamedTuple):
    """The range of a bucket that is still to be counted.

    ``clip`` returns None if nothing of the bucket lies between the bounds.
    """

    time_bucket: Bucket
    lower: Position
    upper: Position

    @classmethod
    def clip(cls, source: BucketSource, lower: Position, upper: Position) -> Self | None:
        low, high = max(lower, source.lowest), min(upper, (source.time_bucket.end, LOW_MIN))
        return cls(source.time_bucket, low, high) if low < high else None


class Counting:
    """Implements ``inspect``, ``lag`` and ``measure`` of the contracts. Partitions that do not exist have no lag."""

    def __init__(self, parts: StoreParts, reader: SliceReader) -> None:
        self._driver = parts.driver
        self._options = parts.options
        self._clock = parts.clock
        self._levels = parts.levels
        self._rows = parts.rows
        self._bucket_index = parts.bucket_index
        self._watch = parts.watch
        self._reader = reader

    async def inspect(self, queue: Queue, *, rough: bool = False) -> tuple[int, list[PartitionBounds]]:
        # Counts small partitions; estimates large ones from the density at both ends.
        start = await self._reader.start_read(queue, [Slice(1)])
        row = await self._rows.find_current(queue, since=start.boot)
        numbers = range(1, row.queue.partitions + 1)
        tallies = await self._count(row, [(number, ids.FIRST, END) for number in numbers], start.now, rough=rough)
        infos = [
            PartitionBounds(number, tally.size, exact=tally.exact, oldest=tally.oldest, newest=tally.newest)
            for number, tally in zip(numbers, tallies, strict=True)
        ]
        return start.horizons[0], infos

    async def lag(self, queue: Queue, offsets: Sequence[tuple[int, Position | None]]) -> list[Lag]:
        start = await self._reader.start_read(queue, [Slice(1)])
        now, horizon = start.now, start.horizons[0]
        row = await self._rows.find_current(queue, since=start.boot)
        existing = [(number, offset) for number, offset in offsets if 0 < number <= row.queue.partitions]
        extents = [
            (number, ids.FIRST if offset is None else ids.following(offset), (horizon, LOW_MIN))
            for number, offset in existing
        ]
        tallies = iter(await self._count(row, extents, now))
        lags = []
        for number, _ in offsets:
            tally = next(tallies) if 0 < number <= row.queue.partitions else NOTHING
            seconds = 0.0 if tally.oldest is None else max(0, now - tally.oldest[0]) / TICKS_PER_SECOND
            lags.append(Lag(tally.size, exact=tally.exact, seconds=seconds))
        return lags

    async def _count(
        self, row: CachedQueue, parts: Sequence[tuple[int, Position, Position]], now: int, *, rough: bool = False
    ) -> list[Tally]:
        slices = (Slice(number, lower, upper) for number, lower, upper in parts)
        tallies = (self._count_slice(row, part, now, rough=rough) for part in slices)
        return await run_concurrently(self._driver.calls, tallies, max_concurrent=MAX_CONCURRENT_COUNTS)

    async def _count_slice(self, row: CachedQueue, part: Slice, now: int, *, rough: bool) -> Tally:
        key, level = (row.queue.qid, part.partition), self._levels.resolve(row.queue)
        lookup = partial(
            self._bucket_index.read_lookups,
            consistency=level.reads,
            trust_low_watermarks=self._levels.is_empty_read_proof(level),
        )
        [up] = await lookup([(*key, part.lower[0])])
        [down] = await lookup([(*key, part.upper[0])], descending=True)
        downwards = msgspec.structs.replace(part, descending=True)
        extents = (
            self._reader.find_extent(row, up, part, part.upper, now),
            self._reader.find_extent(row, down, downwards, part.upper, now),
        )
        return await Estimate(self._driver, key, level.reads, now, self._ended_below(row, now)).count(
            *extents, rough=rough
        )

    def measure(self, queues: Sequence[Queue]) -> Iterator[list[Measure]]:
        calls = self._driver.calls
        calls.run(self._watch.require_sound())
        for first in range(0, len(queues), MAX_QUEUES_PER_CHUNK):
            works = map(self._measure_queue, queues[first : first + MAX_QUEUES_PER_CHUNK])
            yield from calls.run(run_concurrently(calls, works, max_concurrent=MAX_CONCURRENT_MEASURES), long=True)

    async def _measure_queue(self, queue: Queue) -> list[Measure]:
        row = self._rows.find_cached(queue)
        if row is None:
            began, name = self._clock.boottime(), (queue.application, queue.name)
            [rows] = await self._driver.ask_all(
                [StatementRequest(queue_cache.SELECT_QUEUE, name, self._options.catalogue_read)]
            )
            row = queue_cache.row_of(*name, rows[0], began) if rows else None
        if row is None or row.queue.version != queue.version:
            return []
        level, now = self._levels.resolve(queue), self._clock.now()
        low_watermarks = self._levels.is_empty_read_proof(level)
        measures = []
        for first in range(1, row.queue.partitions + 1, MAX_LOOKUPS):
            numbers = range(first, min(first + MAX_LOOKUPS, row.queue.partitions + 1))
            began = self._clock.boottime()
            answers = await self._driver.ask_all(
                [
                    StatementRequest(bucket_index.SELECT_FIRST, (row.queue.qid, number), level.reads)
                    for number in numbers
                ]
            )
            for number, rows in zip(numbers, answers, strict=True):
                lookup = bucket_index.complete_lookup(began, rows, trust_low_watermarks=low_watermarks)
                measure = await self._measure_partition(row, lookup, number, now)
                if measure is not None:
                    measures.append(measure)
        return measures

    async def _measure_partition(
        self, row: CachedQueue, lookup: BucketLookup | None, number: int, now: int
    ) -> Measure | None:
        if lookup is not None:
            extent = self._reader.find_extent(row, lookup, Slice(number, ids.FIRST, END), END, now)
            if extent.complete and len(extent.sources) <= MAX_BUCKETS:
                reads = self._levels.resolve(row.queue).reads
                try:
                    key = row.queue.qid, number
                    return await Estimate(self._driver, key, reads, now, self._ended_below(row, now)).measure(extent)
                except TooManyDead:
                    pass  # The estimate below asks for less at a time.
        return await self._estimate_partition(row, number, now)

    def _ended_below(self, row: CachedQueue, now: int) -> dict[int, Position]:
        """Returns, for the home class, the position below which rows are of expired messages that the queue keeps.

        It follows from the longest TTL. The row's longest TTL includes ``KEPT_SECONDS`` only from the first kept
        message on, hence the maximum. Messages with a TTL of their own may be alive below it; estimates miss them.
        """
        if row.queue.on_expiry == "drop":
            return {}
        ttl = self._options.default_ttl if row.queue.ttl is None else row.queue.ttl
        longest = max(ttl, row.longest_ttl - KEPT_SECONDS)
        return {row.home_class: (now - longest * TICKS_PER_SECOND, LOW_MIN)}

    async def _estimate_partition(self, row: CachedQueue, number: int, now: int) -> Measure | None:
        [tally] = await self._count(row, [(number, ids.FIRST, END)], now)
        if tally.oldest is None or tally.newest is None:
            return None
        ends = [
            Slice(number, limit=SAMPLE, max_bytes=MORE_BYTES, keeps_read_delay=False, descending=descending)
            for descending in (False, True)
        ]
        try:
            pages = await self._reader.read(row.queue, ends)
        except QueueChanged:
            return None
        sizes = [len(message_codec.encode(message.body, None)[0]) for page in pages for message in page.messages]
        size = tally.size * sum(sizes) // max(1, len(sizes))
        return Measure(number, tally.size, size, exact=False, oldest=tally.oldest, newest=tally.newest)


class Estimate:
    """Counts or measures the messages of one partition at one moment.

    Args:
        key: qid and partition.
        now: The moment (ticks); messages that have expired by then do not count.
        ended_below: By class, the position below which Cassandra does not count messages with new ids.
    """

    def __init__(
        self, driver: Driver, key: tuple[int, int], consistency: str, now: int, ended_below: Mapping[int, Position]
    ) -> None:
        self._driver = driver
        self._key = key
        self._consistency = consistency
        self._now = now
        self._ended_below = ended_below
        self._sizes: dict[Position, int] = {}
        """Body bytes of each message that was read."""
        self._samples: dict[Bucket, list[int]] = {}

    async def count(self, up: Extent, down: Extent, *, rough: bool = False) -> Tally:
        """Counts the messages of a range, given its extents as seen from below and from above.

        Exact up to :data:`MAX_LISTED` messages (``rough``: :data:`MAX_ROUGHLY_LISTED`), otherwise estimated.
        """
        listed = await self._read_ids(up, (MAX_ROUGHLY_LISTED if rough else MAX_LISTED) + 1)
        positions = [message.position for message in listed.messages]
        if not listed.more and up.complete:
            return (
                Tally(len(positions), exact=True, oldest=positions[0], newest=positions[-1]) if positions else NOTHING
            )
        newest_messages = (await self._read_ids(down, 1, descending=True)).messages
        newest = newest_messages[0].position if newest_messages else None
        oldest = positions[0] if positions else newest
        bounds, most = (up.lower, down.upper), MAX_ROUGHLY_COUNTED_BUCKETS if rough else MAX_COUNTED_BUCKETS
        narrow, wide = await self._count_buckets([*{*up.sources, *down.sources}], bounds, most)
        narrow += _estimate_between(narrow, up, down)
        return Tally(max(len(positions), narrow + wide), exact=False, oldest=oldest, newest=newest)

    async def _read_ids(self, extent: Extent, limit: int, *, descending: bool = False) -> Gathered:
        listing = Slice(self._key[1], extent.lower, extent.upper, limit, descending=descending, bodies=False)
        reader = slice_reads.read_rounds(listing, extent, self._now, first_rows=math.inf, max_rows=math.inf)
        [gathered] = await slice_reads.run_readers(self._driver, [reader], [self._key], self._consistency)
        return gathered

    async def _count_buckets(
        self, sources: Sequence[BucketSource], bounds: tuple[Position, Position], most: int
    ) -> tuple[int, int]:
        """Returns the number of messages in narrow buckets, estimated from ``most`` of them, and in wide buckets.

        Returns zeros if a bucket has too many dead rows.
        """
        narrow = sorted(
            (source for source in sources if not source.time_bucket.wide), key=lambda source: source.time_bucket.start
        )
        left_out = max(0, len(narrow) - most)
        if left_out:
            narrow = [narrow[len(narrow) * (2 * number + 1) // (2 * most)] for number in range(most)]
        wide = [source for source in sources if source.time_bucket.wide]
        ranges = [
            bucket_range
            for source in [*narrow, *wide]
            if (bucket_range := BucketRange.clip(source, *bounds)) is not None
        ]
        try:
            answers = await self._driver.ask_all([self._make_count(bucket_range) for bucket_range in ranges])
        except TooManyDead:  # The listed messages are estimate enough.
            return 0, 0
        counts: dict[bool, list[int]] = {False: [], True: []}
        for bucket_range, [[count]] in zip(ranges, answers, strict=True):
            counts[bucket_range.time_bucket.wide].append(int(count))
        narrow_counts = counts[False]
        uncounted = left_out * sum(narrow_counts) // len(narrow_counts) if narrow_counts else 0
        return sum(narrow_counts) + uncounted, sum(counts[True])

    async def measure(self, extent: Extent) -> Measure | None:
        """Measures the number and the body bytes of messages. Returns None if there are no messages.

        Reads a few messages of each bucket. If a bucket has more, Cassandra counts the others, and their bytes are
        estimated from the messages read at both ends.
        """
        # If a message is in two buckets, the one of given ids counts: it comes first.
        ranges = [
            unread
            for source in sorted(extent.sources, key=lambda source: source.time_bucket.new_ids_only)
            if (unread := BucketRange.clip(source, extent.lower, extent.upper)) is not None
        ]
        limits = [FIRST_ROWS] * len(ranges)
        for _ in range(2):
            if ranges:
                answers = await self._driver.ask_all(
                    [self._make_query(*args) for args in zip(ranges, limits, strict=True)]
                )
                ranges = [
                    unread
                    for bucket_range, limit, answer in zip(ranges, limits, answers, strict=True)
                    if (unread := self._add_answer(bucket_range, limit, answer)) is not None
                ]
                limits = [self._choose_more_rows(bucket_range) for bucket_range in ranges]
        if not ranges:
            return self._make_measure(len(self._sizes), sum(self._sizes.values()), self._sizes, exact=True)
        counts = [self._make_count(bucket_range) for bucket_range in ranges]
        ends = [self._make_query(bucket_range, LAST_ROWS, descending=True) for bucket_range in ranges]
        answers = await self._driver.ask_all([*counts, *ends])
        count, size, read_sizes = len(self._sizes), sum(self._sizes.values()), dict(self._sizes)
        for bucket_range, counted, answer in zip(ranges, answers, answers[len(ranges) :], strict=False):
            alive = self._sizes_of_live(answer)
            read_sizes |= alive
            sample = [*self._samples[bucket_range.time_bucket], *alive.values()]
            count += counted[0][0]
            size += counted[0][0] * sum(sample) // max(1, len(sample))
        return self._make_measure(count, size, read_sizes, exact=False)

    def _make_measure(self, count: int, size: int, seen: dict[Position, int], *, exact: bool) -> Measure | None:
        if not seen:
            return None
        return Measure(self._key[1], count, size, exact, min(seen), max(seen))

    def _make_count(self, part: BucketRange) -> StatementRequest:
        lower, upper = part.lower, ids.preceding(part.upper)
        if part.time_bucket.new_ids_only and part.time_bucket.ttl_class in self._ended_below:
            lower = min(max(lower, self._ended_below[part.time_bucket.ttl_class]), upper)
        ends = message_codec.uuid_of(lower), message_codec.uuid_of(upper)
        values = (*self._key, part.time_bucket.code, *ends)
        return StatementRequest(message_codec.COUNT[part.time_bucket.ttl_class], values, self._consistency)

    def _make_query(self, part: BucketRange, limit: int, *, descending: bool = False) -> Encoded:
        probe = Probe(part.time_bucket, part.lower, part.upper, limit, descending)
        return slice_reads.query(self._key, probe, self._consistency)

    def _add_answer(self, part: BucketRange, limit: int, answer: Rows) -> BucketRange | None:
        alive = self._sizes_of_live(answer)
        self._sizes = alive | self._sizes
        self._samples.setdefault(part.time_bucket, []).extend(alive.values())
        if len(answer) < limit:
            return None
        unread = part._replace(lower=ids.following(message_codec.position_of(answer[-1][0])))
        return unread if unread.lower < unread.upper else None

    def _sizes_of_live(self, answer: Rows) -> dict[Position, int]:
        return {
            message_codec.position_of(data): len(body)
            for data, body, expires, _ in answer
            if expires is not None and body is not None and expires > self._now
        }

    def _choose_more_rows(self, part: BucketRange) -> int:
        sample = self._samples[part.time_bucket]
        average = max(1, sum(sample) // max(1, len(sample)))
        return max(1, min(MORE_ROWS, MORE_BYTES // average))


def _estimate_between(size: int, up: Extent, down: Extent) -> int:
    """Estimates the messages between two extents, whose narrow buckets hold ``size``; 0 without a gap."""
    starts = [source.time_bucket.start for source in up.sources if not source.time_bucket.wide]
    ends = [source.time_bucket.end for source in down.sources if not source.time_bucket.wide]
    gap = down.lower[0] - up.upper[0]
    if gap <= 0 or not starts or not ends:
        return 0
    reached = max(0, up.upper[0] - min(starts)) + max(0, max(ends) - down.lower[0])
    return size * gap // reached if reached else 0
