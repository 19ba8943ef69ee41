"""How much queues hold, how far groups lag behind, and how large partitions are.

Both are read where that is little; else Cassandra counts the messages, and their bytes are estimated. A bucket holds
some ten thousands of messages by design (see :class:`..bucketing.BucketWidths`). Of many narrow buckets only a few are
counted; the rest are assumed to be alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Self

import msgspec

from queuey import ids
from queuey.errors import QueueChanged
from queuey.ids import LOW_MIN, TICKS_PER_SECOND, Position
from queuey.messages import KEPT_SECONDS, Lag, Measure, PartitionInfo, Queue, Slice
from queuey.storage.cassandra import bucket_index, message_codec
from queuey.storage.cassandra.bucket_index import BucketLookup
from queuey.storage.cassandra.bucketing import Bucket
from queuey.storage.cassandra.catalogue import queue_cache
from queuey.storage.cassandra.catalogue.queue_cache import Row
from queuey.storage.cassandra.driver import Driver, Encoded, Request, Rows, TooManyDead
from queuey.storage.cassandra.driver.store_loop import side_by_side
from queuey.storage.cassandra.read import reading
from queuey.storage.cassandra.read.reading import BucketSource, Extent, Gathered, Probe
from queuey.storage.cassandra.store.connected import StoreParts
from queuey.storage.cassandra.store.messages import SliceReader

LOOKS = 64
"""Max partitions of one queue whose buckets are looked up together to be measured."""
COUNTED_AT_ONCE = 4
"""Max partitions of one call that are counted side by side."""
MEASURED_AT_ONCE, MEASURED_TOGETHER = 48, 500
"""Max queues that are measured side by side, and whose measures wait for each other."""
SAMPLE = 100
"""Max messages at each end by which the size of very many is estimated."""

LISTED, ROUGHLY_LISTED = 2000, 100
"""Max messages that are listed; up to that their number is exact."""
COUNTED, ROUGHLY_COUNTED = 8, 2
"""Narrow buckets that are counted."""
END: Position = (ids.TICKS_MAX + 1, LOW_MIN)
"""Above every id."""

FIRST_ROWS = 8
"""Max rows read of a bucket at first, to measure it; bodies may be large."""
MORE_ROWS, MORE_BYTES = 200, 128 << 10
"""Max rows read beyond that, and about the max bytes of them."""
LAST_ROWS = 50
"""Max rows read at the upper end of a bucket that has more."""
MAX_BUCKETS = 16
"""Max buckets of a partition that is measured this way."""


class Tally(NamedTuple):
    size: int
    exact: bool
    oldest: Position | None
    newest: Position | None


NOTHING = Tally(0, exact=True, oldest=None, newest=None)


class Rest(NamedTuple):
    """The range of a bucket that is still to be counted."""

    time_bucket: Bucket
    lower: Position
    upper: Position

    @classmethod
    def of(cls, source: BucketSource, lower: Position, upper: Position) -> Self | None:
        """Returns the part of a range in which a bucket may hold something; None: it holds nothing there."""
        low, high = max(lower, source.lowest), min(upper, (source.time_bucket.end, LOW_MIN))
        return cls(source.time_bucket, low, high) if low < high else None


class Counting:
    def __init__(self, parts: StoreParts, reader: SliceReader) -> None:
        self._driver = parts.driver
        self._options = parts.options
        self._clock = parts.clock
        self._levels = parts.levels
        self._rows = parts.rows
        self._bucket_index = parts.bucket_index
        self._watch = parts.watch
        self._reader = reader

    async def inspect(self, queue: Queue, *, rough: bool = False) -> tuple[int, list[PartitionInfo]]:
        # Counts what is few and estimates what is many, by how dense both ends are.
        start = await self._reader.started(queue, [Slice(1)])
        row = await self._rows.current(queue, since=start.boot)
        numbers = range(1, row.queue.partitions + 1)
        found = await self._count(row, [(number, ids.FIRST, END) for number in numbers], start.now, rough=rough)
        infos = [
            PartitionInfo(number, tally.size, exact=tally.exact, oldest=tally.oldest, newest=tally.newest)
            for number, tally in zip(numbers, found, strict=True)
        ]
        return start.horizons[0], infos

    async def lag(self, queue: Queue, offsets: Sequence[tuple[int, Position | None]]) -> list[Lag]:
        start = await self._reader.started(queue, [Slice(1)])
        now, horizon = start.now, start.horizons[0]
        row = await self._rows.current(queue, since=start.boot)
        known = [(number, offset) for number, offset in offsets if 0 < number <= row.queue.partitions]
        extents = [
            (number, ids.FIRST if offset is None else ids.following(offset), (horizon, LOW_MIN))
            for number, offset in known
        ]
        tallies = iter(await self._count(row, extents, now))
        found = []
        for number, _ in offsets:
            tally = next(tallies) if 0 < number <= row.queue.partitions else NOTHING
            seconds = 0.0 if tally.oldest is None else max(0, now - tally.oldest[0]) / TICKS_PER_SECOND
            found.append(Lag(tally.size, exact=tally.exact, seconds=seconds))
        return found

    async def _count(
        self, row: Row, wanted: Sequence[tuple[int, Position, Position]], now: int, *, rough: bool = False
    ) -> list[Tally]:
        """Counts what lies between positions of partitions, a few partitions at a time."""
        tallies = (self._tally(row, Slice(number, lower, upper), now, rough=rough) for number, lower, upper in wanted)
        return await side_by_side(self._driver.calls, tallies, most=COUNTED_AT_ONCE)

    async def _tally(self, row: Row, part: Slice, now: int, *, rough: bool) -> Tally:
        key, level = (row.queue.qid, part.partition), self._levels.of(row.queue)
        look = partial(
            self._bucket_index.lookup, consistency=level.reads, low_watermarks=self._levels.concludes(row.queue)
        )
        [up] = await look([(*key, part.lower[0])])
        [down] = await look([(*key, part.upper[0])], descending=True)
        downwards = msgspec.structs.replace(part, descending=True)
        extents = (
            self._reader.extent(row, up, part, part.upper, now),
            self._reader.extent(row, down, downwards, part.upper, now),
        )
        return await Estimate(self._driver, key, level.reads, now, self._ended_below(row, now)).count(
            *extents, rough=rough
        )

    def measure(self, queues: Sequence[Queue]) -> Iterator[list[Measure]]:
        calls = self._driver.calls
        calls.run(self._watch.require())
        for first in range(0, len(queues), MEASURED_TOGETHER):
            works = map(self._measure, queues[first : first + MEASURED_TOGETHER])
            yield from calls.run(side_by_side(calls, works, most=MEASURED_AT_ONCE), long=True)

    async def _measure(self, queue: Queue) -> list[Measure]:
        row = self._rows.held(queue)
        if row is None:
            began, name = self._clock.boottime(), (queue.application, queue.name)
            [found] = await self._driver.ask_all([Request(queue_cache.FIND, name, self._options.catalogue_read)])
            row = queue_cache.row_of(*name, found[0], began) if found else None
        if row is None or row.queue.version != queue.version:
            return []
        level, now, low_watermarks = self._levels.of(queue), self._clock.now(), self._levels.concludes(queue)
        measures = []
        for first in range(1, row.queue.partitions + 1, LOOKS):
            numbers = range(first, min(first + LOOKS, row.queue.partitions + 1))
            began = self._clock.boottime()
            looks = await self._driver.ask_all(
                [Request(bucket_index.FIRST, (row.queue.qid, number), level.reads) for number in numbers]
            )
            for number, found in zip(numbers, looks, strict=True):
                known = bucket_index.all_of(began, found, low_watermarks=low_watermarks)
                measure = await self._measure_partition(row, known, number, now)
                if measure is not None:
                    measures.append(measure)
        return measures

    async def _measure_partition(self, row: Row, known: BucketLookup | None, number: int, now: int) -> Measure | None:
        if known is not None:
            extent = self._reader.extent(row, known, Slice(number, ids.FIRST, END), END, now)
            if extent.complete and len(extent.sources) <= MAX_BUCKETS:
                reads = self._levels.of(row.queue).reads
                try:
                    key = row.queue.qid, number
                    return await Estimate(self._driver, key, reads, now, self._ended_below(row, now)).measure(extent)
                except TooManyDead:
                    pass  # The other way asks for less at a time.
        return await self._measure_long(row, number, now)

    def _ended_below(self, row: Row, now: int) -> dict[int, Position]:
        """Returns the position below which the home class has rows of ended messages, if the queue keeps these.

        It is that of the longest TTL, which has no day more before the first message is kept. There may be live
        messages below it, whose TTL is of their own: estimates miss them.
        """
        if row.queue.on_expiry == "drop":
            return {}
        ttl = self._options.default_ttl if row.queue.ttl is None else row.queue.ttl
        longest = max(ttl, row.longest_ttl - KEPT_SECONDS)
        return {row.home_class: (now - longest * TICKS_PER_SECOND, LOW_MIN)}

    async def _measure_long(self, row: Row, number: int, now: int) -> Measure | None:
        """Measures a partition with very many buckets or dead rows."""
        [tally] = await self._count(row, [(number, ids.FIRST, END)], now)
        if tally.oldest is None or tally.newest is None:
            return None
        ends = [
            Slice(number, limit=SAMPLE, max_bytes=MORE_BYTES, delayed=False, descending=descending)
            for descending in (False, True)
        ]
        try:
            pages = await self._reader.pages(row.queue, ends, await self._reader.started(row.queue, ends))
        except QueueChanged:
            return None
        sizes = [len(message_codec.encode(message.body, None)[0]) for page in pages for message in page.messages]
        size = tally.size * sum(sizes) // max(1, len(sizes))
        return Measure(number, tally.size, size, exact=False, oldest=tally.oldest, newest=tally.newest)


class Estimate:
    """What a partition holds at one moment.

    Args:
        driver: The connection.
        key: qid and partition.
        consistency: The queue's read level.
        now: Ticks; what has expired by then does not count.
        ended_below: By class, the position below which new ids are not counted by Cassandra.
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
        """Bytes of the bodies that were read."""
        self._samples: dict[Bucket, list[int]] = {}

    async def count(self, up: Extent, down: Extent, *, rough: bool = False) -> Tally:
        """Counts what lies in a range, given what is known of it from below and from above."""
        listed = await self._ids(up, (ROUGHLY_LISTED if rough else LISTED) + 1)
        found = [message.position for message in listed.messages]
        if not listed.more and up.complete:
            return Tally(len(found), exact=True, oldest=found[0], newest=found[-1]) if found else NOTHING
        last = (await self._ids(down, 1, descending=True)).messages
        newest = last[0].position if last else None
        oldest = found[0] if found else newest
        bounds, most = (up.lower, down.upper), ROUGHLY_COUNTED if rough else COUNTED
        narrow, wide = await self._counted([*{*up.sources, *down.sources}], bounds, most)
        narrow += _between(narrow, up, down)
        return Tally(max(len(found), narrow + wide), exact=False, oldest=oldest, newest=newest)

    async def _ids(self, extent: Extent, limit: int, *, descending: bool = False) -> Gathered:
        listing = Slice(self._key[1], extent.lower, extent.upper, limit, descending=descending, bodies=False)
        reader = reading.rounds(listing, extent, self._now, first=math.inf, most=math.inf)
        [gathered] = await reading.run(self._driver, [reader], [self._key], self._consistency)
        return gathered

    async def _counted(
        self, sources: Sequence[BucketSource], bounds: tuple[Position, Position], most: int
    ) -> tuple[int, int]:
        """Returns how many messages the narrow buckets hold, ``most`` of which are counted, and how many the wide."""
        narrow = sorted(
            (source for source in sources if not source.time_bucket.wide), key=lambda source: source.time_bucket.start
        )
        left_out = max(0, len(narrow) - most)
        if left_out:
            narrow = [narrow[len(narrow) * (2 * number + 1) // (2 * most)] for number in range(most)]
        wide = [source for source in sources if source.time_bucket.wide]
        rests = [rest for source in [*narrow, *wide] if (rest := Rest.of(source, *bounds)) is not None]
        try:
            answers = await self._driver.ask_all([self._counting(rest) for rest in rests])
        except TooManyDead:  # An estimate is not worth more than what was listed.
            return 0, 0
        counts: dict[bool, list[int]] = {False: [], True: []}
        for rest, [[count]] in zip(rests, answers, strict=True):
            counts[rest.time_bucket.wide].append(int(count))
        of_narrow = counts[False]
        more = left_out * sum(of_narrow) // len(of_narrow) if of_narrow else 0
        return sum(of_narrow) + more, sum(counts[True])

    async def measure(self, extent: Extent) -> Measure | None:
        """Measures the bytes of bodies as well; returns None if there is nothing.

        A few messages of each bucket are read. Where that is all there are, they are counted; else Cassandra counts the
        rest, and their bytes are estimated by those that were read at both ends.
        """
        # If a message exists in both buckets, the one of chosen ids is used: it comes first.
        left = [
            rest
            for source in sorted(extent.sources, key=lambda source: source.time_bucket.new_ids_only)
            if (rest := Rest.of(source, extent.lower, extent.upper)) is not None
        ]
        limits = [FIRST_ROWS] * len(left)
        for _ in range(2):
            if left:
                answers = await self._driver.ask_all([self._read(*one) for one in zip(left, limits, strict=True)])
                left = [
                    rest
                    for part, limit, answer in zip(left, limits, answers, strict=True)
                    if (rest := self._taken(part, limit, answer)) is not None
                ]
                limits = [self._more(part) for part in left]
        if not left:
            return self._result(len(self._sizes), sum(self._sizes.values()), self._sizes, exact=True)
        counts = [self._counting(part) for part in left]
        ends = [self._read(part, LAST_ROWS, descending=True) for part in left]
        answers = await self._driver.ask_all([*counts, *ends])
        count, size, last = len(self._sizes), sum(self._sizes.values()), dict(self._sizes)
        for part, counted, answer in zip(left, answers, answers[len(left) :], strict=False):
            alive = self._alive(answer)
            last |= alive
            sample = [*self._samples[part.time_bucket], *alive.values()]
            count += counted[0][0]
            size += counted[0][0] * sum(sample) // max(1, len(sample))
        return self._result(count, size, last, exact=False)

    def _result(self, count: int, size: int, seen: dict[Position, int], *, exact: bool) -> Measure | None:
        if not seen:
            return None
        return Measure(self._key[1], count, size, exact, min(seen), max(seen))

    def _counting(self, part: Rest) -> Request:
        lower, upper = part.lower, ids.preceding(part.upper)
        if part.time_bucket.new_ids_only and part.time_bucket.ttl_class in self._ended_below:
            lower = min(max(lower, self._ended_below[part.time_bucket.ttl_class]), upper)
        ends = message_codec.uuid_of(lower), message_codec.uuid_of(upper)
        values = (*self._key, part.time_bucket.bucket, *ends)
        return Request(message_codec.COUNT[part.time_bucket.ttl_class], values, self._consistency)

    def _read(self, part: Rest, limit: int, *, descending: bool = False) -> Encoded:
        probe = Probe(part.time_bucket, part.lower, part.upper, limit, descending)
        return reading.query(self._key, probe, self._consistency)

    def _taken(self, part: Rest, limit: int, answer: Rows) -> Rest | None:
        alive = self._alive(answer)
        self._sizes = alive | self._sizes
        self._samples.setdefault(part.time_bucket, []).extend(alive.values())
        if len(answer) < limit:
            return None
        rest = part._replace(lower=ids.following(message_codec.position_of(answer[-1][0])))
        return rest if rest.lower < rest.upper else None

    def _alive(self, answer: Rows) -> dict[Position, int]:
        return {
            message_codec.position_of(data): len(body)
            for data, body, expires, _ in answer
            if expires is not None and body is not None and expires > self._now
        }

    def _more(self, part: Rest) -> int:
        sample = self._samples[part.time_bucket]
        average = max(1, sum(sample) // max(1, len(sample)))
        return max(1, min(MORE_ROWS, MORE_BYTES // average))


def _between(size: int, up: Extent, down: Extent) -> int:
    """Estimates the count in narrow buckets between two reads that do not meet, by the density that the reads found."""
    starts = [source.time_bucket.start for source in up.sources if not source.time_bucket.wide]
    ends = [source.time_bucket.end for source in down.sources if not source.time_bucket.wide]
    gap = down.lower[0] - up.upper[0]
    if gap <= 0 or not starts or not ends:
        return 0
    reached = max(0, up.upper[0] - min(starts)) + max(0, max(ends) - down.lower[0])
    return size * gap // reached if reached else 0
