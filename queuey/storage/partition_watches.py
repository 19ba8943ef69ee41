"""Watches of partitions for new messages.

Messages written by this process wake the watches at once (:meth:`Watches.notify`). To find messages of other processes
and messages that become due, each store polls in its own way while there are watches.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from queuey.model.messages import Queue

Wake = Callable[[], None]
"""Called when a partition has new messages."""
POLL_INTERVAL = 0.2
"""Interval in seconds from the end of a poll to the next poll."""


class Watch:
    """A callback for new messages in a partition.

    Attributes:
        queue: The queue's row at the time of the call.
        partition: Partition of the queue.
        prompt: True if ``wake`` is called when messages are stored, before reads with the read delay show them.
        wake: The callback.
        position: Messages below this need no further call (ticks). This and the following attributes are for polls.
        asking, polled: True while a poll is running, and the number of the last poll.
        due: Time of the next poll even without a hint of new messages.
    """

    __slots__ = ("asking", "due", "partition", "polled", "position", "prompt", "queue", "wake")

    def __init__(self, queue: Queue, partition: int, wake: Wake, position: int, *, prompt: bool) -> None:
        self.queue = queue
        self.partition = partition
        self.prompt = prompt
        self.wake = wake
        self.position = position
        self.asking = False
        self.polled = 0
        self.due = math.inf

    @property
    def key(self) -> int:
        return self.queue.qid << 8 | self.partition


class Watches:
    """All watches of a store. Thread-safe."""

    def __init__(self) -> None:
        self.share: Callable[[int, Collection[int]], None] | None = None
        """Notifies other processes of stored messages; see the contract's ``share_news``."""
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
        """Adds watches and returns a function that removes them. If closed, wakes them at once.

        Calls ``wanted`` if there were no watches before.
        """
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
                others = tuple(other for other in self._by_key.get(watch.key, ()) if other is not watch)
                if others:
                    self._by_key[watch.key] = others
                else:
                    self._by_key.pop(watch.key, None)

    def find(self, key: int) -> tuple[Watch, ...]:
        return self._by_key.get(key, ())

    def all(self) -> Sequence[Watch]:
        """Returns all watches: the same object until watches are added or removed."""
        with self._lock:
            if self._all is None:
                self._all = [watch for watches in self._by_key.values() for watch in watches]
            return self._all

    def notify(self, keys: Iterable[int]) -> None:
        for key in keys:
            _wake(self.find(key))

    def close(self) -> None:
        """Wakes all watches, and from now on each new one at once, so that their next read finds the store closed."""
        self.is_closed = True
        _wake(self.all())


def _nothing() -> None: ...


def _wake(watches: Iterable[Watch]) -> None:
    for watch in watches:
        watch.wake()
