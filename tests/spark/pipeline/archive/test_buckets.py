"""Arithmetic of buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.ids import EPOCH_TICKS, FIRST, LOW_MIN, TICKS_PER_SECOND
from queuey.pipeline.archive import buckets
from queuey.pipeline.archive.buckets import ArchiveBucket
from queuey.pipeline.options import check_width
from queuey.spark.errors import OptionError

WIDTHS = st.sampled_from([1, 60, 900, 3600, 86_400, 7 * 86_400])
MOMENTS = st.integers(EPOCH_TICKS, EPOCH_TICKS + 4_000_000_000 * TICKS_PER_SECOND)


@given(MOMENTS, WIDTHS)
def test_a_moment_lies_in_its_bucket_alone(ticks: int, seconds: int) -> None:
    """Every instant is at or above the lower end of its bucket and below the upper one."""
    bucket = buckets.find_bucket(ticks, seconds)
    assert bucket.lower <= (ticks, LOW_MIN) < bucket.upper
    assert bucket.upper == ArchiveBucket(bucket.end, seconds).lower


@given(MOMENTS, WIDTHS)
def test_a_name_says_which_bucket(ticks: int, seconds: int) -> None:
    """A bucket's name gives back the bucket."""
    bucket = buckets.find_bucket(ticks, seconds)
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
    gaps = list(
        buckets.find_gaps(ArchiveBucket(end * width, width).lower, [ArchiveBucket(one * width, width) for one in done])
    )
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
