"""Positions as callers write them, and the slices made of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.messages.ranges import Mark, RangeRequest, make_slices, parse_bound, parse_mark
from queuey.model.ids import FIRST, LAST, LOW_MIN, following, parse_instant, to_hex
from queuey.model.messages import Slice
from tests.strategies import positions


def slice_range(wanted: RangeRequest, *partitions: int) -> list[Slice]:
    return make_slices(wanted, partitions, 100)


@given(position=positions())
def test_an_id_is_itself(position: tuple[int, int]) -> None:
    """An id's mark begins at its position and ends right above it."""
    mark = parse_mark(to_hex(position))
    assert (mark.start, mark.end) == (position, following(position))


def test_an_id_of_digits_alone_is_an_id() -> None:
    """32 digits without a letter are an id, not an instant."""
    assert parse_mark("1" * 32).start != parse_mark("1" * 12).start
    assert parse_mark("1" * 32) == Mark(
        (0x111111111111111, 0x1111111111111111 ^ 0x80808080808080),
        (0x111111111111111, (0x1111111111111111 ^ 0x80808080808080) + 1),
    )


@given(seconds=st.integers(0, 10**11), fraction=st.integers(0, 10**7 - 1))
def test_an_instant_is_all_of_its_ids(seconds: int, fraction: int) -> None:
    """An instant's mark holds every id of its tick and no other."""
    text = f"{seconds}.{fraction:07d}"
    ticks = parse_instant(text)
    assert ticks is not None
    assert parse_mark(text) == Mark((ticks, LOW_MIN), (ticks + 1, LOW_MIN))


@given(places=st.dictionaries(st.integers(0, 999), positions(), min_size=1, max_size=5))
def test_a_cursor_speaks_for_each_partition(places: dict[int, tuple[int, int]]) -> None:
    """A cursor gives its own mark to each partition that it names."""
    text = ", ".join(f"{number}:{to_hex(at)}" for number, at in places.items())
    bound = parse_bound(text)
    assert isinstance(bound, dict)
    assert {number: mark.start for number, mark in bound.items()} == places


@pytest.mark.parametrize("text", ["", "  "])
def test_blank_is_no_bound(text: str) -> None:
    """Empty text is not a bound."""
    assert parse_bound(text) is None


marks = st.builds(parse_mark, st.builds(to_hex, positions()) | st.integers(0, 10**10).map(str))


@given(
    since=st.none() | marks,
    after=st.none() | marks,
    before=st.none() | marks,
    until=st.none() | marks,
    descending=st.booleans(),
    at=positions(),
)
def test_slices_hold_what_the_bounds_allow(
    since: Mark | None,
    after: Mark | None,
    before: Mark | None,
    until: Mark | None,
    descending: bool,  # noqa: FBT001
    at: tuple[int, int],
) -> None:
    """A position is in the slice exactly if every given bound allows it."""
    requested = RangeRequest(since=since, after=after, before=before, until=until, descending=descending)
    [piece] = slice_range(requested, 1)
    allowed = FIRST <= at < LAST
    if since is not None:
        allowed = allowed and (at < since.end if descending else at >= since.start)
    if after is not None:
        allowed = allowed and at >= after.end
    if before is not None:
        allowed = allowed and at < before.start
    if until is not None:
        allowed = allowed and at < until.end
    assert (piece.lower <= at < piece.upper) == allowed


def test_what_a_cursor_does_not_name() -> None:
    """A partition missing in the cursor is read from its beginning if ascending, and is exhausted if descending."""
    cursor = {2: parse_mark("5")}
    assert [piece.partition for piece in slice_range(RangeRequest(since=cursor), 1, 2)] == [1, 2]
    assert slice_range(RangeRequest(since=cursor), 1, 2)[0].lower == FIRST
    assert [piece.partition for piece in slice_range(RangeRequest(since=cursor, descending=True), 1, 2)] == [2]
