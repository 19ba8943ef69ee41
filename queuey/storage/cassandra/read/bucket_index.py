"""The recorded buckets of a queue partition. Readers also read some buckets that are never recorded.

A writer records a bucket at the queue's write level before it generates an id for it. So a reader with a lookup that
began after its horizon (plus S) knows every bucket that can hold an id below that horizon. Lookups are cached by that
rule.

The record also holds the partition's **low watermark**: no message under a new id is alive below it. A reader without a
cursor begins there, behind any number of deleted messages. The low watermark must be true but need not be exact, and
once true it stays so. Where reads may miss acknowledged writes
(:meth:`..statements.consistency_levels.ConsistencyLevels.is_empty_read_proof`), no low watermark is written, and an
existing one is ignored.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.ids import TICKS_PER_SECOND, Position
from queuey.storage.cassandra.cluster import Driver, Rows, Statement, StatementRequest
from queuey.storage.cassandra.statements.message_codec import uuid_of
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.time.bucketing import CLASSES, Bucket, RecordedBuckets
from queuey.storage.cassandra.time.clock import ExpiringCache, SteadyClock
from queuey.storage.cassandra.time.timing_in_force import TimingInForce

log = logging.getLogger(__name__)

MAX_FIRST_ROWS = 64
"""Max rows of the first lookup: nearly all partitions have fewer."""
MAX_FURTHER_ROWS = 500
BUCKETS_LIKE_A_LOOKUP = 16
"""Number of buckets that need as much memory as the rest of a lookup."""
RECORD_TTL_MARGIN = 7200
"""Min seconds that a record outlives its bucket's messages: longer than a writer uses it without renewal."""
PUT_RECORD_INTERVAL = 3600.0
"""Interval after which a bucket of given ids is recorded again, in seconds: it may get messages at any time."""
_LOOKBACK_TICKS = 60 * TICKS_PER_SECOND
"""Number of ticks that a lookup begins below the requested tick, so that readers with nearby cursors share it."""
LOW_WATERMARK_INTERVAL = 5.0
MIN_LOW_WATERMARK_STEP = TICKS_PER_SECOND
"""Min step of a low watermark, in ticks. The interval between two steps is in seconds."""

Key = tuple[int, int]
"""qid and partition."""

SELECT_FIRST = Statement(
    "SELECT low_watermark, width_index, start, ttl_class FROM bucket_index WHERE qid = ? AND partition = ? LIMIT "
    f"{MAX_FIRST_ROWS}"
)
_SELECT_WIDTH = Statement(
    "SELECT low_watermark, width_index, start, ttl_class FROM bucket_index WHERE qid = ? AND partition = ? AND "
    "width_index = ?"
)
_SELECT_UPWARDS = Statement(
    "SELECT low_watermark, width_index, start, ttl_class FROM bucket_index WHERE qid = ? AND partition = ? AND "
    "width_index = ? AND start > ? "
    f"ORDER BY width_index DESC, start ASC, ttl_class DESC LIMIT {MAX_FURTHER_ROWS}"
)
_SELECT_DOWNWARDS = Statement(
    "SELECT low_watermark, width_index, start, ttl_class FROM bucket_index "
    f"WHERE qid = ? AND partition = ? AND width_index = ? AND start > ? AND start < ? LIMIT {MAX_FURTHER_ROWS}"
)
_RECORD_BUCKET = Statement(
    "INSERT INTO bucket_index (qid, partition, width_index, start, ttl_class) VALUES (?, ?, ?, ?, ?) USING TTL ?"
)
SET_LOW_WATERMARK = Statement("UPDATE bucket_index USING TTL ? SET low_watermark = ? WHERE qid = ? AND partition = ?")

STATEMENTS_TO_PREPARE = (SELECT_FIRST, _SELECT_WIDTH, _SELECT_UPWARDS, _SELECT_DOWNWARDS, SET_LOW_WATERMARK)


class BucketLookup(NamedTuple):
    """The result of a lookup.

    Attributes:
        began: Boot time at which it began.
        recorded: All recorded buckets that overlap ``[low, high)``; buckets below the low watermark may be missing.
        low, high: Ticks between which it is complete.
        low_watermark: No message under a new id lies below. None if it is not recorded, or must not be trusted.
    """

    began: float
    recorded: RecordedBuckets
    low: int
    high: int
    low_watermark: Position | None


