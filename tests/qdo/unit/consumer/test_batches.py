"""How an answer is divided among partitions, and what it weighs."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter

from hypothesis import given
from hypothesis import strategies as st

from qdo.consumer.fetch.fetch_buffer import weigh
from qdo.consumer.fetch.fetcher import divide
from tests.qdo.unit.samples import message, messages


@given(st.lists(st.integers(0, 5), max_size=8))
def test_every_partition_gets_its_own_in_order(counts: list[int]) -> None:
    """Whatever each partition has, the pieces are the runs of the answer, and none is empty."""
    answer = [one for number, count in enumerate(counts, 1) for one in messages(1, count, number)]
    expected = [(number, list(run)) for number, run in groupby(answer, key=attrgetter("partition"))]
    assert list(divide(tuple(answer))) == expected


def test_bodies_of_all_kinds_are_weighed() -> None:
    """Text, bytes and JSON count by their length; a number too large for packing is no obstacle."""
    light = weigh([message(1, body="x" * 10)])
    assert weigh([message(1, body="x" * 1010)]) - light in range(1000, 1010)
    assert weigh([message(1, body=b"x" * 100_000)]) >= 100_000
    assert weigh([message(1, body={"list": ["x" * 100] * 10})]) >= 1000
    assert weigh([message(1, body=10**500)]) >= 500
