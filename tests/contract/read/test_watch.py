"""Waiting for messages."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest

from queuey.errors import StoreClosed
from queuey.messages import Queue
from queuey.storage import Store
from tests.contract.samples import make_queue, new, say, shown, shown_bodies

LONG = 60.0
"""Seconds that no test waits: whoever waits so long was not woken."""


class Waiter(threading.Thread):
    """Waits in the background, read by read, until it is shown a number of messages."""

    def __init__(self, store: Store, queue: Queue, partition: int, messages: int) -> None:
        super().__init__(daemon=True)
        self.woken = 0
        self.ready = threading.Event()
        self._count: Callable[[], int] = lambda: len(shown(store, queue, partition))
        self._watch: Callable[[], Callable[[float], bool]] = lambda: store.watch(queue, [partition])
        self._messages = messages
        self.start()

    def run(self) -> None:
        """Watches, reads, and waits if the read gave too little."""
        wait = self._watch()
        while self._count() < self._messages:
            self.ready.set()
            if not wait(LONG):
                return
            self.woken += 1

    def done(self) -> bool:
        """Whether it has seen what it waits for, without having waited in vain."""
        self.join(LONG / 2)
        return not self.is_alive()


@pytest.fixture(params=["same store", "other store"])
def writer(request: pytest.FixtureRequest, store: Store, other: Store) -> Store:
    """Who appends: the store that is watched, or another process's."""
    return store if request.param == "same store" else other


def test_wakes_for_an_append(store: Store, writer: Store) -> None:
    """A waiter is woken by a message that is stored while it waits, here or elsewhere."""
    queue = make_queue(store, partitions=2)
    waiter = Waiter(store, queue, 2, 1)
    assert waiter.ready.wait(LONG)
    say(writer, queue, "x", partition=2)
    assert waiter.done()


def test_message_between_watch_and_wait(store: Store, writer: Store) -> None:
    """Whatever is committed after watching began is noticed, also before the waiting begins."""
    queue = make_queue(store)
    wait = store.watch(queue, [1])
    say(writer, queue, "x")
    assert wait(LONG)
    assert shown_bodies(store, queue) == ["x"]


def test_wakes_again_and_again(store: Store, writer: Store) -> None:
    """One watch serves a whole conversation: no message of a hundred is slept through."""
    queue = make_queue(store)
    waiter = Waiter(store, queue, 1, 20)
    for number in range(20):
        say(writer, queue, str(number))
    assert waiter.done()


def test_wakes_for_a_put(store: Store) -> None:
    """A message put at an id below the horizon is worth a read."""
    queue = make_queue(store)
    say(store, queue, "a")
    waiter = Waiter(store, queue, 1, 2)
    assert waiter.ready.wait(LONG)
    store.put(queue, [(1, (77, 0))], new("put"))
    assert waiter.done()


def test_wakes_when_a_delayed_message_is_due(store: Store) -> None:
    """A message that falls due while somebody waits is not slept through."""
    queue = make_queue(store)
    store.append(queue, [new("late", delay=0.3)])
    waiter = Waiter(store, queue, 1, 1)
    assert waiter.done()


def test_wakes_everybody(store: Store) -> None:
    """All who wait for a partition are woken by one message, whichever of several partitions it is in."""
    queue = make_queue(store, partitions=3)
    waits = [store.watch(queue, [1, 3]) for _ in range(5)]
    say(store, queue, "x", partition=3)
    assert [wait(LONG) for wait in waits] == [True] * 5


def test_gives_up(store: Store) -> None:
    """Where nothing happens a waiter comes back and says so; it does not spin with false alarms."""
    queue = make_queue(store)
    wait = store.watch(queue, [1])
    assert False in [wait(0.02) for _ in range(20)]


def test_no_time_to_wait(store: Store) -> None:
    """A waiter without time left comes back at once."""
    assert store.watch(make_queue(store), [1])(0.0) in (False, True)


def test_closing_ends_the_waiting(store: Store) -> None:
    """A waiter does not keep waiting on a store that is closed."""
    queue = make_queue(store)
    waiting = threading.Event()

    def run() -> None:
        wait = store.watch(queue, [1])
        waiting.set()
        with contextlib.suppress(StoreClosed):
            while not wait(LONG):
                pass
            while True:
                wait(LONG)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert waiting.wait(LONG)
    store.close()
    thread.join(LONG / 2)
    assert not thread.is_alive()
