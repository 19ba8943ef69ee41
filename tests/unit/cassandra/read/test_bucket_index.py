"""The record of buckets: when it is asked, how far a look reaches, and the low watermark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

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
)
from queuey.storage.cassandra.bucketing import CLASSES, HOME_WIDTH, PUT, Bucket
from queuey.storage.cassandra.clocks.clock import Clock
from queuey.storage.cassandra.clocks.timing_in_force import TimingInForce
from queuey.storage.cassandra.driver import Encoded, Request
from queuey.storage.cassandra.options import CassandraOptions, Level
from tests import strategies
from tests.cassandra.scripted import AnsweringDriver

START = ids.seconds_to_ticks(1_750_000_000)
END = ids.TICKS_MAX + 1
QID, PART = 7, 1
AGE = 3600.0
TIMING = TimingInForce(CassandraOptions(row_age=AGE, levels={"strong": Level(None, None, delay=2 * AGE)}), Clock())
"""Seconds for which a look may be used."""


def in_order(rows: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Rows (level, start, class) in the order of their table: the newest of a level first."""
    return sorted(set(rows), key=lambda row: (row[0], -row[1], row[2]))


class Record(AnsweringDriver):
    """Answers from the rows of one partition, and counts what is asked; time passes by hand."""

    def __init__(self, time_buckets: Sequence[Bucket] = ()) -> None:
        super().__init__()
        self.rows = in_order(
            (time_bucket.width_index, time_bucket.start, time_bucket.ttl_class) for time_bucket in time_buckets
        )
        self.low_watermark: UUID | None = None
        self.error: StoreUnavailable | None = None
        self.written: list[Sequence[Any]] = []
        self.asked: list[int] = []
        self.seconds = 1000.0
        clock = Clock(boottime=lambda: round(self.seconds * 1e9), wall=lambda: 1_750_000_000_000_000_000)
        self.bucket_index = BucketIndex(self, clock, 1000, TIMING)

    def answer(self, request: Request) -> list[Any]:
        """Takes records and low watermarks, and answers looks."""
        calls = [(request.statement, request.values), *request.further]
        assert len(calls) <= 100
        if request.statement.reads:
            [call] = calls
            return [(self.low_watermark, *row) for row in self._found(*call)]
        if request.statement is bucket_index.SET_LOW_WATERMARK:
            self.written.append(request.values)
        if self.error is not None:
            raise self.error
        for statement, values in calls:
            if statement is bucket_index._RECORD:
                self.written.append(values)
                self.rows = in_order([*self.rows, (values[2], values[3], values[4])])
        return []

    def gather(self, some: Sequence[Request | Encoded], **options: Any) -> list[list[Any]]:  # noqa: ANN401
        """Notes how many looks come together."""
        if some[0].statement.reads:
            self.asked.append(len(some))
        return super().gather(some, **options)

    def _found(self, statement: object, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        assert values[:2] == (QID, PART)
        if statement is bucket_index.FIRST:
            return self.rows[:FIRST_LOOK] or ([(None, None, None)] if self.low_watermark else [])
        width_index = [row for row in self.rows if row[0] == values[2]]
        if statement is bucket_index._UP:
            return [row for row in reversed(width_index) if row[1] > values[3]][:MORE]
        if statement is bucket_index._DOWN:
            return [row for row in width_index if values[3] < row[1] < values[4]][:MORE]
        assert statement is bucket_index._WIDE
        return width_index

    def lookup(
        self, at: int = 0, *, low_watermarks: bool = True, descending: bool = False
    ) -> bucket_index.BucketLookup:
        """Looks the partition up."""
        [known] = self.bucket_index.lookup(
            [(QID, PART, at)], consistency="QUORUM", low_watermarks=low_watermarks, descending=descending
        )
        return known

    def cached(
        self, low: int, high: int, *, since: float, descending: bool = False
    ) -> bucket_index.BucketLookup | None:
        """What is remembered."""
        return self.bucket_index.cached(QID, PART, low, high, since=since, descending=descending)

    def record(self, *time_buckets: Bucket) -> None:
        """Records buckets."""
        self.bucket_index.record(QID, PART, time_buckets, consistency="QUORUM")

    def is_recorded(self, time_bucket: Bucket) -> bool:
        """Whether a bucket is known to be recorded."""
        return self.bucket_index.is_recorded(QID, PART, time_bucket)


def row_of(width_index: int, number: int, kind: int = 1) -> Bucket:
    """The bucket of a level with a number, counted from a fixed time."""
    return bucketing.bucket_of(START + number * bucketing.width(kind, width_index), kind, width_index)


# Writing


def test_a_place_is_recorded_once() -> None:
    """A process records a minted bucket before its first use and never again."""
    record, time_bucket = Record(), row_of(3, 0)
    assert not record.is_recorded(time_bucket)
    record.record(time_bucket, time_bucket)
    assert record.is_recorded(time_bucket)
    record.seconds += 400 * 86400
    record.record(time_bucket)
    assert [values[:5] for values in record.written] == [(QID, PART, 3, time_bucket.start, 1)]


def test_a_place_of_another_partition_is_another() -> None:
    """What is recorded for one partition says nothing of another."""
    record, time_bucket = Record(), row_of(3, 0)
    record.record(time_bucket)
    assert not record.bucket_index.is_recorded(QID, PART + 1, time_bucket)
    assert not record.bucket_index.is_recorded(QID + 1, PART, time_bucket)


@pytest.mark.parametrize("width_index", [PUT, bucketing.LOAD, bucketing.DENSE_LOAD])
def test_places_of_given_ids_are_recorded_again_after_an_hour(width_index: int) -> None:
    """Messages may come to such a bucket as long as it is used, so its record must be renewed while it is."""
    record, time_bucket = Record(), row_of(width_index, 0)
    record.record(time_bucket)
    record.seconds += REFRESH_PUT - 1
    record.record(time_bucket)
    assert len(record.written) == 1
    record.seconds += 1
    assert not record.is_recorded(time_bucket)
    record.record(time_bucket)
    assert len(record.written) == 2
    assert record.is_recorded(time_bucket)


def test_a_place_whose_record_failed_is_not_recorded() -> None:
    """After an error nothing may be written to the bucket."""
    record, time_bucket = Record(), row_of(4, 0)
    record.error = StoreUnavailable("down")
    with pytest.raises(StoreUnavailable):
        record.record(time_bucket)
    assert not record.is_recorded(time_bucket)


def test_many_places_are_recorded_in_batches() -> None:
    """A load's many buckets are all recorded."""
    record = Record()
    time_buckets = [row_of(6, number) for number in range(250)]
    record.record(*time_buckets)
    assert len(record.written) == 250
    assert all(record.is_recorded(time_bucket) for time_bucket in time_buckets)


@given(strategies.ticks() | st.integers(START - 10**15, START + 10**15), st.sampled_from(range(4)), st.integers(0, 7))
def test_a_record_outlives_what_it_names(at: int, kind: int, width_index: int) -> None:
    """A record lives until all that is written to its bucket, within an hour if ids are given, has ended."""
    record, time_bucket = Record(), bucketing.bucket_of(at, kind, width_index)
    record.record(time_bucket)
    now = START
    [(*_, ttl)] = record.written
    assert 0 < ttl <= bucketing.longest_ttl(now)
    newest = max(now + round(REFRESH_PUT) * TICKS_PER_SECOND, time_bucket.end)
    if ttl < bucketing.longest_ttl(now):
        assert now + ttl * TICKS_PER_SECOND >= newest + CLASSES[kind] * TICKS_PER_SECOND


# Reading


def test_an_idle_partition_costs_one_query() -> None:
    """One look says all there is, whatever it was for."""
    record = Record([row_of(2, number) for number in range(FIRST_LOOK - 1)])
    known = record.lookup(START)
    assert (known.low, known.high, len(known.recorded.time_buckets)) == (0, END, FIRST_LOOK - 1)
    assert record.asked == [1]


def test_a_partition_with_a_low_watermark_and_no_places() -> None:
    """The low watermark alone gives a row without a bucket."""
    record = Record()
    record.low_watermark = UUID(hex=ids.to_hex((START, 5)))
    known = record.lookup()
    assert known.recorded.time_buckets == ()
    assert known.low_watermark == (START, 5)


def test_a_look_is_remembered_until_it_is_too_old() -> None:
    """A look that began at or after the time asked for answers from memory; an older one does not."""
    record = Record([row_of(2, 0)])
    assert record.cached(START, START + 1, since=0.0) is None
    known = record.lookup()
    assert record.cached(START, START + 1, since=known.began) is known
    assert record.cached(START, START + 1, since=known.began + 0.001) is None
    assert record.cached(START, START + 1, since=known.began, descending=True) is None
    assert record.asked == [1]


def test_the_age_of_a_look_counts_from_its_beginning() -> None:
    """Time that an answer takes makes the look older: what was recorded meanwhile may be missing from it."""
    record = Record()
    begun = record.seconds
    original = record.answer

    def slow(request: Request) -> list[Any]:
        record.seconds += 2.0
        return original(request)

    record.answer = slow  # type: ignore[method-assign]
    assert record.lookup().began == begun


def test_recording_a_place_forgets_looks() -> None:
    """What this process records is in its next look, in both directions."""
    record = Record()
    for descending in (False, True):
        record.lookup(descending=descending)
    record.record(row_of(3, 0))
    for descending in (False, True):
        assert record.cached(START, START + 1, since=0.0, descending=descending) is None
    assert record.lookup().recorded.time_buckets == (row_of(3, 0),)


@st.composite
def recorded(draw: st.DrawFn) -> list[Bucket]:
    """Runs of touching buckets of several levels and classes, some far longer than one look takes."""
    found = []
    for width_index in draw(st.lists(st.sampled_from(range(8)), min_size=1, max_size=4, unique=True)):
        count = draw(st.sampled_from([0, 1, 30, MORE - 1, MORE, MORE + 1, 3 * MORE]))
        count = min(count, 20) if width_index in {HOME_WIDTH, PUT} else count
        first, step = draw(st.integers(0, 1000)), draw(st.sampled_from([1, 1, 3]))
        kinds = draw(st.sampled_from([(1,), (3,), (0, 1, 2, 3)]))
        found += [row_of(width_index, first + step * number, kind) for number in range(count) for kind in kinds]
    return found


@st.composite
def times(draw: st.DrawFn, time_buckets: list[Bucket]) -> int:
    """Times near the buckets."""
    if not time_buckets or draw(st.booleans()):
        return draw(st.sampled_from([0, START, ids.TICKS_MAX]))
    time_bucket = draw(st.sampled_from(time_buckets))
    return draw(st.sampled_from([time_bucket.start, time_bucket.end, time_bucket.start + 1])) + draw(st.integers(-1, 1))


@given(st.data(), st.booleans())
def test_a_look_knows_every_place_within_its_reach(data: st.DataObject, descending: bool) -> None:  # noqa: FBT001
    """However many buckets there are: all that overlap a look's bounds are in it, and what was asked for is in them."""
    time_buckets = data.draw(recorded())
    at = data.draw(times(time_buckets))
    known = Record(time_buckets).lookup(at, descending=descending)
    assert known.low < at <= known.high if descending and at else known.low <= at < known.high
    overlapping = {
        time_bucket for time_bucket in time_buckets if time_bucket.start < known.high and time_bucket.end > known.low
    }
    assert overlapping <= set(known.recorded.time_buckets) <= set(time_buckets)


@given(st.data(), st.booleans())
def test_a_look_may_leave_out_what_lies_below_the_low_watermark(data: st.DataObject, descending: bool) -> None:  # noqa: FBT001
    """Of the buckets in its reach a look knows at least those of given ids, and minted ones above the low watermark."""
    time_buckets = data.draw(recorded())
    record = Record(time_buckets)
    low_watermark = (data.draw(times(time_buckets)), 0)
    record.low_watermark = UUID(hex=ids.to_hex((max(0, low_watermark[0]), 0)))
    known = record.lookup(data.draw(times(time_buckets)), descending=descending)
    assert known.low_watermark == low_watermark or not time_buckets
    wanted = {
        time_bucket
        for time_bucket in time_buckets
        if not time_bucket.new_ids_only or time_bucket.end > low_watermark[0]
    }
    assert {
        time_bucket for time_bucket in wanted if time_bucket.start < known.high and time_bucket.end > known.low
    } <= set(known.recorded.time_buckets)


def test_a_look_does_not_walk_over_what_lies_below_the_low_watermark() -> None:
    """A look for the head of a partition whose old messages are gone reaches as far as one from the low watermark."""
    time_buckets = [row_of(4, number) for number in range(3 * MORE)]
    record = Record(time_buckets)
    assert record.lookup().high < time_buckets[-1].start
    record.low_watermark = UUID(hex=ids.to_hex((time_buckets[-10].start, 0)))
    known = record.lookup()
    assert known.high == END
    assert len(known.recorded.time_buckets) <= 11


@pytest.mark.parametrize("count", [0, 3, 3 * MORE])
def test_a_low_watermark_that_may_not_be_trusted_is_ignored(count: int) -> None:
    """Where reads may miss what another data centre acknowledged, a recorded low watermark hides no bucket."""
    time_buckets = [row_of(4, number) for number in range(count)]
    record = Record(time_buckets)
    record.low_watermark = UUID(hex=ids.to_hex((START + 10**15, 0)))
    known = record.lookup(low_watermarks=False)
    assert known.low_watermark is None
    assert {time_bucket for time_bucket in time_buckets if time_bucket.start < known.high} <= set(
        known.recorded.time_buckets
    )
    assert record.lookup().low_watermark is not None


@given(recorded())
def test_looks_lead_through_all_places_upwards(time_buckets: list[Bucket]) -> None:
    """Going on where a look ended, all buckets are seen in a few looks."""
    record = Record(time_buckets)
    seen: set[Bucket] = set()
    at, looks = 0, 0
    while at < END:
        known = record.cached(at, END, since=0.0) or record.lookup(at)
        seen.update(known.recorded.time_buckets)
        assert known.high > at
        at = known.high
        looks += 1
    assert seen == set(time_buckets)
    assert looks <= 1 + len(time_buckets) * 4 // MORE


@given(recorded())
def test_looks_lead_through_all_places_downwards(time_buckets: list[Bucket]) -> None:
    """The same downwards: a remembered look is of no use to who has read to its lower end."""
    record = Record(time_buckets)
    seen: set[Bucket] = set()
    at, looks = END, 0
    while at > 0:
        known = record.cached(0, at, since=0.0, descending=True) or record.lookup(at, descending=True)
        seen.update(known.recorded.time_buckets)
        assert known.low < at
        at = known.low
        looks += 1
    assert seen == set(time_buckets)
    assert looks <= 1 + len(time_buckets) * 4 // MORE


@pytest.mark.parametrize("descending", [False, True])
def test_readers_at_the_tail_of_a_hot_partition_share_a_look(descending: bool) -> None:  # noqa: FBT001
    """A look at the tail serves cursors of the last minute, and upper bounds that move on with the clock."""
    time_buckets = [row_of(4, number) for number in range(3 * MORE)]
    record = Record(time_buckets)
    at = time_buckets[-1].end
    known = record.lookup(at, descending=descending)
    assert sum(record.asked) == 9
    for moved in (-50, 0, 50):
        tail = at + moved * TICKS_PER_SECOND
        low, high = (0, tail) if descending else (tail, END)
        assert record.cached(low, high, since=known.began, descending=descending) is known


def test_memory_is_bounded() -> None:
    """No more partitions are remembered than was said."""
    record = Record()
    small = BucketIndex(record, Clock(), 3, TIMING)
    record.answer = lambda request: []  # type: ignore[method-assign]
    for part in range(10):
        small.lookup([(QID, part, 0)], consistency="QUORUM", low_watermarks=True)
        small.record(QID, part, [row_of(3, 0)], consistency="QUORUM")
        small.lookup([(QID, part, 0)], consistency="QUORUM", low_watermarks=True)
    assert [part for part in range(10) if small.cached(QID, part, 0, 1, since=0.0, descending=False)] == [7, 8, 9]
    assert [part for part in range(10) if small.is_recorded(QID, part, row_of(3, 0))] == [7, 8, 9]


def test_looks_that_are_too_old_are_forgotten() -> None:
    """What may not be used any more takes no memory as soon as something else is looked up."""
    record = Record()
    record.answer = lambda request: []  # type: ignore[method-assign]
    for part in range(10):
        record.bucket_index.lookup([(QID, part, 0)], consistency="QUORUM", low_watermarks=True)
    record.seconds += AGE + 1
    record.bucket_index.lookup([(QID, 10, 0)], consistency="QUORUM", low_watermarks=True)
    assert len(record.bucket_index._known) == 1


def test_a_look_weighs_as_much_as_its_places() -> None:
    """Of looks with many buckets fewer are remembered."""
    record = Record()
    rows = [(None, *row) for row in in_order((3, row_of(3, n).start, 1) for n in range(FIRST_LOOK - 1))]
    record.answer = lambda request: rows  # type: ignore[method-assign]
    small = BucketIndex(record, Clock(), 4, TIMING)
    for part in range(4):
        small.lookup([(QID, part, 0)], consistency="QUORUM", low_watermarks=True)
    assert len(small._known) == 1


# The low watermark


def raise_to(record: Record, known: bucket_index.BucketLookup, low_watermark: ids.Position) -> bool:
    """Asks for a higher low watermark; returns whether one was written."""
    before = len(record.written)
    record.bucket_index.raise_low_watermark((QID, PART), known, low_watermark, lifetime=99, consistency="QUORUM")
    return len(record.written) > before


def test_a_low_watermark_is_raised_by_a_step_at_least() -> None:
    """It is not written for less than a step, and is written as an id that reads back as the same position."""
    record = Record()
    record.low_watermark = UUID(hex=ids.to_hex((START, 0)))
    known = record.lookup()
    assert not raise_to(record, known, (START + LOW_WATERMARK_STEP - 1, 0))
    assert not raise_to(record, known, (START - LOW_WATERMARK_STEP, 0))
    assert raise_to(record, known, (START + LOW_WATERMARK_STEP, -9))
    ttl, value, *key = record.written[-1]
    assert (ttl, key) == (99, [QID, PART])
    record.low_watermark = value
    assert record.lookup().low_watermark == (START + LOW_WATERMARK_STEP, -9)


def test_a_low_watermark_is_raised_only_now_and_then() -> None:
    """One process raises that of a partition once in some seconds, however many readers come; others are not held."""
    record = Record()
    known = record.lookup()
    assert raise_to(record, known, (START, 0))
    record.seconds += LOW_WATERMARK_EVERY - 0.1
    assert not raise_to(record, known, (START + LOW_WATERMARK_STEP, 0))
    record.bucket_index.raise_low_watermark((QID, PART + 1), known, (START, 0), lifetime=99, consistency="QUORUM")
    assert len(record.written) == 2
    record.seconds += 0.1
    assert raise_to(record, known, (START + LOW_WATERMARK_STEP, 0))


def test_a_low_watermark_that_cannot_be_raised_hurts_nobody() -> None:
    """An error is only noted: the low watermark has to be true, not high."""
    record = Record()
    record.error = StoreUnavailable("down")
    assert raise_to(record, record.lookup(), (START, 0))
