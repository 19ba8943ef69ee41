"""Waiting for messages without a thread per waiting request.

Requests that wait for the same :class:`WakeSource` and partition of a queue share one watch (:class:`Watchers`). Each
request is a :class:`Waiter`: it subscribes, then attempts its read or claim. If that returns no messages, the waiter is
woken when another attempt may succeed.

A new message wakes all waiting reads, because each can return it. It wakes only one waiting claim, because only one
can get it. If that claim gets messages, there may be more, so two other claims are woken; if it gets none, no other is
woken. So one message costs few attempts, however many claims wait for it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from queuey.model.messages import Queue

MAX_WATCHED_PARTITIONS = 8
"""Max partitions of a queue that a waiter watches individually; with more, any partition of the queue wakes it."""


class WakeSource(NamedTuple):
    """Wakes waiting requests of one kind.

    Attributes:
        watch: Calls a function, from any thread, whenever a partition of a queue may have messages. Returns a
            function that ends the watch. The called function must be quick and not raise.
        for_all: True if it wakes all waiting requests, False if one at a time.
    """

    watch: Callable[[Queue, int, Callable[[], None]], Callable[[], None]]
    for_all: bool


Key = tuple[Any, ...]
"""Queue (qid), version of its row, partitions, and wake source."""
Subscription = tuple[Queue, Sequence[int], WakeSource]


class _SharedWatch:
    """A watch, and the requests that wait for it, in the order in which they are woken."""

    __slots__ = ("_is_wake_scheduled", "_watchers", "for_all", "qid", "stops", "waiters")

    def __init__(self, watchers: Watchers, qid: int, *, for_all: bool) -> None:
        self.qid = qid
        self.stops: tuple[Callable[[], None], ...] = ()
        self.waiters: dict[Waiter, None] = {}
        self.for_all = for_all
        self._is_wake_scheduled = False
        self._watchers = watchers

    def wake(self) -> None:
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            self._watchers.schedule(self._wake)

    def _wake(self) -> None:
        self._is_wake_scheduled = False
        self._watchers.wake_waiters(self, 1)


class Watchers:
    """Shares the watches of waiting requests. Safe for use by many threads.

    Attributes:
        schedule: Makes a call that wakes waiters.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._shared: dict[Key, _SharedWatch] = {}
        # Of watches that wake one waiter at a time: waiters woken that have not begun an attempt, and those that have.
        self._called: set[tuple[_SharedWatch, Waiter]] = set()
        self._trying: set[tuple[_SharedWatch, Waiter]] = set()
        self.schedule: Callable[..., None] = _call_at_once

    def adopt(self, call_in_loop: Callable[..., None]) -> None:
        """Wakes waiters by calls in a server's event loop, so that waking many does not block the store's threads."""
        self.schedule = call_in_loop

    def __len__(self) -> int:
        """Returns the number of waiting requests, each counted once per partition that it waits on."""
        with self._lock:
            return sum(len(shared.waiters) for shared in self._shared.values())

    def count(self, *, for_all: bool) -> int:
        with self._lock:
            waiter_lists = [shared.waiters for shared in self._shared.values() if shared.for_all is for_all]
            return len({waiter for waiters in waiter_lists for waiter in waiters})

    def subscribe(self, waiter: Waiter, queues: Mapping[Key, Queue]) -> None:
        """Replaces the subscriptions of a waiter that begins an attempt. A closed waiter gets no subscriptions.

        If the store refuses a new watch, the waiter keeps its old subscriptions, and the new ones before the refusal.

        Args:
            waiter: The waiter.
            queues: The queue of each key.
        """
        ended: list[Callable[[], None]] = []
        with self._lock:
            subscribed = dict.fromkeys(waiter.keys)
            keys = () if waiter.closed else tuple(queues)
            try:
                for key in keys:
                    if key not in subscribed:
                        self._add_waiter(key, waiter, queues[key])
                        subscribed[key] = None
            except BaseException:
                waiter.keys = tuple(subscribed)
                raise
            waiter.keys = keys
            for key in subscribed.keys() - set(keys):
                ended += self._remove_waiter(key, waiter)
            for key in waiter.keys if self._called else ():
                entry = (self._shared[key], waiter)
                if entry in self._called:
                    self._called.remove(entry)
                    self._trying.add(entry)
        for call in ended:
            call()

    def _add_waiter(self, key: Key, waiter: Waiter, queue: Queue) -> None:
        *_, partitions, source = key
        shared = self._shared.get(key)
        if shared is None:
            shared = _SharedWatch(self, queue.qid, for_all=source.for_all)
            shared.stops = tuple(source.watch(queue, number, shared.wake) for number in partitions)
            self._shared[key] = shared  # After the watches, which may raise.
        shared.waiters[waiter] = None

    def _remove_waiter(self, key: Key, waiter: Waiter) -> Sequence[Callable[[], None]]:
        """Removes a waiter. Returns calls that must be made without the lock.

        If the waiter was woken and has not finished its attempt, other waiters are woken instead.
        """
        shared = self._shared[key]
        del shared.waiters[waiter]
        entry = (shared, waiter)
        wake_others = entry in self._called or entry in self._trying
        self._called.discard(entry)
        self._trying.discard(entry)
        if shared.waiters:
            return (partial(self.schedule, self.wake_waiters, shared, 2),) if wake_others else ()
        del self._shared[key]
        # The stops refer back to the watch; without that cycle it is freed at once.
        stops, shared.stops = shared.stops, ()
        return stops

    def wake_waiters(self, shared: _SharedWatch, count: int) -> None:
        """Wakes up to ``count`` waiters of a watch, or all if it is ``for_all``. :attr:`schedule` calls it.

        Without ``for_all``, looks only at the first ``count`` in line, skips those already woken that have not begun an
        attempt, and moves the others to the end.
        """
        with self._lock:
            if shared.for_all:
                called = list(shared.waiters)
            else:
                called = [w for w in islice(shared.waiters, count) if (shared, w) not in self._called]
                for waiter in called:
                    self._called.add((shared, waiter))
                    shared.waiters[waiter] = shared.waiters.pop(waiter)
        for waiter in called:
            waiter.wake(shared.qid)

    def attempt_failed(self, waiter: Waiter) -> None:
        with self._lock:
            for key in waiter.keys if self._trying else ():
                self._trying.discard((self._shared[key], waiter))


