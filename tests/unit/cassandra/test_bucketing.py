"""Where messages lie: classes, levels, buckets."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.ids import TICKS_PER_SECOND
from queuey.storage.cassandra import bucketing
from queuey.storage.cassandra.bucketing import CLASSES, HOME, LEVELS, NARROWEST, PUT, Bucket
from tests import strategies

KINDS = range(len(CLASSES))
kinds = st.sampled_from(KINDS)
levels = st.sampled_from(LEVELS)


@st.composite
def edges(draw: st.DrawFn) -> int:
    """Times at, just below and just above where a bucket of some level begins."""
    size = bucketing.width(draw(kinds), draw(levels))
    index = draw(st.integers(1, ids.TICKS_MAX // size))
    return index * size + draw(st.sampled_from([-1, 0, 1]))


times = strategies.ticks() | edges()


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, 0), (1, 0), (6 * 3600, 0), (6 * 3600 + 0.5, 1), (4 * 86400, 1), (4 * 86400 + 1, 2), (32 * 86400 + 1, 3)],
)
def test_a_class_holds_lives_up_to_its_own_inclusive(seconds: float, expected: int) -> None:
    """The smallest class that covers a life is taken; one that is just as long as a class belongs to it."""
    assert bucketing.class_of(seconds) == expected


@given(st.floats(0, 400 * 86400.0))
def test_a_class_is_the_smallest_that_covers(seconds: float) -> None:
    """A message's class covers its life, and the class below would not."""
    found = bucketing.class_of(seconds)
    assert CLASSES[found] >= seconds
    assert not found or CLASSES[found - 1] < seconds


def test_longer_lives_than_any_class_go_to_the_longest() -> None:
    """A delay and a TTL together may exceed the longest class: that one has them."""
    assert bucketing.class_of(800 * 86400) == len(CLASSES) - 1


@given(times, kinds, levels)
def test_a_place_holds_the_ids_it_was_made_for(at: int, kind: int, level: int) -> None:
    """A bucket's start is included, its end is not, and its bucket says its level."""
    place = bucketing.bucket_of(at, kind, level)
    assert place.start <= at < place.end
    assert place.end - place.start == bucketing.width(kind, level)
    assert (place.kind, place.level) == (kind, level)
    assert bucketing.bucket_of(place.start, kind, level) == bucketing.bucket_of(place.end - 1, kind, level) == place
    assert bucketing.bucket_of(place.end, kind, level) != place


@given(times, kinds, levels)
def test_buckets_fit_their_column(at: int, kind: int, level: int) -> None:
    """Every bucket is a non-negative 64-bit integer, also at the first and the last id there is."""
    assert 0 <= bucketing.bucket_of(at, kind, level).bucket < 1 << 63


@given(times, kinds)
def test_places_of_one_time_differ_by_level(at: int, kind: int) -> None:
    """No two levels share a bucket."""
    assert len({bucketing.bucket_of(at, kind, level) for level in LEVELS}) == len(LEVELS)


