"""Sums over queues."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.messages import Measure, Queue
from queuey.spark.jobs.stats.totals import LEAST_EVEN, ORDERS, Totals, TotalsBuilder, figures, together

TICK = ids.TICKS_PER_SECOND
NOW = 0x1F00000 << 36


@st.composite
def measured(draw: st.DrawFn) -> list[tuple[Queue, list[Measure]]]:
    """Queues of different names, with what their partitions hold."""
    found = []
    for number in range(draw(st.integers(0, 12))):
        queue = Queue(application="a", name=f"q{number}", uid=number, qid=number, partitions=draw(st.integers(1, 4)))
        parts = draw(st.sets(st.integers(1, queue.partitions)))
        measures = []
        for part in sorted(parts):
            count = draw(st.integers(1, 200))
            oldest = NOW + draw(st.integers(0, 50)) * TICK
            newest = oldest + draw(st.integers(0, 50)) * TICK
            measures.append(Measure(part, count, count * 7, draw(st.booleans()), (oldest, 0), (newest, 0)))
        found.append((queue, measures))
    return found


def tally(queues: list[tuple[Queue, list[Measure]]], top: int) -> Totals:
    """Folds queues at once."""
    folding = TotalsBuilder(top)
    for queue, measures in queues:
        folding.add(queue, measures)
    return folding.tally()


@given(measured(), st.integers(0, 5), st.integers(1, 5))
def test_however_queues_are_shared_out_the_sums_are_the_same(
    queues: list[tuple[Queue, list[Measure]]], top: int, tasks: int
) -> None:
    """Tallies of parts put together are the tally of the whole, lists included."""
    assert together([tally(queues[number::tasks], top) for number in range(tasks)], top) == tally(queues, top)


@given(measured(), st.integers(1, 5))
def test_sums_and_lists_are_those_of_the_queues(queues: list[tuple[Queue, list[Measure]]], top: int) -> None:
    """Every queue counts once, and each list has the greatest of its order."""
    found = tally(queues, top)
    measures = [one for _, each in queues for one in each]
    assert (found.queues, found.empty) == (len(queues), sum(not each for _, each in queues))
    assert (found.messages, found.bytes) == (sum(one.count for one in measures), sum(one.size for one in measures))
    assert found.exact == all(one.exact for one in measures)
    every = [each for queue, each in ((queue, figures(queue, some)) for queue, some in queues) if each is not None]
    for order in ORDERS:
        listed = [getattr(one, order) for one in found.top.get(order, ())]
        allowed = [
            getattr(one, order)
            for one in every
            if order != "skew" or (one.partitions > 1 and one.messages >= LEAST_EVEN * one.partitions)
        ]
        assert listed == sorted(allowed, reverse=True)[:top]


def test_rate_and_skew() -> None:
    """The rate is that between the ends, the skew what the fullest partition has beyond its share."""
    queue = Queue(application="a", name="q", uid=1, qid=1, partitions=4)
    exact = True
    found = figures(
        queue,
        [
            Measure(1, 30, 300, exact, (NOW, 0), (NOW + 10 * TICK, 0)),
            Measure(3, 11, 90, not exact, (NOW, 0), (NOW + 20 * TICK, 0)),
        ],
    )
    assert found is not None
    assert (found.messages, found.bytes, found.largest, found.exact) == (41, 390, 30, not exact)
    assert found.rate == pytest.approx(2.0)
    assert found.skew == pytest.approx(30 / (41 / 4))
    assert figures(queue, []) is None
