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
"""Seconds from the end of a poll to the next, which leaves time for the poll itself."""


class Watch:
    """A callback for new messages in a partition.

    Attributes:
        queue: The row as the watcher knows it.
        partition: Of the queue.
        prompt: Called for stored messages, before a read that keeps the read delay shows them.
        wake: Wakes the watcher.
        position: Ticks; the watcher knows all messages below. Only the polls use it.
        asking, looked: Whether it is being polled, and when the last poll was. Only the polls use them.
        due: When it is to be polled whatever is known of new messages. Only the polls use it.
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
        """The partition in the whole store."""
        return self.queue.qid << 8 | self.partition


class Watches:
    """All watches of a store. Safe for use by many threads.

    Args:
        look: Polls for new messages, and wakes the watchers of their partitions. It runs in a thread of its own, again
            and again while there are watches or :meth:`poll_once` was called.
        glance: Called by this thread in between, whenever :meth:`hurry` was called or as many seconds have passed as
            it said the last time.
    """

    def __init__(self, look: Callable[[Sequence[Watch]], None], glance: Callable[[], float] | None = None) -> None:
        self._look = look
        self._glance = glance or _never
        self._hurried = threading.Event()
        self.share: Callable[[int, Collection[int]], None] | None = None
        """Passes on to other processes what this one stores; see the contract's ``share_news``."""
        self.wanted: Callable[[], None] = _nothing
        """Called when there is a watch after there was none."""
        self._by_key: dict[int, tuple[Watch, ...]] = {}
        self._all: Sequence[Watch] | None = None
        """All of them, as long as none comes or goes."""
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._wanted = False
        """One more poll is."""
        self._thread: threading.Thread | None = None

    def __bool__(self) -> bool:
        """Whether there are any watches."""
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
        """Returns the watches of a partition."""
        return self._by_key.get(key, ())

    def poll_once(self) -> None:
        """Has ``look`` called once more although there may be no watches."""
        if not self._wanted:
            with self._changed:
                self._wanted = True
                self._start()

    def hurry(self) -> None:
        """Has ``glance`` called now, unless ``look`` is next."""
        self._hurried.set()

    def wrote(self, keys: Iterable[int]) -> None:
        """Wakes the watchers of partitions in which readers find something new."""
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
        """Returns all watches."""
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
        """Lets the time until the next look pass, with glances in it; returns whether there is none any more."""
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
    """Nothing is to be done in between."""
    return math.inf


def _nothing() -> None:
    """No other process wants to know."""


def _wake(watches: Iterable[Watch]) -> None:
    for watch in watches:
        watch.wake()
