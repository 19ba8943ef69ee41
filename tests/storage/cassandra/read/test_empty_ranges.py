"""Tests of the cache of empty ranges, and of the reads that skip them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.ids import LOW_MIN, Position
from queuey.storage.cassandra.read.slice_reads import BucketSource, EmptyRanges, Probe
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.time.bucketing import HOME_WIDTH, Bucket

START = ids.seconds_to_ticks(1_750_000_000)
PLACE = bucketing.bucket_of(START, 1, HOME_WIDTH)
KEY = (7, 1)


def at(ticks: int) -> Position:
    return PLACE.start + ticks, LOW_MIN


def record_empty(*ranges: tuple[int, int], below: int = 10**6, time_bucket: Bucket = PLACE) -> EmptyRanges:
    vacancies = EmptyRanges(100)
    for low, high in ranges:
        vacancies.record(KEY, Probe(time_bucket, at(low), at(high), 10, descending=False), at(below))
    return vacancies


def start_of(vacancies: EmptyRanges, lower: int, *, key: tuple[int, int] = KEY, lowest: int = 0) -> int:
    """Returns where a read that begins at a position begins in the bucket."""
    source = vacancies.shorten(key, BucketSource(PLACE, at(lowest)), at(lower))
    return max(source.lowest, at(lower))[0] - PLACE.start


@pytest.mark.parametrize(
    ("ranges", "below", "lower", "start"),
    [
        *(([(10, 20)], 10**6, lower, start) for lower, start in ((9, 9), (10, 20), (19, 20), (20, 20), (21, 21))),
        ([(10, 20)], 15, 10, 15),  # Above the horizon messages may still appear.
        ([(10, 20)], 10, 10, 10),
        ([(10, 20)], 5, 10, 10),
        ([(10, 20), (20, 30)], 10**6, 10, 30),  # Consecutive pages make one range.
        ([(20, 30), (10, 20)], 10**6, 10, 30),
        ([(10, 30), (15, 20)], 10**6, 10, 30),
        ([(10, 20), (25, 30)], 10**6, 10, 10),  # A separate range replaces it.
        ([(10, 20), (25, 30)], 10**6, 25, 30),
    ],
)
def test_what_is_empty_is_not_asked_for_again(
    ranges: list[tuple[int, int]], below: int, lower: int, start: int
) -> None:
    """A read that begins within an empty range begins at its end."""
    assert start_of(record_empty(*ranges, below=below), lower) == start


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12), st.integers(0, 60), st.integers(0, 60))
def test_no_more_is_left_out_than_was_found_empty(ranges: list[tuple[int, int]], below: int, lower: int) -> None:
    """A read skips only ranges that were recorded as empty, below the horizon."""
    empty = {tick for low, high in ranges for tick in range(low, min(high, below))}
    assert set(range(lower, start_of(record_empty(*ranges, below=below), lower))) <= empty


def test_memory_is_bounded() -> None:
    """The cache has a max number of buckets; the oldest are dropped."""
    vacancies = EmptyRanges(2)
    for part in range(3):
        vacancies.record((7, part), Probe(PLACE, at(0), at(9), 10, descending=False), at(100))
    assert [start_of(vacancies, 0, key=(7, part)) for part in range(3)] == [0, 9, 9]
