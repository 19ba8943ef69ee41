"""The record of buckets: when it is asked, how far a look reaches, and the low watermark."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.ids import TICKS_PER_SECOND
from queuey.storage.cassandra import bucket_index, bucketing
from queuey.storage.cassandra.bucket_index import (
    FIRST_LOOK,
    LOW_WATERMARK_EVERY,
    LOW_WATERMARK_STEP,
    MORE,
    REFRESH_PUT,
    BucketIndex,
    BucketLookup,
)
from queuey.storage.cassandra.bucketing import CLASSES, PUT, Bucket
from queuey.storage.cassandra.clocks.timing_in_force import TimingInForce
from queuey.storage.cassandra.driver import Request
from queuey.storage.cassandra.message_codec import uuid_of
from queuey.storage.cassandra.options import CassandraOptions, Level
from tests import strategies
from tests.unit.cassandra.simulated import BOOTED, CalmDriver

START = ids.seconds_to_ticks(BOOTED)
END = ids.TICKS_MAX + 1
KEY = (7, 1)
AGE = 3600.0
"""Seconds for which a look may be used."""
OPTIONS = CassandraOptions(row_age=AGE, levels={"strong": Level(None, None, delay=2 * AGE)})


class Record:
    """The record of one partition, and a process that uses it."""

    def __init__(self, time_buckets: Sequence[Bucket] = (), *, size: int = 1000) -> None:
        self.driver = CalmDriver()
        clock = self.driver.clock()
        self.index = BucketIndex(self.driver, clock, size, TimingInForce(OPTIONS, clock))
        other = BucketIndex(self.driver, clock, 1, TimingInForce(OPTIONS, clock))
        self.driver.ended(other.record(*KEY, time_buckets, consistency="QUORUM"))
        self.driver.sent.clear()

    def lookup(
        self, at: int = 0, *, part: int = 1, low_watermarks: bool = True, descending: bool = False, kept: bool = False
    ) -> BucketLookup:
        """Looks a partition up."""
        lookup = self.index.lookup(
            [(KEY[0], part, at)],
            consistency="QUORUM",
            low_watermarks=low_watermarks,
            descending=descending,
            kept=kept,
        )
        known: list[BucketLookup] = self.driver.ended(lookup)
        return known[0]

    def cached(
        self,
        low: int = START,
        high: int = START + 1,
        *,
        since: float = 0.0,
        part: int = 1,
        descending: bool = False,
        kept: bool = False,
    ) -> BucketLookup | None:
        """What is remembered."""
        return self.index.cached(KEY[0], part, low, high, since=since, descending=descending, kept=kept)

    def record(self, *time_buckets: Bucket, part: int = 1) -> int:
        """Records buckets; returns how many are written."""
        before = len(self.driver.sent)
        self.driver.ended(self.index.record(KEY[0], part, time_buckets, consistency="QUORUM"))
        return sum(1 + len(request.further) for request in self.driver.sent[before:] if isinstance(request, Request))

    def set_low_watermark(self, ticks: int) -> None:
        """Has a low watermark be recorded."""
        values = (9999, uuid_of((ticks, 0)), *KEY)
        self.driver.run(bucket_index.SET_LOW_WATERMARK, values)

    def raises(self, known: BucketLookup, ticks: int, *, part: int = 1) -> bool:
        """Asks for a higher low watermark; returns whether one was written."""
        before = self.driver.count([bucket_index.SET_LOW_WATERMARK])
        self.index.raise_low_watermark((KEY[0], part), known, (ticks, -9), lifetime=9999, consistency="QUORUM")
        return self.driver.count([bucket_index.SET_LOW_WATERMARK]) > before


def row_of(width_index: int, number: int, kind: int = 1) -> Bucket:
    """The bucket of a width with a number, counted from a fixed time."""
    return bucketing.bucket_of(START + number * bucketing.width(kind, width_index), kind, width_index)


def overlapping(time_buckets: Sequence[Bucket], known: BucketLookup) -> set[Bucket]:
    """The buckets that lie within a look's bounds."""
    return {one for one in time_buckets if one.start < known.high and one.end > known.low}


