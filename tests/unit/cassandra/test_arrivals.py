"""Whom a process that is asked to watch very many partitions looks for first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queuey.messages import Queue
from queuey.storage.cassandra.read.arrivals import MOST, next_to_look_for
from queuey.storage.watching import Watch


def watches(application: str, count: int) -> list[Watch]:
    """Watches of an application, on queues of their own."""
    queues = [Queue(application=application, name=f"q{number}", uid=number, qid=number) for number in range(count)]
    return [Watch(queue, 1, lambda: None, 0, prompt=False) for queue in queues]


@given(st.integers(1, 400), st.integers(1, 400))
def test_applications_take_turns(many: int, few: int) -> None:
    """Whatever one application watches, another has half of the looks, or all that it needs."""
    one, other = watches("one", many), watches("other", few)
    chosen = next_to_look_for([*one, *other])
    assert len(chosen) == min(MOST, many + few)
    mine = sum(watch in other for watch in chosen)
    assert mine >= min(few, MOST // 2)


def test_each_has_its_turn() -> None:
    """The partitions that were looked at longest ago are next, and none while a look at it is under way."""
    mine = watches("one", MOST * 2)
    mine[0].asking = True
    seen: list[Watch] = []
    for turn in range(1, 4):
        for watch in next_to_look_for(mine):
            watch.looked = turn
            seen.append(watch)
    assert mine[0] not in seen
    assert set(map(id, mine[1:])) == set(map(id, seen[: len(mine) - 1]))
