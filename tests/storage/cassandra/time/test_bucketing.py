"""Tests of classes, levels and buckets of messages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.ids import TICKS_PER_SECOND
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.time.bucketing import CLASSES, HOME_WIDTH, NARROWEST, WIDTHS, Bucket
from tests import strategies

KINDS = range(len(CLASSES))
kinds = st.sampled_from(KINDS)
levels = st.sampled_from(WIDTHS)


@st.composite
def edges(draw: st.DrawFn) -> int:
    """Times at, just below and just above the beginning of a bucket of some level."""
    size = bucketing.width(draw(kinds), draw(levels))
    index = draw(st.integers(1, ids.TICKS_MAX // size))
    return index * size + draw(st.sampled_from([-1, 0, 1]))


times = strategies.ticks() | edges()


@given(st.floats(0, 800 * 86400.0) | st.sampled_from(CLASSES))
def test_a_class_is_the_smallest_that_covers(seconds: float) -> None:
    """A message's class covers its life, and the next lower class would not; the longest has all that live longer."""
    kind = bucketing.class_of(seconds)
    assert CLASSES[kind] >= min(seconds, CLASSES[-1])
    assert not kind or CLASSES[kind - 1] < seconds


@given(times, kinds, levels)
def test_a_place_holds_the_ids_it_was_made_for(at: int, kind: int, width_index: int) -> None:
    """A bucket includes its start and excludes its end, and its number gives its level."""
    time_bucket = bucketing.bucket_of(at, kind, width_index)
    assert time_bucket.start <= at < time_bucket.end
    assert time_bucket.end - time_bucket.start == bucketing.width(kind, width_index)
    assert (time_bucket.ttl_class, time_bucket.width_index) == (kind, width_index)
    assert (
        bucketing.bucket_of(time_bucket.start, kind, width_index)
        == bucketing.bucket_of(time_bucket.end - 1, kind, width_index)
        == time_bucket
    )
    assert bucketing.bucket_of(time_bucket.end, kind, width_index) != time_bucket
    assert 0 <= time_bucket.code < 1 << 63


@pytest.mark.parametrize("kind", KINDS)
def test_widths_go_down_step_by_step_and_up_again(kind: int) -> None:
    """Levels for new ids go from 0 to 5 seconds, each step up undoes one down, and at both ends there are no more."""
    steps = [HOME_WIDTH]
    while (following := bucketing.find_narrower_width(kind, steps[-1])) != steps[-1]:
        assert bucketing.width(kind, following) < bucketing.width(kind, steps[-1])
        assert bucketing.find_wider_width(kind, following) == steps[-1]
        steps.append(following)
    assert (steps[-1], len(steps)) == (NARROWEST, 4 if kind == 0 else 5)
    assert bucketing.find_wider_width(kind, HOME_WIDTH) == HOME_WIDTH
    for width_index in range(1, NARROWEST + 1):  # Also from a level as wide as the class.
        above = bucketing.find_wider_width(kind, width_index)
        assert above == HOME_WIDTH or bucketing.width(kind, above) > bucketing.width(kind, width_index)


@given(times, st.integers(1, 3000 * 86400), kinds)
def test_own_places_cover_a_range_without_gaps(lower: int, seconds: int, kind: int) -> None:
    """The level 0 buckets of a range touch each other, contain both its ends, and none is outside."""
    upper = lower + seconds * TICKS_PER_SECOND
    buckets = bucketing.home_buckets(kind, lower, upper)
    assert buckets[0].start <= lower < buckets[0].end
    assert buckets[-1].start < upper <= buckets[-1].end
    for bucket, following in pairwise(buckets):
        assert bucket.end == following.start
    assert all(time_bucket.width_index == HOME_WIDTH and time_bucket.ttl_class == kind for time_bucket in buckets)


@given(st.integers(ids.EPOCH_TICKS, ids.seconds_to_ticks(2_140_000_000.0)))
def test_nothing_outlives_what_cassandra_can_count(now: int) -> None:
    """The longest TTL ends before 2038-01-19 03:14:06, the last end that Cassandra's columns can hold."""
    ends = (now - ids.EPOCH_TICKS) / TICKS_PER_SECOND + bucketing.max_cassandra_ttl(now)
    assert ends < (1 << 31) - 2


@given(times, kinds, levels, kinds)
def test_only_level_0_of_the_home_class_is_looked_at_unrecorded(
    at: int, kind: int, width_index: int, home_class: int
) -> None:
    """Every bucket needs a record except those of level 0 of the queue's own class."""
    time_bucket = bucketing.bucket_of(at, kind, width_index)
    assert bucketing.is_indexed(time_bucket, home_class) == ((kind, width_index) != (home_class, HOME_WIDTH))


@given(st.lists(st.builds(bucketing.bucket_of, times, kinds, levels), max_size=12), times, times)
def test_overlapping_places_are_those_that_share_an_id(time_buckets: list[Bucket], one: int, other: int) -> None:
    """A bucket overlaps a range exactly if some id of the range is in it; earlier ones come first."""
    lower, upper = sorted((one, other))
    upper += 1
    found = bucketing.RecordedBuckets(time_buckets).find_overlapping(lower, upper)
    assert sorted(found) == sorted(
        time_bucket for time_bucket in time_buckets if max(time_bucket.start, lower) < min(time_bucket.end, upper)
    )
    assert [time_bucket.start for time_bucket in found] == sorted(time_bucket.start for time_bucket in found)


@given(
    st.lists(st.builds(bucketing.bucket_of, times, kinds, levels), unique=True, max_size=40),
    times,
    times,
    st.integers(24, 30),
    st.lists(times, min_size=4, max_size=4),
    st.booleans(),
)
def test_the_nearest_places_of_very_many(
    time_buckets: list[Bucket],
    one: int,
    other: int,
    most: int,
    alive: list[int],
    descending: bool,  # noqa: FBT001
) -> None:
    """Within the complete part no bucket that may have messages is left out; beyond it few are listed."""
    lower, upper = sorted((one, other))
    upper += 1
    found, end = bucketing.RecordedBuckets(time_buckets).find_nearest(
        lower, upper, most, alive=alive, descending=descending
    )
    if end is not None:
        assert lower < end < upper
        lower, upper = (end, upper) if descending else (lower, end)
    needed = {
        time_bucket
        for time_bucket in time_buckets
        if max(time_bucket.start, lower, alive[time_bucket.ttl_class] if time_bucket.new_ids_only else 0)
        < min(time_bucket.end, upper)
    }
    assert needed <= set(found) <= set(time_buckets)
    assert len(found) == len(set(found))
    assert sum(not time_bucket.wide for time_bucket in found) <= most
    if sum(not time_bucket.wide for time_bucket in time_buckets) <= most:
        assert end is None