@pytest.mark.parametrize("kind", KINDS)
def test_going_narrower_ends_at_the_narrowest(kind: int) -> None:
    """From level 0 every step is to a narrower level for minted ids, down to 5 seconds, where it stays."""
    level, seen = HOME, [HOME]
    while (following := bucketing.narrower(kind, level)) != level:
        assert bucketing.width(kind, following) < bucketing.width(kind, level)
        assert following < PUT
        level = following
        seen.append(level)
    assert level == NARROWEST
    assert len(seen) == (4 if kind == 0 else 5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", range(NARROWEST + 1))
def test_going_wider_ends_at_the_class(kind: int, level: int) -> None:
    """From every level every step is to a wider one, or from a level as wide as the class to level 0, where it ends."""
    while level != HOME:
        following = bucketing.wider(kind, level)
        assert HOME <= following < level
        assert following == HOME or bucketing.width(kind, following) > bucketing.width(kind, level)
        level = following
    assert bucketing.wider(kind, HOME) == HOME


@pytest.mark.parametrize("kind", KINDS)
def test_wider_undoes_narrower(kind: int) -> None:
    """A step down and a step up lead back."""
    level = HOME
    while level != NARROWEST:
        below = bucketing.narrower(kind, level)
        assert bucketing.wider(kind, below) == level
        level = below


@given(times, st.integers(1, 3000 * 86400), kinds)
def test_own_places_cover_a_range_without_gaps(lower: int, seconds: int, kind: int) -> None:
    """The level 0 buckets of a range touch each other, hold both its ends, and none lies outside."""
    upper = lower + seconds * TICKS_PER_SECOND
    found = bucketing.own_buckets(kind, lower, upper)
    assert found[0].start <= lower < found[0].end
    assert found[-1].start < upper <= found[-1].end
    for one, following in pairwise(found):
        assert one.end == following.start
    assert all(place.level == HOME and place.kind == kind for place in found)


@given(times, kinds)
def test_what_can_be_alive_lies_in_two_own_places(now: int, kind: int) -> None:
    """As far back as a class reaches there are at most two buckets of its level 0."""
    lower = max(0, now - bucketing.width(kind, HOME))
    assert 1 <= len(bucketing.own_buckets(kind, lower, now + 1)) <= 2


@given(st.integers(ids.EPOCH_TICKS, ids.seconds_to_ticks(2_140_000_000.0)))
def test_nothing_outlives_what_cassandra_can_count(now: int) -> None:
    """The longest TTL ends before 2038-01-19 03:14:06, the last end that Cassandra's columns can hold."""
    ends = (now - ids.EPOCH_TICKS) / TICKS_PER_SECOND + bucketing.longest_ttl(now)
    assert ends < (1 << 31) - 2


@given(times, kinds, levels, kinds)
def test_only_level_0_of_the_home_class_is_looked_at_unrecorded(at: int, kind: int, level: int, home: int) -> None:
    """Every bucket needs a record but those of level 0 of the queue's own class."""
    place = bucketing.bucket_of(at, kind, level)
    assert bucketing.is_recorded(place, home) == ((kind, level) != (home, HOME))


@given(st.lists(st.builds(bucketing.bucket_of, times, kinds, levels), max_size=12), times, times)
def test_overlapping_places_are_those_that_share_an_id(places: list[Bucket], one: int, other: int) -> None:
    """A bucket is named for a range if and only if some id of the range lies in it; earlier ones come first."""
    lower, upper = sorted((one, other))
    upper += 1
    found = bucketing.Recorded(places).overlapping(lower, upper)
    assert sorted(found) == sorted(place for place in places if max(place.start, lower) < min(place.end, upper))
    assert [place.start for place in found] == sorted(place.start for place in found)


@given(
    st.lists(st.builds(bucketing.bucket_of, times, kinds, levels), unique=True, max_size=40),
    times,
    times,
    st.integers(24, 30),
    st.lists(times, min_size=4, max_size=4),
    st.booleans(),
)
def test_the_nearest_places_of_very_many(
    places: list[Bucket],
    one: int,
    other: int,
    most: int,
    alive: list[int],
    descending: bool,  # noqa: FBT001
) -> None:
    """Up to where they are complete, no bucket that may hold anything is left out; beyond, few are named."""
    lower, upper = sorted((one, other))
    upper += 1
    found, end = bucketing.Recorded(places).nearest(lower, upper, most, alive=alive, descending=descending)
    if end is not None:
        assert lower < end < upper
        lower, upper = (end, upper) if descending else (lower, end)
    needed = {
        place
        for place in places
        if max(place.start, lower, alive[place.kind] if place.minted else 0) < min(place.end, upper)
    }
    assert needed <= set(found) <= set(places)
    assert len(found) == len(set(found))
    assert sum(not place.wide for place in found) <= most
    if sum(not place.wide for place in places) <= most:
        assert end is None


def test_kinds_of_places() -> None:
    """Levels 0 and 5 are as wide as the class; ids were new in levels 0 to 4 only."""
    places = [bucketing.bucket_of(ids.now_ticks(), 1, level) for level in LEVELS]
    assert [place.level for place in places if place.wide] == [HOME, PUT]
    assert [place.level for place in places if place.minted] == [0, 1, 2, 3, 4]
