"""Waiting for messages without a thread for each who waits.

All who wait on a queue partition share one watch of the store (:class:`Watchers`). Whoever waits is a :class:`Waiter`:
it names what it is about to read, reads, and if that gave nothing is woken when another read is worthwhile.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from queuey.messages import Queue
from queuey.storage import Store

FEW = 8
"""Whoever waits on more partitions of a queue than these is woken by all of its partitions."""

Key = tuple[Any, ...]
"""Queue and version of its row, partitions, and whether reads keep the read delay."""
Wanted = tuple[Queue, Sequence[int], bool]
"""A queue, partitions of it, and whether the reads keep the read delay."""


class _Shared:
    """What some wait for, and they."""

    __slots__ = ("_told", "_watchers", "stops", "waiters")

    def __init__(self, watchers: Watchers) -> None:
        self.stops: tuple[Callable[[], None], ...] = ()
        self.waiters: dict[Waiter, None] = {}
        self._told = False
        self._watchers = watchers

    def wake(self) -> None:
        """Is told of news by the store, in any thread."""
        if not self._told:
            self._told = True
            self._watchers.tell(self._wake_all)

    def _wake_all(self) -> None:
        self._told = False
        for waiter in self._watchers.waiting(self):
            waiter.wake()


class Watchers:
    """Shares the watches of the store. Safe for use by many threads.

    Args:
        store: Where messages come from.

    Attributes:
        tell: Makes a call that wakes waiters, however many they are. An event loop puts its own in this place, so that
            no thread of the store is held up.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._shared: dict[Key, _Shared] = {}
        self.tell: Callable[..., None] = _call

    def __len__(self) -> int:
        """How many wait, each counted for each partition that it waits on."""
        with self._lock:
            return sum(len(shared.waiters) for shared in self._shared.values())

    def add(self, key: Key, waiter: Waiter, queue: Queue) -> None:
        """Has a waiter woken; ``key`` is of this queue."""
        *_, partitions, delayed = key
        with self._lock:
            shared = self._shared.get(key)
            if shared is None:
                shared = self._shared[key] = _Shared(self)
                watch, wake = self._store.watch, shared.wake
                shared.stops = tuple(watch(queue, number, wake, delayed=delayed) for number in partitions)
            shared.waiters[waiter] = None

    def remove(self, key: Key, waiter: Waiter) -> None:
        """Ends what :meth:`add` began."""
        with self._lock:
            shared = self._shared[key]
            del shared.waiters[waiter]
            if shared.waiters:
                return
            del self._shared[key]
        for stop in shared.stops:
            stop()

    def waiting(self, shared: _Shared) -> list[Waiter]:
        """Returns who waits for the same."""
        with self._lock:
            return list(shared.waiters)


class Waiter(ABC):
    """Somebody who waits for messages. Used by one thread at a time, but for :meth:`wake`.

    Attributes:
        wait: Seconds that the last try would have waited; 0: its answer is the one to give.
        again: Seconds after which another try is worthwhile whatever comes; 0: none is.
    """

    __slots__ = ("_keys", "_watchers", "again", "wait")

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self._keys: set[Key] = set()
        self.wait = 0.0
        self.again = 0.0

    @abstractmethod
    def wake(self) -> None:
        """Is told of something worth another try, in any thread, or where ``Watchers.tell`` makes its calls."""

    def expect(self, wanted: Iterable[Wanted]) -> None:
        """Has this waiter woken by news in these partitions from now on, and in no others."""
        queues = {key: queue for queue, numbers, delayed in wanted for key in _keys_of(queue, numbers, delayed=delayed)}
        for key in queues.keys() - self._keys:
            self._watchers.add(key, self, queues[key])
        for key in self._keys - queues.keys():
            self._watchers.remove(key, self)
        self._keys = set(queues)

    def close(self) -> None:
        """Is woken no more."""
        self.expect(())


def _keys_of(queue: Queue, numbers: Sequence[int], *, delayed: bool) -> list[Key]:
    there = [number for number in numbers if number <= queue.partitions]
    row = (queue.qid, queue.version)
    if len(there) > FEW:
        return [(*row, range(1, queue.partitions + 1), delayed)]
    return [(*row, (number,), delayed) for number in there]


def _call(call: Callable[..., None], *arguments: object) -> None:
    call(*arguments)
