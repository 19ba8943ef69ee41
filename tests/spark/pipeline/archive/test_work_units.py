"""Units of an archive's work."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from queuey.pipeline.archive import work_units
from queuey.pipeline.archive.buckets import ArchiveBucket
from queuey.pipeline.archive.work_units import (
    MAX_COUNTED,
    MAX_UNIT_PARTS,
    MIN_TASK_WEIGHT,
    PART_OPENING_WEIGHT,
    WorkUnit,
)


def unit(queue: str = "q", hour: int = 0, partition: int = 1, weight: int = 10) -> WorkUnit:
    bucket = ArchiveBucket(hour * 3600, 3600)
    span = queue, partition, bucket.lower, bucket.upper
    return WorkUnit(*span, 1, 2, bucket=bucket.start, seconds=3600, weight=weight)


SOME = st.lists(
    st.builds(unit, st.sampled_from("abc"), st.integers(0, 5), st.integers(1, 3), st.integers(1, MAX_COUNTED)),
    max_size=40,
    unique_by=lambda one: (one.queue, one.bucket, one.partition),
)


@given(SOME, st.integers(1, 12))
def test_each_unit_is_some_tasks(some: list[WorkUnit], tasks: int) -> None:
    """Groups contain each unit once, none is empty, and none is much larger than its share."""
    groups = work_units.group_units(some, tasks)
    assert sorted((*one.key, one.partition) for group in groups for one in group) == sorted(
        (*one.key, one.partition) for one in some
    )
    assert all(groups)
    total = sum(one.weight + PART_OPENING_WEIGHT for one in some)
    largest = max((one.weight + PART_OPENING_WEIGHT for one in some), default=0)
    for group in groups:
        assert (
            sum(one.weight + PART_OPENING_WEIGHT for one in group) <= max(MIN_TASK_WEIGHT, total // tasks + 1) + largest
        )


def test_small_buckets_stay_whole() -> None:
    """The partitions of a small bucket go to one task, so that they become one file."""
    units = [unit("q", hour, partition) for partition in range(1, 9) for hour in range(4)]
    assert len(work_units.group_units(units, 8)) == 1


def test_large_units_are_cut() -> None:
    """A unit that is too large to count is cut into parts that cover it without a gap."""
    parts = work_units.divide_large_units([unit(weight=MAX_COUNTED), unit(hour=1)])
    large, small = [one for one in parts if one.bucket == 0], [one for one in parts if one.bucket]
    assert len(large) == MAX_UNIT_PARTS
    assert small == [unit(hour=1)]
    assert (large[0].lower, large[-1].upper) == (unit().lower, unit().upper)
    assert all(one.upper == other.lower for one, other in itertools.pairwise(large))


@given(SOME, st.integers(1, 5), st.integers(1, 2 * MAX_COUNTED))
def test_waves_are_of_whole_buckets(some: list[WorkUnit], most: int, messages: int) -> None:
    """No bucket is in two waves, the oldest come first, and a wave ends at its limit."""
    found = work_units.divide_into_waves(some, buckets=most, messages=messages)
    keys = [{one.key for one in wave} for wave in found]
    assert sum(map(len, keys)) == len({one.key for one in some})
    assert sum(map(len, found)) == len(some)
    starts = [one.bucket for wave in found for one in wave]
    assert starts == sorted(starts)
    assert all(len(one) <= most for one in keys)
    for wave in found:
        last = wave[-1].key
        assert sum(one.weight for one in wave if one.key != last) < messages
