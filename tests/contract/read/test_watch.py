"""Watching for messages: which watcher is woken, when, and by what."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import pytest

from queuey.model.errors import StoreClosed
from queuey.model.ids import FIRST, Position
from queuey.model.messages import Queue, Slice
from queuey.storage import Store, bridge, partition_watches
from tests.backends import PROMPT
from tests.contract.samples import append_bodies, bodies_in_partition, eventually, make_queue, new_message
from tests.replacing import replace_in
from tests.waiting import join

LONG = 60.0
"""A timeout that no test should reach, in seconds: a watcher that waits so long was not woken."""


class Watcher:
    """A watcher that is woken by news in some partitions of a queue."""

    def __init__(self, store: Store, queue: Queue, *partitions: int, **how: bool) -> None:
        self.told = threading.Event()
        self._stops = [store.messages.watch(queue, number, self.told.set, **how) for number in partitions or (1,)]

    def wait_until(self, until: Callable[[], bool]) -> bool:
        while not until():
            if not self.told.wait(LONG):
                return False
            self.told.clear()
        return True

    def stop(self) -> None:
        for stop in self._stops:
            stop()


@pytest.fixture(params=["same store", "other store"])
def writer(request: pytest.FixtureRequest, store: Store, other: Store) -> Store:
    """The store that appends: the one that is watched, or another process's."""
    return store if request.param == "same store" else other


def test_told_of_an_append(store: Store, writer: Store) -> None:
    """A watcher is woken when a read shows a message stored since, here or in another process."""
    queue = make_queue(store, partitions=2)
    watcher = Watcher(store, queue, 2)
    append_bodies(writer, queue, "x", partition=2)
    assert watcher.wait_until(lambda: bodies_in_partition(store, queue, 2) == ["x"])


def test_told_before_the_read_delay_is_over(store: Store, writer: Store) -> None:
    """A reader without the read delay is woken as soon as a message is stored."""
    queue = make_queue(store, read_delay=LONG)
    watcher = Watcher(store, queue, keeps_read_delay=False)
    append_bodies(writer, queue, "x")

    def found() -> bool:
        return bool(bridge.run(store.messages.read(queue, [Slice(1, keeps_read_delay=False)]))[0].messages)

    assert watcher.wait_until(found)


def test_told_when_the_read_delay_is_over(store: Store, writer: Store) -> None:
    """A reader with the read delay is woken when the message shows, without any write at that time."""
    queue = make_queue(store, read_delay=0.4)
    watcher = Watcher(store, queue)
    append_bodies(writer, queue, "x")
    assert watcher.wait_until(lambda: bool(bridge.run(store.messages.read(queue, [Slice(1)]))[0].messages))


def test_told_when_a_delayed_message_is_due(store: Store, writer: Store) -> None:
    """A message that becomes due without any write wakes watchers."""
    queue = make_queue(store)
    watcher = Watcher(store, queue)
    bridge.run(writer.messages.append(queue, [new_message("late", delay=0.5)]))
    assert watcher.wait_until(lambda: bool(bodies_in_partition(store, queue)))


def test_watchers_are_not_woken_without_news(store: Store, other: Store) -> None:
    """Watchers are not woken all the time when nothing happens, or only in other partitions."""
    queue, busy = make_queue(store, partitions=2), make_queue(store)
    watcher = Watcher(store, queue, 1)
    told = 0
    for number in range(10):
        append_bodies(other if number % 2 else store, busy, str(number))
        append_bodies(store, queue, str(number), partition=2)
        told += watcher.told.wait(0.05)
        watcher.told.clear()
    assert told < 4


def test_told_no_more(store: Store) -> None:
    """A watch that has ended is not woken, while others on the same partition are."""
    queue = make_queue(store)
    ended, other = Watcher(store, queue), Watcher(store, queue)
    ended.stop()
    append_bodies(store, queue, "x")
    assert other.wait_until(lambda: bool(bodies_in_partition(store, queue)))
    assert not ended.told.is_set()


def test_told_that_the_row_is_out_of_date(store: Store, other: Store) -> None:
    """A purge or delete of the queue wakes its watchers."""
    for change in (other.catalogue.purge_queue, other.catalogue.delete_queue):
        queue = make_queue(store)
        watcher = Watcher(store, queue)
        bridge.run(change(bridge.run(other.catalogue.queue(queue.application, queue.name, fresh=True))))
        assert watcher.told.wait(LONG)
        watcher.stop()


def test_told_that_the_store_is_closed(store: Store) -> None:
    """Closing the store wakes its watchers, and those that begin afterwards."""
    queue = make_queue(store)
    watcher = Watcher(store, queue)
    store.close()
    assert watcher.told.wait(LONG)
    assert Watcher(store, queue).told.wait(LONG)
    with pytest.raises(StoreClosed):
        bridge.run(store.messages.read(queue, [Slice(1)]))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 3))])
def test_a_reader_that_waits_misses_nothing(store: Store, other: Store, seed: int) -> None:
    """While writers in two processes append, a reader that reads only when woken misses nothing.

    It keeps the read delay of its consistency level: without that, a message may appear below its cursor.
    """
    rng = random.Random(seed)
    queue = make_queue(store, read_delay=None, consistency=PROMPT)
    stored: list[Position] = []
    lock = threading.Lock()

    def write(through: Store, pauses: list[float]) -> None:
        for pause in pauses:
            positions = bridge.run(through.messages.append(queue, [new_message(delay=rng.choice((0, 0, 0.1)))]))
            with lock:
                stored.extend(positions)
            threading.Event().wait(pause)

    pauses = [[rng.choice((0.0, 0.01, 0.05)) for _ in range(15)] for _ in range(4)]
    threads = [threading.Thread(target=write, args=((store, other)[n % 2], some)) for n, some in enumerate(pauses)]
    for thread in threads:
        thread.start()
    watcher = Watcher(store, queue)
    at = FIRST
    seen: list[Position] = []

    def read() -> bool:
        nonlocal at
        page = bridge.run(store.messages.read(queue, [Slice(1, at, limit=rng.randint(1, 5))]))[0]
        while page.messages or page.more:
            seen.extend(message.position for message in page.messages)
            assert page.next is not None
            at = page.next
            page = bridge.run(store.messages.read(queue, [Slice(1, at, limit=rng.randint(1, 5))]))[0]
        at = page.next or at
        return len(seen) >= 60

    assert watcher.wait_until(read)
    for thread in threads:
        join(thread)
    assert sorted(seen) == sorted(stored)


@pytest.fixture(name="unpolled")
def _unpolled() -> Iterator[None]:
    """Disables polling in all stores."""
    with replace_in(partition_watches, partition_watches.POLL_INTERVAL, 10 * LONG):
        yield


@pytest.mark.usefixtures("unpolled")
def test_told_of_news_that_processes_share(store: Store, other: Store) -> None:
    """A message that another process announces wakes the watchers of its partition at once, without a poll."""
    queue = make_queue(store, partitions=2)
    waiting = threading.Event()
    store.messages.share_news(lambda _moment, _partitions: None, waiting.set)
    told: list[bool] = []
    other.messages.share_news(
        lambda moment, partitions: told.append(store.messages.hear_news(moment, partitions)), lambda: None
    )
    append_bodies(other, queue, "nobody waits")
    assert eventually(lambda: told == [False], LONG)
    assert not waiting.is_set()
    watcher, unconcerned = (Watcher(store, queue, number, keeps_read_delay=False) for number in (1, 2))
    assert waiting.is_set()
    append_bodies(other, queue, "x")
    assert watcher.told.wait(LONG)
    assert told == [False, True]
    assert not unconcerned.told.is_set()