# Writing


@pytest.mark.parametrize("width_index", [3, PUT, bucketing.LOAD, bucketing.DENSE_LOAD])
def test_a_bucket_is_recorded_once(width_index: int) -> None:
    """A process records a bucket of new ids before its first use and never again, one of given ids once an hour."""
    record, time_bucket = Record(), row_of(width_index, 0)
    record.driver.fail = lambda _request: StoreUnavailable("down")
    with pytest.raises(StoreUnavailable):
        record.record(time_bucket)
    record.driver.fail = lambda _request: None
    assert record.record(time_bucket, time_bucket) == 1
    assert record.record(time_bucket, part=2) == 1
    record.driver.advance(REFRESH_PUT - 1)
    assert record.record(time_bucket) == 0
    record.driver.advance(1)
    assert record.record(time_bucket) == (0 if time_bucket.new_ids_only else 1)
    assert record.record(*(row_of(6, number) for number in range(1, 251))) == 250


@given(strategies.ticks() | st.integers(START - 10**15, START + 10**15), st.sampled_from(range(4)), st.integers(0, 7))
def test_a_record_outlives_what_it_names(at: int, kind: int, width_index: int) -> None:
    """A record lives until all that is written to its bucket, within an hour if ids are given, has ended."""
    record, time_bucket = Record(), bucketing.bucket_of(at, kind, width_index)
    record.record(time_bucket)
    [request] = record.driver.sent
    assert isinstance(request, Request)
    ttl = request.values[-1]
    assert 0 < ttl <= bucketing.longest_ttl(START)
    newest = max(START + round(REFRESH_PUT) * TICKS_PER_SECOND, time_bucket.end)
    if ttl < bucketing.longest_ttl(START):
        assert START + ttl * TICKS_PER_SECOND >= newest + CLASSES[kind] * TICKS_PER_SECOND


# Reading


def test_an_idle_partition_costs_one_query() -> None:
    """One look says all there is, whatever it was for; there may be a low watermark and no bucket."""
    time_buckets = [row_of(2, number) for number in range(FIRST_LOOK - 1)]
    record = Record(time_buckets)
    known = record.lookup(START)
    assert (known.low, known.high, {*known.recorded.time_buckets}) == (0, END, {*time_buckets})
    assert len(record.driver.sent) == 1
    empty = Record()
    empty.set_low_watermark(START)
    known = empty.lookup()
    assert (known.recorded.time_buckets, known.low_watermark) == ((), (START, 0))


def test_a_look_is_remembered_until_it_is_too_old() -> None:
    """A look counts from its beginning, in its direction, until this process records a bucket; then memory is freed."""
    record = Record([row_of(2, 0)], size=3)
    before = record.driver.clock().boottime()
    assert record.cached() is None
    known = record.lookup()  # Takes a millisecond, in which others may record.
    assert known.began == before
    assert record.cached(since=known.began) is known
    assert record.cached(since=known.began + 0.0005) is None
    assert record.cached(descending=True) is None
    record.lookup(descending=True)
    record.record(row_of(3, 0))
    assert (record.cached(), record.cached(descending=True)) == (None, None)
    assert {*record.lookup().recorded.time_buckets} == {row_of(2, 0), row_of(3, 0)}
    for part in range(2, 10):
        record.record(row_of(3, 0), part=part)
        record.lookup(part=part)
    assert [part for part in range(10) if record.cached(part=part)] == [7, 8, 9]


