"""Tests of the level at which a process writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.ids import TICKS_PER_SECOND
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.time.bucketing import FULL_BYTES, FULL_ROWS, HOME_WIDTH, NARROWEST, Bucket, BucketWidths

KINDS = range(len(bucketing.CLASSES))
START = ids.seconds_to_ticks(1_750_000_000)

kinds = st.sampled_from(KINDS)
starts = st.integers(START, START + 400 * 86400 * TICKS_PER_SECOND)


class Written:
    """Writes as the writer does: requests the level, then counts its rows there."""

    def __init__(self, kind: int, now: int) -> None:
        self.bucket_widths = BucketWidths(kind)
        self.now = now
        self.rows: Counter[Bucket] = Counter()
        self.width_indexes: list[int] = []

    def write(self, batches: Iterable[tuple[float, int]], size: int = 0) -> None:
        for seconds, rows in batches:
            self.now += max(1, round(seconds * TICKS_PER_SECOND))
            width_index = self.bucket_widths.width_at(self.now)
            self.bucket_widths.add(rows, rows * size)
            self.rows[bucketing.bucket_of(self.now, self.bucket_widths.ttl_class, width_index)] += rows
            self.width_indexes.append(width_index)

    @property
    def fullest(self) -> int:
        return max(self.rows.values())


def steady(rate: float, batch: int, count: int) -> Iterator[tuple[float, int]]:
    for _ in range(count):
        yield batch / rate, batch


@given(kinds, starts, st.floats(-3, 4).map(lambda power: 10.0**power), st.sampled_from([1, 50, 100, 500, 2000]))
def test_no_steady_rate_overfills_a_bucket(kind: int, start: int, rate: float, batch: int) -> None:
    """At any rate up to a full bucket in 5 seconds no bucket of a process gets half as much again as it should."""
    written = Written(kind, start)
    written.write(steady(rate, batch, min(4000, 8 * FULL_ROWS // batch)))
    assert written.fullest <= 1.5 * FULL_ROWS


@given(kinds, starts, st.integers(1000, FULL_BYTES // 500))
def test_large_bodies_count(kind: int, start: int, size: int) -> None:
    """Buckets are limited in bytes as in rows: at 100 messages a second of up to 60 kB none gets too large."""
    written = Written(kind, start)
    written.write(steady(100, 1, 3000), size)
    assert written.fullest * size <= 1.5 * FULL_BYTES


@given(
    kinds,
    starts,
    st.lists(st.tuples(st.floats(0, 5e4), st.integers(1, 12_000), st.floats(2, 4)), min_size=1, max_size=25),
)
def test_bursts_do_not_overfill_a_bucket(kind: int, start: int, bursts: list[tuple[float, int, float]]) -> None:
    """Bursts of any size and interval fill no bucket to more than twice its limit."""
    written = Written(kind, start)
    for pause, rows, power in bursts:
        written.write([(pause, 1)])
        written.write(steady(10.0**power, 100, rows // 100))
    assert written.fullest <= 2 * FULL_ROWS
    assert all(HOME_WIDTH <= width_index <= NARROWEST for width_index in written.width_indexes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hot_partition_is_written_narrowly(kind: int) -> None:
    """Short bursts and single messages stay wide; at 9,000 rows a second the narrowest level is reached in time."""
    idle, written = Written(kind, START), Written(kind, START)
    idle.write(steady(1e5, 100, FULL_ROWS // 1000 - 1))  # Less than a tenth of a full bucket.
    idle.write([(1e4, 1)] * 50)
    assert {*idle.width_indexes} == {HOME_WIDTH}
    written.write(steady(9000, 100, 2000))
    assert written.width_indexes[-1] == NARROWEST
    assert written.width_indexes[0] == HOME_WIDTH
    assert (
        sum(rows for time_bucket, rows in written.rows.items() if time_bucket.width_index == HOME_WIDTH) < FULL_ROWS / 2
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [100, 1000, 9000])
def test_a_partition_that_cools_goes_back_to_the_wide_place(kind: int, rate: float) -> None:
    """However hot it was, a partition is back at level 0 after some days with a message an hour."""
    written = Written(kind, START)
    written.write(steady(rate, 100, 2000))
    assert written.width_indexes[-1] > HOME_WIDTH
    written.write(steady(1 / 3600, 1, 24 * 60))
    assert written.width_indexes[-1] == HOME_WIDTH
