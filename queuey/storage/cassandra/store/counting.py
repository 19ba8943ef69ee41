"""How much queues hold, how far groups lag behind, and how large partitions are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from queuey import ids
from queuey.errors import QueueChanged
from queuey.ids import LOW_MIN, TICKS_PER_SECOND, Position
from queuey.messages import Lag, Measure, PartitionInfo, Queue, Slice
from queuey.storage.cassandra import bucket_index, message_codec
from queuey.storage.cassandra.bucket_index import BucketLookup
from queuey.storage.cassandra.catalogue import queue_cache
from queuey.storage.cassandra.catalogue.queue_cache import Row
from queuey.storage.cassandra.driver import Request, TooManyDead
from queuey.storage.cassandra.driver.store_loop import blocking, side_by_side
from queuey.storage.cassandra.read import counting
from queuey.storage.cassandra.store.messages import CassandraMessages

LOOKS = 64
"""Max partitions of one queue whose buckets are looked up together to be measured."""
COUNTED_AT_ONCE = 4
"""Max partitions of one call that are counted side by side."""
MEASURED_AT_ONCE, MEASURED_TOGETHER = 48, 500
"""Max queues that are measured side by side, and whose measures wait for each other."""
SAMPLE = 100
"""Max messages at each end by which the size of very many is estimated."""


class CassandraCounting(CassandraMessages):
    @blocking()
    async def inspect(self, queue: Queue, *, rough: bool = False) -> tuple[int, list[PartitionInfo]]:
        # Counts what is few and estimates what is many, by how dense both ends are.
        start = await self._started(queue, [Slice(1)])
        row = await self._rows.current(queue, since=start.boot)
        numbers = range(1, row.queue.partitions + 1)
        found = await self._count(
            row, [(number, ids.FIRST, counting.END) for number in numbers], start.now, rough=rough
        )
        infos = [
            PartitionInfo(number, tally.size, exact=tally.exact, oldest=tally.oldest, newest=tally.newest)
            for number, tally in zip(numbers, found, strict=True)
        ]
        return start.horizons[0], infos

    @blocking()
    async def lag(self, queue: Queue, offsets: Sequence[tuple[int, Position | None]]) -> list[Lag]:
        start = await self._started(queue, [Slice(1)])
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
            tally = next(tallies) if 0 < number <= row.queue.partitions else counting.NOTHING
            seconds = 0.0 if tally.oldest is None else max(0, now - tally.oldest[0]) / TICKS_PER_SECOND
            found.append(Lag(tally.size, exact=tally.exact, seconds=seconds))
        return found

    async def _count(
        self, row: Row, wanted: Sequence[tuple[int, Position, Position]], now: int, *, rough: bool = False
    ) -> list[counting.Tally]:
        """Counts what lies between positions of partitions, a few partitions at a time."""
        tallies = (self._tally(row, Slice(number, lower, upper), now, rough=rough) for number, lower, upper in wanted)
        return await side_by_side(self._driver.calls, tallies, most=COUNTED_AT_ONCE)

    async def _tally(self, row: Row, part: Slice, now: int, *, rough: bool) -> counting.Tally:
        key, level = (row.queue.qid, part.partition), self._levels.of(row.queue)
        look = partial(
            self._bucket_index.lookup, consistency=level.reads, low_watermarks=self._levels.concludes(row.queue)
        )
        [up] = await look([(*key, part.lower[0])])
        [down] = await look([(*key, part.upper[0])], descending=True)
        downwards = msgspec.structs.replace(part, descending=True)
        extents = (
            self._extent(row, up, part, part.upper, now),
            self._extent(row, down, downwards, part.upper, now),
        )
        return await counting.tally(self._driver, key, extents, level.reads, now=now, rough=rough)

    def measure(self, queues: Sequence[Queue]) -> Iterator[list[Measure]]:
        calls = self._driver.calls
        calls.run(self._watch.require())
        for first in range(0, len(queues), MEASURED_TOGETHER):
            works = map(self._measure, queues[first : first + MEASURED_TOGETHER])
            yield from calls.run_long(side_by_side(calls, works, most=MEASURED_AT_ONCE))

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
            extent = self._extent(row, known, Slice(number, ids.FIRST, counting.END), counting.END, now)
            if extent.complete and len(extent.sources) <= counting.MAX_BUCKETS:
                reads = self._levels.of(row.queue).reads
                try:
                    key = row.queue.qid, number
                    return await counting.Measurement(self._driver, key, reads, now).measure(extent)
                except TooManyDead:
                    pass  # The other way asks for less at a time.
        return await self._measure_long(row, number, now)

    async def _measure_long(self, row: Row, number: int, now: int) -> Measure | None:
        """Measures a partition with very many buckets or dead rows."""
        [tally] = await self._count(row, [(number, ids.FIRST, counting.END)], now)
        if tally.oldest is None or tally.newest is None:
            return None
        ends = [
            Slice(number, limit=SAMPLE, max_bytes=counting.MORE_BYTES, delayed=False, descending=descending)
            for descending in (False, True)
        ]
        try:
            pages = await self._pages(row.queue, ends, await self._started(row.queue, ends))
        except QueueChanged:
            return None
        sizes = [len(message_codec.encode(message.body, None)[0]) for page in pages for message in page.messages]
        size = tally.size * sum(sizes) // max(1, len(sizes))
        return Measure(number, tally.size, size, exact=False, oldest=tally.oldest, newest=tally.newest)