class Waiter(ABC):
    """A request that waits for messages. Used by one thread at a time, except for :meth:`wake` and :meth:`close`.

    Attributes:
        keys: Keys of its subscriptions.
        closed: True if it no longer waits, even if an attempt is still running in a thread.
    """

    __slots__ = ("_watchers", "_woken_by", "closed", "keys")

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self.keys: tuple[Key, ...] = ()
        self.closed = False
        self._woken_by: set[int] | tuple[()] | None = None

    @abstractmethod
    def wake(self, qid: int | None = None) -> None:
        """Called when another attempt may succeed, from any thread or by way of ``Watchers.schedule``.

        ``qid`` is the queue that may have messages; None means any.
        """

    def record_wake(self, qid: int | None) -> None:
        """Adds a queue to those of :meth:`pop_woken`; None, for any queue, outlasts later ones."""
        if qid is None:
            self._woken_by = None
        elif isinstance(self._woken_by, set):
            self._woken_by.add(qid)
        elif self._woken_by is not None:
            self._woken_by = {qid}

    @property
    def may_be_any(self) -> bool:
        return self._woken_by is None

    def pop_woken(self) -> frozenset[int] | None:
        """Returns the queues (qid) that may have new messages since the last call; None means any."""
        woken, self._woken_by = self._woken_by, ()  # Thousands wait: an empty set for each would cost memory.
        return None if woken is None else frozenset(woken)

    def subscribe(self, subscriptions: Iterable[Subscription]) -> None:
        """Replaces this waiter's subscriptions. Must be called before each attempt."""
        self._watchers.subscribe(
            self, {key: queue for queue, numbers, source in subscriptions for key in _make_keys(queue, numbers, source)}
        )

    def attempt_failed(self) -> None:
        self._watchers.attempt_failed(self)

    def close(self) -> None:
        self.closed = True
        self.subscribe(())


def _make_keys(queue: Queue, numbers: Sequence[int], source: WakeSource) -> list[Key]:
    partitions = [number for number in numbers if number <= queue.partitions]
    row = (queue.qid, queue.version)
    if len(partitions) > MAX_WATCHED_PARTITIONS:
        return [(*row, range(1, queue.partitions + 1), source)]
    return [(*row, (number,), source) for number in partitions]


def _call_at_once(call: Callable[..., None], *arguments: object) -> None:
    call(*arguments)
