"""The places of pieces of numbered rows, without I/O."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from queuey.ids import TICKS_PER_SECOND
from queuey.spark.sink.piece_order import PieceOrder, Timing, reserve_piece

SPAN = 10_000
LEAD = 10 * TICKS_PER_SECOND


def timing(seconds: float) -> Timing:
    now = round(seconds * TICKS_PER_SECOND)
    return Timing(now + LEAD, now + LEAD // 2, SPAN, LEAD // 10, 12 * LEAD)


def run(pieces: list[tuple[float, int]]) -> dict[int, int]:
    order, bases = PieceOrder(), {}
    for seconds, piece in sorted(pieces):
        order, bases[piece] = reserve_piece(order, piece, timing(seconds))
    return bases


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 100), st.floats(0.05, 1.0))
def test_tasks_of_any_number_keep_the_order(tasks: int, cores: int, pieces: int, pause: float) -> None:
    """Concurrent tasks of adjacent numbers get ids in the order of numbers, each in time."""
    bounds = [pieces * number // tasks for number in range(tasks + 1)]
    free, came = [0.0] * cores, []
    for first, end in pairwise(bounds):
        at = free.index(min(free))
        for piece in range(first, end):
            came.append((free[at], piece))
            free[at] += pause
    bases = run(came)
    assert [bases[piece] for piece in sorted(bases)] == sorted(bases.values())
    assert all(lower + SPAN <= upper for lower, upper in pairwise(sorted(bases.values())))
    assert all(bases[piece] >= (seconds + 5) * TICKS_PER_SECOND for seconds, piece in came)


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 300)), max_size=40))
def test_whatever_comes_is_in_time(came: list[tuple[float, int]]) -> None:
    """Pieces in any order at any time get ids that are not passed yet, and not too far ahead of the clock."""
    order, ends = PieceOrder(), 0
    for seconds, piece in sorted(came):
        numbers = {one for stretch in order.stretches for one in range(stretch.first, stretch.last + 1)}
        order, base = reserve_piece(order, piece, timing(seconds))
        now = round(seconds * TICKS_PER_SECOND)
        if piece not in numbers:
            assert now + LEAD // 2 <= base <= max(now + 13 * LEAD, ends)
        ends = max([ends, *(stretch.top + SPAN for stretch in order.stretches)])
        assert all(lower.last + 1 < upper.first for lower, upper in pairwise(order.stretches))


def test_a_piece_that_is_asked_for_again_keeps_its_ids() -> None:
    """An attempt that was killed before it entered the piece, or another task, gets the same ids."""
    order, base = reserve_piece(PieceOrder(), 7, timing(0))
    assert reserve_piece(order, 7, timing(3)) == (order, base)
    order, higher = reserve_piece(order, 8, timing(4))
    assert [reserve_piece(order, piece, timing(5)) for piece in (7, 8)] == [(order, base), (order, higher)]


def test_a_later_micro_batch_lies_above() -> None:
    """Numbers continue behind those of the former micro-batch in each partition, so no ids are left below them."""
    order = PieceOrder(3)
    for piece in (500, 501, 900):
        order, _ = reserve_piece(order, piece, timing(0))
    later = order.start_batch(4, SPAN)
    assert (later.batch, later.stretches, later.before) == (4, (), (501, 900))
    assert later.end > max(one.top for one in order.stretches)
    for piece in (502, 901):
        later, base = reserve_piece(later, piece, timing(500))
        assert base - timing(500).soonest <= SPAN
