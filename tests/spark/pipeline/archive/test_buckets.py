"""Arithmetic of buckets, the search for buckets to archive, and units of an archive's work."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.ids import EPOCH_TICKS, FIRST, LOW_MIN, TICKS_PER_SECOND
from queuey.model.messages import Queue, QueueSpec
from queuey.pipeline.archive import buckets, find_buckets, work_units
from queuey.pipeline.archive.buckets import ArchiveBucket
from queuey.pipeline.archive.work_units import (
    MAX_COUNTED,
    MAX_UNIT_PARTS,
    MIN_TASK_WEIGHT,
    PART_OPENING_WEIGHT,
    BucketSearch,
    WorkUnit,
)
from queuey.pipeline.options import check_width
from queuey.spark.errors import OptionError
from queuey.spark.options import Assign, Pattern, Subscribe
from queuey.storage import bridge
from tests.backends import APP
from tests.replacing import replace
from tests.spark.kept import Kept
from tests.spark.pipeline.archive.archives import HOUR, last_hour, make_past_queue, message

WIDTHS = st.sampled_from([1, 60, 900, 3600, 86_400, 7 * 86_400])
MOMENTS = st.integers(EPOCH_TICKS, EPOCH_TICKS + 4_000_000_000 * TICKS_PER_SECOND)


@given(MOMENTS, WIDTHS)
def test_a_moment_lies_in_its_bucket_alone(ticks: int, seconds: int) -> None:
    """Every instant is at or above the lower end of its bucket and below the upper one; its name gives the bucket."""
    bucket = buckets.find_bucket(ticks, seconds)
    assert bucket.lower <= (ticks, LOW_MIN) < bucket.upper
    assert bucket.upper == ArchiveBucket(bucket.end, seconds).lower
    assert buckets.parse_bucket(bucket.name, seconds) == bucket


@pytest.mark.parametrize("name", ["20261120T143000Z", "20261320T140000Z", "2026-11-20T14", "20261120T140000", ""])
def test_other_names_are_none(name: str) -> None:
    """A name that is not the start of a bucket of this width is refused."""
    with pytest.raises(ValueError, match=r"bucket|time data|month"):
        buckets.parse_bucket(name, 3600)


@given(MOMENTS, WIDTHS)
def test_closed_buckets_lie_below_the_horizon(horizon: int, seconds: int) -> None:
    """No closed bucket reaches above the horizon, and the first open one does."""
    end = buckets.find_closed_end(horizon, seconds)
    assert end <= (horizon, LOW_MIN)
    assert buckets.find_bucket(end[0], seconds).upper > (horizon, LOW_MIN)


@given(st.sets(st.integers(1, 60), max_size=20), st.integers(1, 60), st.integers(0, 60))
def test_gaps_are_what_is_not_done(done: set[int], end: int, at: int) -> None:
    """A bucket below the end is in a gap if and only if it is not done; gaps ascend without touching."""
    width = 900
    whole = [ArchiveBucket(one * width, width) for one in done]
    gaps = list(buckets.find_gaps(ArchiveBucket(end * width, width).lower, whole))
    bucket = ArchiveBucket(at * width, width)
    inside = any(lower <= bucket.lower and bucket.upper <= upper for lower, upper in gaps)
    assert inside == (at < end and at not in done)
    bounds = [bound for gap in gaps for bound in gap]
    assert bounds == sorted(set(bounds))


def test_before_1970() -> None:
    """Ids with times before 1970 are in the first bucket, and nothing below it is scanned once it is done."""
    assert buckets.find_bucket(0, 3600) == ArchiveBucket(0, 3600)
    assert (
        next(iter(buckets.find_gaps((EPOCH_TICKS * 2, LOW_MIN), [ArchiveBucket(0, 3600)])))[0]
        == ArchiveBucket(0, 3600).upper
    )
    assert next(iter(buckets.find_gaps((EPOCH_TICKS, LOW_MIN), [])))[0] == FIRST


@pytest.mark.parametrize("seconds", [0, -1, 0.5, 90.5, 32 * 86_400])
def test_odd_widths(seconds: float) -> None:
    """Widths that are not whole seconds, or not between zero and a month, are refused."""
    with pytest.raises(OptionError, match="bucket"):
        check_width(seconds)
    check_width(90.0)


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
    total, largest = weigh(some), max((weigh([one]) for one in some), default=0)
    assert all(weigh(group) <= max(MIN_TASK_WEIGHT, total // tasks + 1) + largest for group in groups)


def weigh(units: Iterable[WorkUnit]) -> int:
    return sum(one.weight + PART_OPENING_WEIGHT for one in units)


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


def partitions_found(kept: Kept, queue: Queue) -> set[int]:
    packed = msgspec.msgpack.encode([BucketSearch(queue.name, queue.qid, HOUR)])
    units = find_buckets._find_in_task(kept.store_options, packed)
    return {msgspec.msgpack.decode(unit, type=WorkUnit).partition for unit in units}


@contextmanager
def change_before_call(method: Callable[..., Any], change: Callable[[], object], *, after: int) -> Iterator[None]:
    """Lets a change happen once, just before the call of this number of a method of the store."""
    left = [after]

    async def call(self: object, *parts: Any) -> Any:  # noqa: ANN401 - any method
        left[0] -= 1
        if left[0] == 0:
            change()
        return await method(self, *parts)

    with replace(method, call):
        yield


def test_partitions_that_are_new(embedded: Kept) -> None:
    """A partition that was added and written before the horizon was sampled is searched."""
    queue = make_past_queue(embedded, "orders", 8, hours=1, partitions=2)

    def extend() -> None:
        bridge.run(embedded.store.catalogue.update_queue(queue, QueueSpec(partitions=4)))
        extended = bridge.run(embedded.store.catalogue.queue(APP, "orders", fresh=True))
        bridge.run(embedded.store.bulk.load(extended, [message(3, last_hour() - 5, ids.random_low(), 4)]))

    with change_before_call(type(embedded.store.bulk).horizon, extend, after=1):
        assert partitions_found(embedded, queue) == {1, 2, 4}


def test_all_partitions_or_none(embedded: Kept) -> None:
    """If a queue's settings change between two partitions, the second is searched all the same."""
    queue = make_past_queue(embedded, "orders", 8, hours=1, partitions=2)

    def change() -> None:
        bridge.run(embedded.store.catalogue.update_queue(queue, QueueSpec(ttl=86_400)))

    with change_before_call(type(embedded.store.bulk).extent, change, after=4):
        assert partitions_found(embedded, queue) == {1, 2}


def test_which_queues_a_stream_reads() -> None:
    """Names that cannot be in a list of names are selected by a pattern that matches only them."""
    assert find_buckets.make_subscribe_options(Subscribe(("a", "b"))) == {"subscribe": "a,b"}
    assert find_buckets.make_subscribe_options(Pattern("a.*")) == {"subscribePattern": "a.*"}
    odd = ["a,b", " c", "x.y"]
    pattern = find_buckets.make_subscribe_options(Subscribe(tuple(odd)))["subscribePattern"]
    assert [name for name in (*odd, "a", "b", "c", "x-y") if re.fullmatch(pattern, name)] == odd
    with pytest.raises(OptionError, match="whole queues"):
        find_buckets.make_subscribe_options(Assign((("a", (1,)),)))
