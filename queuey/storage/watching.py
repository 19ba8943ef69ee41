"""Watches of partitions for new messages, and the store's one thread that polls for those of other processes.

Messages that this process writes wake the watchers at once (:meth:`Watches.wrote`). The thread finds messages of other
processes and those that come due: it calls the store's ``look`` with all watches, as long as there are any, and between
two of these calls its ``glance``.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TypeVar

from queuey.errors import QueueyError, StoreClosed
from queuey.messages import Queue

log = logging.getLogger(__name__)
T = TypeVar("T")

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
    """All watches of a store. Safe for use by many threads.

    Args:
        look: Polls for new messages, and wakes the watchers of their partitions. It runs in a thread of its own, again
            and again while there are watches or :meth:`poll_once` was called.
        glance: Called by this thread in between, at each :meth:`hurry` and after the seconds that it returned last.
    """

    def __init__(self, look: Callable[[Sequence[Watch]], None], glance: Callable[[], float] | None = None) -> None:
        self._look = look
        self._glance = glance or _never
        self._hurried = threading.Event()
        self.share: Callable[[int, Collection[int]], None] | None = None
        """Tells other processes what this one stores; see the contract's ``share_news``."""
        self.wanted: Callable[[], None] = _nothing
        """Called when the first watch is added."""
        self._by_key: dict[int, tuple[Watch, ...]] = {}
        self._all: Sequence[Watch] | None = None
        """Cache of all watches."""
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._wanted = False
        """True if one more poll was asked for."""
        self._thread: threading.Thread | None = None

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def add(self, *watches: Watch) -> Callable[[], None]:
        """Adds watches; returns a function that removes them."""
        with self._changed:
            self._all = None
            is_first = not self._by_key
            for watch in watches:
                self._by_key[watch.key] = (*self._by_key.get(watch.key, ()), watch)
            self._start()
        if is_first:
            self.wanted()
        if self._closed.is_set():
            _wake(watches)
        return partial(self._remove, watches)

    def _start(self) -> None:
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name="queuey-watch", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _remove(self, watches: Iterable[Watch]) -> None:
        with self._changed:
            self._all = None
            for watch in watches:
                left = tuple(one for one in self._by_key.get(watch.key, ()) if one is not watch)
                if left:
                    self._by_key[watch.key] = left
                else:
                    self._by_key.pop(watch.key, None)

    def of(self, key: int) -> tuple[Watch, ...]:
        return self._by_key.get(key, ())

    def poll_once(self) -> None:
        """Requests one more ``look``, even without watches."""
        if not self._wanted:
            with self._changed:
                self._wanted = True
                self._start()

    def hurry(self) -> None:
        """Requests a ``glance`` now, unless ``look`` is next."""
        self._hurried.set()

    def wrote(self, keys: Iterable[int]) -> None:
        """Wakes the watchers of partitions with new messages."""
        for key in keys:
            _wake(self.of(key))

    def close(self) -> None:
        """Ends the polls and wakes all watchers, which then find that the store is closed."""
        self._closed.set()
        self._hurried.set()
        with self._changed:
            self._changed.notify()
            watches = self.all()
        _wake(watches)

    def all(self) -> Sequence[Watch]:
        found = self._all
        if found is None:
            found = self._all = [watch for some in self._by_key.values() for watch in some]
        return found

    def _run(self) -> None:
        while not self._pause():
            with self._changed:
                while not (self._by_key or self._wanted or self._closed.is_set()):
                    self._changed.wait()
                self._wanted = False
                watches = self.all()
            self._check(partial(self._look, watches))

    def _pause(self) -> bool:
        """Waits until the next look, with glances in between; returns whether the watches are closed."""
        until = time.monotonic() + EVERY
        while (left := until - time.monotonic()) > 0:
            self._hurried.clear()
            if self._closed.is_set():
                break
            self._hurried.wait(min(left, self._check(self._glance) or math.inf))
        return self._closed.is_set()

    def _check(self, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except StoreClosed:
            self._closed.set()
        except QueueyError as error:
            # A reader gets this error, too.
            log.debug("Cannot check for new messages: %s", error)
        except Exception:
            log.exception("Checking for new messages failed.")
        return None


def _never() -> float:
    return math.inf


def _nothing() -> None: ...


def _wake(watches: Iterable[Watch]) -> None:
    for watch in watches:
        watch.wake()
