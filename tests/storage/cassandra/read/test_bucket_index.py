"""Tests of the bucket index: when it is queried, how far a lookup reaches, and the low watermark."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.ids import TICKS_PER_SECOND
from queuey.storage.cassandra.cluster import StatementRequest
from queuey.storage.cassandra.cluster.options import CassandraOptions, Level
from queuey.storage.cassandra.read import bucket_index
from queuey.storage.cassandra.read.bucket_index import (
    LOW_WATERMARK_INTERVAL,
    MAX_FIRST_ROWS,
    MAX_FURTHER_ROWS,
    MIN_LOW_WATERMARK_STEP,
    PUT_RECORD_INTERVAL,
    BucketIndex,
    BucketLookup,
)
from queuey.storage.cassandra.statements.message_codec import uuid_of
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.time.bucketing import CLASSES, PUT_WIDTH, Bucket
from queuey.storage.cassandra.time.timing_in_force import TimingInForce
from tests import strategies
from tests.storage.cassandra.simulated import BOOTED, FaultlessDriver

START = ids.seconds_to_ticks(BOOTED)
END = ids.TICKS_MAX + 1
KEY = (7, 1)
AGE = 3600.0
"""Max age of a lookup, in seconds."""
OPTIONS = CassandraOptions(row_age=AGE, levels={"strong": Level(None, None, delay=2 * AGE)})


class Record:
    """The index of one partition, and a process that uses it."""

    def __init__(self, time_buckets: Sequence[Bucket] = (), *, size: int = 1000) -> None:
        self.driver = FaultlessDriver()
        clock = self.driver.clock()
        self.index = BucketIndex(self.driver, clock, size, TimingInForce(OPTIONS, clock))
        other = BucketIndex(self.driver, clock, 1, TimingInForce(OPTIONS, clock))
        self.driver.run_to_end(other.record(*KEY, time_buckets, consistency="QUORUM"))
        self.driver.sent.clear()

    def lookup(
        self, at: int = 0, *, part: int = 1, low_watermarks: bool = True, descending: bool = False, kept: bool = False
    ) -> BucketLookup:
        lookup = self.index.read_lookups(
            [(KEY[0], part, at)],
            consistency="QUORUM",
            trust_low_watermarks=low_watermarks,
            descending=descending,
            kept=kept,
        )
        lookups: list[BucketLookup] = self.driver.run_to_end(lookup)
        return lookups[0]

    def find_cached(
        self,
        low: int = START,
        high: int = START + 1,
        *,
        since: float = 0.0,
        part: int = 1,
        descending: bool = False,
        kept: bool = False,
    ) -> BucketLookup | None:
        return self.index.find_cached(KEY[0], part, low, high, since=since, descending=descending, kept=kept)

    def record(self, *time_buckets: Bucket, part: int = 1) -> int:
        before = len(self.driver.sent)
        self.driver.run_to_end(self.index.record(KEY[0], part, time_buckets, consistency="QUORUM"))
        return sum(
            1 + len(request.further) for request in self.driver.sent[before:] if isinstance(request, StatementRequest)
        )

    def set_low_watermark(self, ticks: int) -> None:
        values = (9999, uuid_of((ticks, 0)), *KEY)
        self.driver.run(bucket_index.SET_LOW_WATERMARK, values)

    def raises(self, known: BucketLookup, ticks: int, *, part: int = 1) -> bool:
        before = self.driver.count([bucket_index.SET_LOW_WATERMARK])
        self.index.raise_low_watermark((KEY[0], part), known, (ticks, -9), lifetime=9999, consistency="QUORUM")
        return self.driver.count([bucket_index.SET_LOW_WATERMARK]) > before


def row_of(width_index: int, number: int, kind: int = 1) -> Bucket:
    return bucketing.bucket_of(START + number * bucketing.width(kind, width_index), kind, width_index)


def overlapping(time_buckets: Sequence[Bucket], known: BucketLookup) -> set[Bucket]:
    return {one for one in time_buckets if one.start < known.high and one.end > known.low}


# Writing


@pytest.mark.parametrize("width_index", [3, PUT_WIDTH, bucketing.LOAD_WIDTH, bucketing.DENSE_LOAD_WIDTH])
def test_a_bucket_is_recorded_once(width_index: int) -> None:
    """A process records a bucket of new ids once, before its first use, and one of given ids once an hour."""
    record, time_bucket = Record(), row_of(width_index, 0)
    record.driver.fail = lambda _request: StoreUnavailable("down")
    with pytest.raises(StoreUnavailable):
        record.record(time_bucket)
    record.driver.fail = lambda _request: None
    assert record.record(time_bucket, time_bucket) == 1
    assert record.record(time_bucket, part=2) == 1
    record.driver.advance(PUT_RECORD_INTERVAL - 1)
    assert record.record(time_bucket) == 0
    record.driver.advance(1)
    assert record.record(time_bucket) == (0 if time_bucket.new_ids_only else 1)
    assert record.record(*(row_of(6, number) for number in range(1, 251))) == 250


@given(strategies.ticks() | st.integers(START - 10**15, START + 10**15), st.sampled_from(range(4)), st.integers(0, 7))
def test_a_record_outlives_what_it_names(at: int, kind: int, width_index: int) -> None:
    """A record lives until all messages written to its bucket, within an hour if ids are given, have ended."""
    record, time_bucket = Record(), bucketing.bucket_of(at, kind, width_index)
    record.record(time_bucket)
    [request] = record.driver.sent
    assert isinstance(request, StatementRequest)
    ttl = request.values[-1]
    assert 0 < ttl <= bucketing.max_cassandra_ttl(START)
    newest = max(START + round(PUT_RECORD_INTERVAL) * TICKS_PER_SECOND, time_bucket.end)
    if ttl < bucketing.max_cassandra_ttl(START):
        assert START + ttl * TICKS_PER_SECOND >= newest + CLASSES[kind] * TICKS_PER_SECOND


# Reading


def test_an_idle_partition_costs_one_query() -> None:
    """One lookup of an idle partition finds everything; it may have a low watermark and no buckets."""
    time_buckets = [row_of(2, number) for number in range(MAX_FIRST_ROWS - 1)]
    record = Record(time_buckets)
    result = record.lookup(START)
    assert (result.low, result.high, {*result.recorded.time_buckets}) == (0, END, {*time_buckets})
    assert len(record.driver.sent) == 1
    empty = Record()
    empty.set_low_watermark(START)
    result = empty.lookup()
    assert (result.recorded.time_buckets, result.low_watermark) == ((), (START, 0))


def test_a_look_is_remembered_until_it_is_too_old() -> None:
    """A lookup is reused from its beginning, in its direction, until this process records a bucket."""
    record = Record([row_of(2, 0)], size=3)
    before = record.driver.clock().boottime()
    assert record.find_cached() is None
    result = record.lookup()  # This takes a millisecond, in which others may record.
    assert result.began == before
    assert record.find_cached(since=result.began) is result
    assert record.find_cached(since=result.began + 0.0005) is None
    assert record.find_cached(descending=True) is None
    record.lookup(descending=True)
    record.record(row_of(3, 0))
    assert (record.find_cached(), record.find_cached(descending=True)) == (None, None)
    assert {*record.lookup().recorded.time_buckets} == {row_of(2, 0), row_of(3, 0)}
    for part in range(2, 10):
        record.record(row_of(3, 0), part=part)
        record.lookup(part=part)
    assert [part for part in range(10) if record.find_cached(part=part)] == [7, 8, 9]


RUNS = {
    "none": [],
    "one more than a first look": [row_of(3, number) for number in range(MAX_FIRST_ROWS + 1)],
    "as many as a look": [row_of(4, number) for number in range(MAX_FURTHER_ROWS)],
    "several looks": [row_of(4, 3 * number) for number in range(2 * MAX_FURTHER_ROWS + 1)],
    "several widths and classes": [
        row_of(width, 5 * number, kind)
        for width, count in ((1, 40), (0, 3), (3, MAX_FURTHER_ROWS // 3), (6, MAX_FURTHER_ROWS // 2), (PUT_WIDTH, 3))
        for number in range(count)
        for kind in (0, 1, 3)
    ],
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("descending", [False, True])
def test_looks_lead_through_all_buckets(run: str, *, descending: bool) -> None:
    """Each lookup has all buckets within its bounds; a chain of a few lookups finds all buckets."""
    time_buckets = RUNS[run]
    record = Record(time_buckets)
    seen: set[Bucket] = set()
    bound, looks = (END, 0) if descending else (0, 0)
    while bound > 0 if descending else bound < END:
        low, high = (0, bound) if descending else (bound, END)
        result = record.find_cached(low, high, descending=descending) or record.lookup(bound, descending=descending)
        assert result.low < bound <= result.high if descending else result.low <= bound < result.high
        assert overlapping(time_buckets, result) <= {*result.recorded.time_buckets} <= {*time_buckets}
        seen.update(result.recorded.time_buckets)
        bound = result.low if descending else result.high
        looks += 1
    assert seen == {*time_buckets}
    assert looks <= 1 + len(time_buckets) * 4 // MAX_FURTHER_ROWS


def test_a_look_does_not_walk_over_what_lies_below_the_low_watermark() -> None:
    """New ids below the low watermark are skipped, given ones are not; an untrusted watermark hides no bucket."""
    minted = [row_of(4, number) for number in range(2 * MAX_FURTHER_ROWS)]
    given_ids = [row_of(6, 0), row_of(PUT_WIDTH, -3)]
    record = Record([*minted, *given_ids])
    assert record.lookup().high < minted[-1].start
    record.set_low_watermark(minted[-10].start)
    result = record.lookup()
    assert (result.high, result.low_watermark) == (END, (minted[-10].start, 0))
    assert {*minted[-10:], *given_ids} <= {*result.recorded.time_buckets}
    assert len(result.recorded.time_buckets) <= 11 + len(given_ids)
    assert record.find_cached(minted[0].start, minted[0].end, kept=True) is None
    of_kept = record.lookup(kept=True)
    assert record.find_cached(minted[0].start, minted[0].end, kept=True) is of_kept
    assert record.find_cached(minted[0].start, minted[0].end) is result
    for untrusting in (record.lookup(low_watermarks=False), of_kept):
        assert untrusting.low_watermark is None
        assert overlapping(minted, untrusting) <= {*untrusting.recorded.time_buckets}
        assert minted[0] in untrusting.recorded.time_buckets


@pytest.mark.parametrize("descending", [False, True])
def test_readers_at_the_tail_of_a_hot_partition_share_a_look(*, descending: bool) -> None:
    """A lookup at the tail serves cursors of the last minute, and upper bounds that move with the clock."""
    time_buckets = [row_of(4, number) for number in range(2 * MAX_FURTHER_ROWS)]
    record = Record(time_buckets)
    time = time_buckets[-1].end
    result = record.lookup(time, descending=descending)
    assert len(record.driver.sent) == 9
    for moved in (-50, 0, 50):
        tail = time + moved * TICKS_PER_SECOND
        low, high = (0, tail) if descending else (tail, END)
        assert record.find_cached(low, high, since=result.began, descending=descending) is result


# The low watermark


def test_a_low_watermark_is_raised_only_if_it_is_worth_it() -> None:
    """The low watermark is raised by at least a step, once in some seconds per partition; a failure has no effect."""
    record = Record()
    record.set_low_watermark(START)
    result = record.lookup()
    assert not record.raises(result, START + MIN_LOW_WATERMARK_STEP - 1)
    assert record.raises(result, START + MIN_LOW_WATERMARK_STEP)
    assert record.lookup().low_watermark == (START + MIN_LOW_WATERMARK_STEP, -9)
    record.driver.advance(LOW_WATERMARK_INTERVAL - 0.1)
    assert not record.raises(result, START + 2 * MIN_LOW_WATERMARK_STEP)
    assert record.raises(result, START + 2 * MIN_LOW_WATERMARK_STEP, part=2)
    record.driver.advance(0.1)
    record.driver.fail = lambda _request: StoreUnavailable("down")
    assert record.raises(result, START + 2 * MIN_LOW_WATERMARK_STEP)
