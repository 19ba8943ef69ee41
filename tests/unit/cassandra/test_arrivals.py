"""Whom a process that is asked to watch very many partitions looks for first."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from queuey.messages import NewMessage, Page, Queue, Slice
from queuey.storage.cassandra.read.arrivals import MOST, Done, PolledArrivals, next_to_look_for
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


class Deaf:
    """A store whose looks never end."""

    def read_delay(self, queue: Queue) -> float:
        """Of every queue."""
        return 0.3

    def horizon_now(self, queue: Queue, *, delayed: bool) -> int:
        """Somewhere."""
        return 0

    def begin_look(self, queue: Queue, part: Slice, done: Done) -> bool:
        """Begins."""
        return True

    def read(self, queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        """Is not asked."""
        raise AssertionError


def test_own_messages_need_no_look() -> None:
    """Readers of what this process has stored are woken once the read delay is over, and no others are."""
    arrivals = PolledArrivals(Deaf())
    mine, other = (Queue(application="a", name=str(number), uid=number, qid=number) for number in (1, 2))
    woken, disturbed, began = threading.Event(), threading.Event(), time.monotonic()
    arrivals.watch(mine, 1, woken.set, delayed=True)
    arrivals.watch(other, 1, disturbed.set, delayed=True)
    arrivals.appended(mine, [NewMessage("x", 1, 60)])
    arrivals.appended(mine, [NewMessage("x", 2, 60)])
    assert woken.wait(60)
    assert time.monotonic() - began >= 0.3
    assert not disturbed.is_set()
    arrivals.watches.close()


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