RUNS = {
    "none": [],
    "one more than a first look": [row_of(3, number) for number in range(FIRST_LOOK + 1)],
    "as many as a look": [row_of(4, number) for number in range(MORE)],
    "several looks": [row_of(4, 3 * number) for number in range(2 * MORE + 1)],
    "several widths and classes": [
        row_of(width, 5 * number, kind)
        for width, count in ((1, 40), (0, 3), (3, MORE // 3), (6, MORE // 2), (PUT, 3))
        for number in range(count)
        for kind in (0, 1, 3)
    ],
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("descending", [False, True])
def test_looks_lead_through_all_buckets(run: str, *, descending: bool) -> None:
    """Each look knows all that overlaps its bounds; going on where it ended, all buckets are seen in a few looks."""
    time_buckets = RUNS[run]
    record = Record(time_buckets)
    seen: set[Bucket] = set()
    at, looks = (END, 0) if descending else (0, 0)
    while at > 0 if descending else at < END:
        low, high = (0, at) if descending else (at, END)
        known = record.cached(low, high, descending=descending) or record.lookup(at, descending=descending)
        assert known.low < at <= known.high if descending else known.low <= at < known.high
        assert overlapping(time_buckets, known) <= {*known.recorded.time_buckets} <= {*time_buckets}
        seen.update(known.recorded.time_buckets)
        at = known.low if descending else known.high
        looks += 1
    assert seen == {*time_buckets}
    assert looks <= 1 + len(time_buckets) * 4 // MORE


def test_a_look_does_not_walk_over_what_lies_below_the_low_watermark() -> None:
    """New ids below it are left out, given ones are not; where it may not be trusted it hides no bucket."""
    minted = [row_of(4, number) for number in range(2 * MORE)]
    given_ids = [row_of(6, 0), row_of(PUT, -3)]
    record = Record([*minted, *given_ids])
    assert record.lookup().high < minted[-1].start
    record.set_low_watermark(minted[-10].start)
    known = record.lookup()
    assert (known.high, known.low_watermark) == (END, (minted[-10].start, 0))
    assert {*minted[-10:], *given_ids} <= {*known.recorded.time_buckets}
    assert len(known.recorded.time_buckets) <= 11 + len(given_ids)
    assert record.cached(minted[0].start, minted[0].end, kept=True) is None
    of_kept = record.lookup(kept=True)
    assert record.cached(minted[0].start, minted[0].end, kept=True) is of_kept
    assert record.cached(minted[0].start, minted[0].end) is known
    for untrusting in (record.lookup(low_watermarks=False), of_kept):
        assert untrusting.low_watermark is None
        assert overlapping(minted, untrusting) <= {*untrusting.recorded.time_buckets}
        assert minted[0] in untrusting.recorded.time_buckets


@pytest.mark.parametrize("descending", [False, True])
def test_readers_at_the_tail_of_a_hot_partition_share_a_look(*, descending: bool) -> None:
    """A look at the tail serves cursors of the last minute, and upper bounds that move on with the clock."""
    time_buckets = [row_of(4, number) for number in range(2 * MORE)]
    record = Record(time_buckets)
    at = time_buckets[-1].end
    known = record.lookup(at, descending=descending)
    assert len(record.driver.sent) == 9
    for moved in (-50, 0, 50):
        tail = at + moved * TICKS_PER_SECOND
        low, high = (0, tail) if descending else (tail, END)
        assert record.cached(low, high, since=known.began, descending=descending) is known


# The low watermark


def test_a_low_watermark_is_raised_only_if_it_is_worth_it() -> None:
    """It is raised by a step at least, once in some seconds for each partition; a failure hurts nobody."""
    record = Record()
    record.set_low_watermark(START)
    known = record.lookup()
    assert not record.raises(known, START + LOW_WATERMARK_STEP - 1)
    assert record.raises(known, START + LOW_WATERMARK_STEP)
    assert record.lookup().low_watermark == (START + LOW_WATERMARK_STEP, -9)
    record.driver.advance(LOW_WATERMARK_EVERY - 0.1)
    assert not record.raises(known, START + 2 * LOW_WATERMARK_STEP)
    assert record.raises(known, START + 2 * LOW_WATERMARK_STEP, part=2)
    record.driver.advance(0.1)
    record.driver.fail = lambda _request: StoreUnavailable("down")
    assert record.raises(known, START + 2 * LOW_WATERMARK_STEP)