NO_BUCKETS = RecordedBuckets(())


class BucketIndex:
    """The record of buckets, with a cache, in the thread of the store's loop."""

    def __init__(self, driver: Driver, clock: SteadyClock, size: int, timing: TimingInForce) -> None:
        self._driver = driver
        self._clock = clock
        self._size = size
        self._known: ExpiringCache[tuple[int, int, bool, bool], BucketLookup] = ExpiringCache(
            clock.boottime, partial(attrgetter("stored.kept.row_age"), timing), size
        )
        self._recorded: OrderedDict[tuple[int, int, Bucket], float] = OrderedDict()
        self._raised: ExpiringCache[Key, float] = ExpiringCache(clock.boottime, lambda: LOW_WATERMARK_INTERVAL, size)

    # Writing

    def is_recorded(self, qid: int, part: int, time_bucket: Bucket) -> bool:
        recorded_at = self._recorded.get((qid, part, time_bucket))
        return recorded_at is not None and (
            time_bucket.new_ids_only or self._clock.boottime() - recorded_at < PUT_RECORD_INTERVAL
        )

    async def record(self, qid: int, part: int, time_buckets: Iterable[Bucket], *, consistency: str) -> None:
        """Records buckets that this process has not recorded yet; then drops the partition's cached lookups."""
        missing = [
            time_bucket for time_bucket in dict.fromkeys(time_buckets) if not self.is_recorded(qid, part, time_bucket)
        ]
        if not missing:
            return
        now = self._clock.boottime()
        records = [
            (_RECORD_BUCKET, (qid, part, bucket.width_index, bucket.start, bucket.ttl_class, self._lifetime(bucket)))
            for bucket in missing
        ]
        for start in range(0, len(records), 100):
            (statement, values), *further = records[start : start + 100]
            await self._driver.ask(StatementRequest(statement, values, consistency, further=further))
        for time_bucket in missing:
            _remember(self._recorded, (qid, part, time_bucket), now, self._size)
        for descending in (False, True):
            for kept in (False, True):
                self._known.pop((qid, part, descending, kept))

    def _lifetime(self, time_bucket: Bucket) -> int:
        """Seconds to keep a record: by then all messages of the bucket have expired."""
        now = self._clock.now()
        ahead = max(0, time_bucket.end - now) // TICKS_PER_SECOND
        return min(ahead + CLASSES[time_bucket.ttl_class] + RECORD_TTL_MARGIN, bucketing.max_cassandra_ttl(now))

    # Reading

    def find_cached(
        self, qid: int, part: int, low: int, high: int, *, since: float, descending: bool, kept: bool = False
    ) -> BucketLookup | None:
        """Returns the remembered lookup if it began at ``since`` or later and covers the tick where reading begins."""
        lookup = self._known.get((qid, part, descending, kept))
        if lookup is None or lookup.began < since:
            return None
        reaches = lookup.low < high <= lookup.high if descending else lookup.low <= low < lookup.high
        return lookup if reaches else None

    def forget_all(self) -> None:
        self._known.clear()

    async def read_lookups(
        self,
        starts: Sequence[tuple[int, int, int]],
        *,
        consistency: str,
        trust_low_watermarks: bool,
        descending: bool = False,
        kept: bool = False,
    ) -> list[BucketLookup]:
        """Reads and caches the recorded buckets of partitions, given qid, partition and the tick to begin at.

        Partitions with many buckets are read only near that tick (see ``low`` and ``high``). ``kept``: for a read that
        shows rows of kept messages after their end, which may lie below the low watermark.
        """
        trust_low_watermarks = trust_low_watermarks and not kept
        if not starts:
            return []
        began = self._clock.boottime()
        first = await self._driver.ask_all(
            [StatementRequest(SELECT_FIRST, (qid, part), consistency) for qid, part, _ in starts]
        )
        lookups = []
        for (qid, part, start), rows in zip(starts, first, strict=True):
            lookup = complete_lookup(began, rows, trust_low_watermarks=trust_low_watermarks)
            if lookup is None:
                low_watermark = _parse_low_watermark(rows) if trust_low_watermarks else None
                key = (qid, part)
                lookup = await self._read_lookup_near(
                    began, key, start, low_watermark, consistency, descending=descending
                )
            weight = 1 + len(lookup.recorded.time_buckets) // BUCKETS_LIKE_A_LOOKUP
            self._known.put((qid, part, descending, kept), lookup, began, weight)
            lookups.append(lookup)
        return lookups

    async def _read_lookup_near(
        self, began: float, key: Key, start: int, low_watermark: Position | None, consistency: str, *, descending: bool
    ) -> BucketLookup:
        """Reads the buckets of a partition near ``start`` (ticks).

        Reads all of the home width and of puts, but of each other width only ``MAX_FURTHER_ROWS``. The
        lookup is complete only between its ``low`` and ``high``.
        """
        narrow = [
            width_index
            for width_index in bucketing.WIDTHS
            if width_index not in {bucketing.HOME_WIDTH, bucketing.PUT_WIDTH}
        ]
        requests = [
            StatementRequest(_SELECT_WIDTH, (*key, width), consistency)
            for width in (bucketing.HOME_WIDTH, bucketing.PUT_WIDTH)
        ]
        low = 0 if descending else max(0, start - _LOOKBACK_TICKS)
        high = start + _LOOKBACK_TICKS if descending else ids.TICKS_MAX + 1
        for width_index in narrow:
            lowest = max(low, low_watermark[0]) if low_watermark and width_index < bucketing.PUT_WIDTH else low
            bottom = lowest - bucketing.width(len(CLASSES) - 1, width_index)
            statement, ends = (_SELECT_DOWNWARDS, (bottom, high)) if descending else (_SELECT_UPWARDS, (bottom,))
            requests.append(StatementRequest(statement, (*key, width_index, *ends), consistency))
        answers = await self._driver.ask_all(requests)
        for rows in answers[2:]:
            if len(rows) >= MAX_FURTHER_ROWS:  # There may be more rows: the lookup is incomplete beyond the last one.
                last = rows[-1][2]
                if descending:
                    low = max(low, last + bucketing.width(rows[-1][3], rows[-1][1]))
                else:
                    high = min(high, last)
        rows = [row for answer in answers for row in answer]
        return BucketLookup(began, RecordedBuckets(_to_buckets(rows)), low, high, low_watermark)

    # The low watermark

    def raise_low_watermark(
        self, key: Key, known: BucketLookup, low_watermark: Position, *, lifetime: int, consistency: str
    ) -> None:
        """Raises a partition's low watermark, unless the step is small or the last one was just made.

        Neither waits nor fails. ``lifetime``: seconds for which the low watermark can matter to a reader.
        """
        if low_watermark[0] - (known.low_watermark[0] if known.low_watermark else 0) < MIN_LOW_WATERMARK_STEP:
            return
        now = self._clock.boottime()
        raised = self._raised.get(key)
        if raised is not None and now - raised < LOW_WATERMARK_INTERVAL:
            return
        self._raised.put(key, now, now)
        values = lifetime, uuid_of(low_watermark), *key
        with self._driver.calls.deadline.without_marking_sent():  # Not part of the read that found it.
            self._driver.send(StatementRequest(SET_LOW_WATERMARK, values, consistency), _log_failure)


