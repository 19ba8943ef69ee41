"""The record of buckets: when it is written, how long it lives, and how far a look reaches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.ids import TICKS_PER_SECOND
from queuey.storage.cassandra import bucketing
from queuey.storage.cassandra.bucket_index import (
    FIRST_LOOK,
    MORE,
    REFRESH_PUT,
    BucketIndex,
    BucketLookup,
)
from queuey.storage.cassandra.bucketing import CLASSES, PUT, Bucket
from queuey.storage.cassandra.clocks.timing_in_force import TimingInForce
from queuey.storage.cassandra.driver import Request
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

    def __init__(self, time_buckets: Sequence[Bucket] = ()) -> None:
        self.driver = CalmDriver()
        clock = self.driver.clock()
        self.index = BucketIndex(self.driver, clock, 1000, TimingInForce(OPTIONS, clock))
        BucketIndex(self.driver, clock, 1, TimingInForce(OPTIONS, clock)).record(
            *KEY, time_buckets, consistency="QUORUM"
        )
        self.driver.sent.clear()

    def lookup(self, at: int, *, descending: bool) -> BucketLookup:
        """Looks the partition up."""
        [known] = self.index.lookup([(*KEY, at)], consistency="QUORUM", low_watermarks=True, descending=descending)
        return known

    def cached(self, low: int, high: int, *, descending: bool) -> BucketLookup | None:
        """What is remembered."""
        return self.index.cached(*KEY, low, high, since=0.0, descending=descending)

    def record(self, *time_buckets: Bucket, part: int = 1) -> int:
        """Records buckets; returns how many are written."""
        before = len(self.driver.sent)
        self.index.record(KEY[0], part, time_buckets, consistency="QUORUM")
        return sum(1 + len(request.further) for request in self.driver.sent[before:] if isinstance(request, Request))


def row_of(width_index: int, number: int, kind: int = 1) -> Bucket:
    """The bucket of a width with a number, counted from a fixed time."""
    return bucketing.bucket_of(START + number * bucketing.width(kind, width_index), kind, width_index)


def overlapping(time_buckets: Sequence[Bucket], known: BucketLookup) -> set[Bucket]:
    """The buckets that lie within a look's bounds."""
    return {one for one in time_buckets if one.start < known.high and one.end > known.low}


# Writing


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


# The low watermark


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
