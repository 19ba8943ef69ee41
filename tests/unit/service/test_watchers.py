"""Waiters on the same partition share one watch of the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from queuey.errors import StoreUnavailable
from queuey.messages import Queue
from queuey.service import Waiter, Watchers
from queuey.service.watching import MAX_WATCHED_PARTITIONS, WakeSource


class Watched:
    """A trigger of some kind, which records the watches."""

    def __init__(self) -> None:
        self.watched: dict[tuple[int, int], Callable[[], None]] = {}
        self.trigger = WakeSource(self.watch, for_all=True)
        self.refused: int | None = None
        """Partition of which a watch fails."""

    def watch(self, queue: Queue, partition: int, wake: Callable[[], None]) -> Callable[[], None]:
        """Refuses a second watch of the same partition."""
        key = (queue.qid, partition)
        assert key not in self.watched
        if partition == self.refused:
            raise StoreUnavailable("no clock")
        self.watched[key] = wake
        return lambda: cast("None", self.watched.pop(key))


class Counting(Waiter):
    """Counts how often it is woken."""

    def __init__(self, watchers: Watchers) -> None:
        super().__init__(watchers)
        self.woken = 0

    def wake(self, qid: int | None = None) -> None:
        self.woken += 1


def queue_of(partitions: int = 1) -> Queue:
    return Queue(application="a", name="q", uid=1, qid=7, partitions=partitions)


def test_one_watch_for_all() -> None:
    """A thousand waiters on a partition are one watch of the store, which ends with the last of them."""
    store, queue = Watched(), queue_of()
    watchers = Watchers()
    waiters = [Counting(watchers) for _ in range(1000)]
    for waiter in waiters:
        waiter.subscribe([(queue, (1,), store.trigger)])
    assert list(store.watched) == [(7, 1)]
    store.watched[7, 1]()
    assert [waiter.woken for waiter in waiters] == [1] * 1000
    for waiter in waiters[1:]:
        waiter.close()
    assert store.watched
    waiters[0].close()
    assert not store.watched


def test_many_partitions_are_one_watch_each() -> None:
    """Waiters on many partitions are woken by any of them, without a watch for each."""
    store, queue = Watched(), queue_of(255)
    watchers = Watchers()
    waiters = [Counting(watchers) for _ in range(10)]
    for number, waiter in enumerate(waiters):
        waiter.subscribe([(queue, range(1, 2 + MAX_WATCHED_PARTITIONS + number), store.trigger)])
    assert len(store.watched) == 255
    assert len(watchers) == 10
    store.watched[7, 255]()
    assert [waiter.woken for waiter in waiters] == [1] * 10


def test_expecting_something_else() -> None:
    """A waiter is woken by what it expects now, not by what it expected before; unchanged watches stay."""
    store, queue = Watched(), queue_of(3)
    watchers = Watchers()
    waiter = Counting(watchers)
    waiter.subscribe([(queue, (1, 2), store.trigger)])
    waiter.subscribe([(queue, (2, 3), store.trigger)])
    assert sorted(store.watched) == [(7, 2), (7, 3)]
    waiter.subscribe([(queue, (9,), store.trigger)])
    assert not store.watched


def test_a_thread_that_writes_makes_one_call() -> None:
    """However many wait and however often the trigger fires, the loop is called once until it has woken them."""
    store, queue = Watched(), queue_of()
    watchers = Watchers()
    calls: list[Callable[[], Any]] = []
    watchers.schedule = calls.append
    waiters = [Counting(watchers) for _ in range(100)]
    for waiter in waiters:
        waiter.subscribe([(queue, (1,), store.trigger)])
    for _ in range(5):
        store.watched[7, 1]()
    assert len(calls) == 1
    calls.pop()()
    assert [waiter.woken for waiter in waiters] == [1] * 100
    store.watched[7, 1]()
    assert len(calls) == 1


def test_a_try_that_ends_after_its_waiter_waits_for_nothing() -> None:
    """An attempt that ends after its request subscribes to nothing, since the subscription would never be released."""
    store, queue = Watched(), queue_of(3)
    watchers = Watchers()
    waiter = Counting(watchers)
    waiter.subscribe([(queue, (1,), store.trigger)])
    waiter.close()
    waiter.subscribe([(queue, (1, 2), store.trigger)])
    waiter.attempt_failed()
    assert not store.watched
    assert not len(watchers)


@pytest.mark.parametrize(("partitions", "refused"), [(3, 1), (3, 2), (3, 3), (MAX_WATCHED_PARTITIONS + 1, 1)])
def test_a_watch_that_fails_leaves_nothing(partitions: int, refused: int) -> None:
    """If the store refuses a watch, nobody counts as subscribed by it, and the next waiter gets a watch that wakes."""
    store, queue = Watched(), queue_of(partitions)
    watchers = Watchers()
    before, unlucky, later = (Counting(watchers) for _ in range(3))
    before.subscribe([(queue_of(), (1,), WakeSource(Watched().watch, for_all=True))])
    store.refused = refused
    numbers = range(1, partitions + 1)
    with pytest.raises(StoreUnavailable):
        unlucky.subscribe([(queue, numbers, store.trigger)])
    unlucky.close()
    assert not store.watched
    store.refused = None
    later.subscribe([(queue, numbers, store.trigger)])
    assert len(store.watched) == partitions
    store.watched[7, refused]()
    assert (later.woken, unlucky.woken) == (1, 0)
    for waiter in (later, before):
        waiter.close()
    assert (store.watched, len(watchers)) == ({}, 0)