def complete_lookup(began: float, rows: Rows, *, trust_low_watermarks: bool) -> BucketLookup | None:
    if len(rows) >= MAX_FIRST_ROWS:
        return None
    low_watermark = _parse_low_watermark(rows) if trust_low_watermarks else None
    time_buckets = _to_buckets(rows)
    recorded = RecordedBuckets(time_buckets) if time_buckets else NO_BUCKETS
    return BucketLookup(began, recorded, 0, ids.TICKS_MAX + 1, low_watermark)


def _log_failure(_rows: Rows | None, error: StoreUnavailable | None) -> None:
    if error is not None:
        log.info("A low watermark could not be raised: %s", error)


def _to_buckets(rows: Rows) -> tuple[Bucket, ...]:
    return tuple(
        Bucket(ttl_class, (start // bucketing.width(ttl_class, width_index)) << 3 | width_index)
        for _, width_index, start, ttl_class in rows
        if width_index is not None  # A partition with a low watermark and no bucket gives one row without them.
    )


def _parse_low_watermark(rows: Rows) -> Position | None:
    return ids.parse_position(rows[0][0].hex) if rows and rows[0][0] is not None else None


def _remember(cache: OrderedDict[Any, Any], key: Any, value: Any, size: int) -> None:  # noqa: ANN401
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > size:
        cache.popitem(last=False)
