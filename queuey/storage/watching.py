"""Watches of partitions for new messages.

Messages that this process writes wake the watchers at once (:meth:`Watches.wrote`). Each store has its own way to find
messages of other processes and messages that come due, and polls as long as there are watches.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from queuey.messages import Queue

EVERY = 0.2
"""Interval in seconds from the end of a poll to the next."""


class Watch:
    """A callback for new messages in a partition.

    Attributes:
        queue: The row as the watcher knows it.
        partition: Of the queue.
        prompt: Called for stored messages, before a read that keeps the read delay shows them.
        wake: Wakes the watcher.
        position: Ticks; the watcher knows all messages below. This and the following are for the polls.
        asking, looked: True while it is polled, and the time of the last poll.
        due: Time of the next poll, even without a sign of new messages.
    """

    __slots__ = ("asking", "due", "looked", "partition", "position", "prompt", "queue", "wake")

    def __init__(self, queue: Queue, partition: int, wake: Callable[[], None], position: int, *, prompt: bool) -> None:
        self.queue = queue
        self.partition = partition
        self.prompt = prompt
        self.wake = wake
        self.position = position
        self.asking = False
        self.looked = 0
        self.due = math.inf

    @property
    def key(self) -> int:
        """Number of the partition in the whole store."""
        return self.queue.qid << 8 | self.partition


class Watches:
    """All watches of a store. Safe for use by many threads."""

    def __init__(self) -> None:
        self.share: Callable[[int, Collection[int]], None] | None = None
        """Tells other processes what this one stores; see the contract's ``share_news``."""
        self.wanted: Callable[[], None] = _nothing
        """Called when the first watch is added."""
        self._by_key: dict[int, tuple[Watch, ...]] = {}
        self._all: Sequence[Watch] | None = None
        """Cache of all watches."""
        self._lock = threading.Lock()
        self.is_closed = False

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def add(self, *watches: Watch) -> Callable[[], None]:
        """Adds watches; returns a function that removes them."""
        with self._lock:
            self._all = None
            is_first = not self._by_key
            for watch in watches:
                self._by_key[watch.key] = (*self._by_key.get(watch.key, ()), watch)
        if is_first:
            self.wanted()
        if self.is_closed:
            _wake(watches)
        return partial(self._remove, watches)

    def _remove(self, watches: Iterable[Watch]) -> None:
        with self._lock:
            self._all = None
            for watch in watches:
                left = tuple(one for one in self._by_key.get(watch.key, ()) if one is not watch)
                if left:
                    self._by_key[watch.key] = left
                else:
                    self._by_key.pop(watch.key, None)

    def of(self, key: int) -> tuple[Watch, ...]:
        return self._by_key.get(key, ())

    def all(self) -> Sequence[Watch]:
        with self._lock:
            if self._all is None:
                self._all = [watch for some in self._by_key.values() for watch in some]
            return self._all

    def wrote(self, keys: Iterable[int]) -> None:
        """Wakes the watchers of partitions with new messages."""
        for key in keys:
            _wake(self.of(key))

    def close(self) -> None:
        """Wakes all watchers, also later ones, which then find that the store is closed."""
        self.is_closed = True
        _wake(self.all())


def _nothing() -> None: ...


def _wake(watches: Iterable[Watch]) -> None:
    for watch in watches:
        watch.wake()
