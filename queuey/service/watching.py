"""Waiting for messages without a thread per waiting request.

Requests that wait for the same trigger of a queue partition share one watch (:class:`Watchers`). Each is a
:class:`Waiter`: it subscribes and tries. If that gave nothing, it is woken when another try may give something.

A new message wakes all waiting reads: each of them can read it. It wakes one waiting claim: only one can have it. If
that claim gets something there may be more, so two others are woken; if it gets nothing, none is. So one message
costs few tries, however many claims wait for it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from queuey.messages import Queue

FEW = 8
"""Max partitions of a queue that a waiter watches one by one; with more, all partitions wake it."""


class WakeSource(NamedTuple):
    """Wakes waiting requests of one kind.

    Attributes:
        watch: Calls a function, from any thread, whenever a queue's partition may have messages; returns a
            function that ends that. The first function is quick and does not raise.
        for_all: It wakes all waiting requests, not one of them.
    """

    watch: Callable[[Queue, int, Callable[[], None]], Callable[[], None]]
    for_all: bool


Key = tuple[Any, ...]
"""Queue and version of its row, partitions, and the trigger."""
Wanted = tuple[Queue, Sequence[int], WakeSource]


class _Shared:
    """A trigger and the requests that wait for it, in the order in which they are woken."""

    __slots__ = ("_told", "_watchers", "for_all", "qid", "stops", "waiters")

    def __init__(self, watchers: Watchers, qid: int, *, for_all: bool) -> None:
        self.qid = qid
        self.stops: tuple[Callable[[], None], ...] = ()
        self.waiters: dict[Waiter, None] = {}
        self.for_all = for_all
        self._told = False
        self._watchers = watchers

    def wake(self) -> None:
        """Called for new messages, in any thread."""
        if not self._told:
            self._told = True
            self._watchers.tell(self._wake)

    def _wake(self) -> None:
        self._told = False
        self._watchers.call(self, 1)


class Watchers:
    """Shares the watches of waiting requests. Safe for use by many threads.

    Attributes:
        tell: Makes a call that wakes waiters, however many they are. An event loop replaces it with its own, so that
            the calls do not hold up the store's threads.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._shared: dict[Key, _Shared] = {}
        # For triggers that wake one waiter: those that were woken but have not tried yet, and those that try now.
        self._called: set[tuple[_Shared, Waiter]] = set()
        self._trying: set[tuple[_Shared, Waiter]] = set()
        self.tell: Callable[..., None] = _call

    def __len__(self) -> int:
        """Number of waiting requests, each counted once per partition that it waits on."""
        with self._lock:
            return sum(len(shared.waiters) for shared in self._shared.values())

    def count(self, *, for_all: bool) -> int:
        with self._lock:
            some = [shared.waiters for shared in self._shared.values() if shared.for_all is for_all]
            return len({waiter for waiters in some for waiter in waiters})

    def subscribe(self, waiter: Waiter, queues: Mapping[Key, Queue]) -> None:
        """Replaces what a waiter waits for; it begins a try. One that is closed waits for nothing.

        Args:
            waiter: The waiter.
            queues: For each key its queue.
        """
        ended: list[Callable[[], None]] = []
        with self._lock:
            before = dict.fromkeys(waiter.keys)
            waiter.keys = () if waiter.closed else tuple(queues)
            for key in waiter.keys:
                if key not in before:
                    self._add(key, waiter, queues[key])
            now = dict.fromkeys(waiter.keys)
            for key in before:
                if key not in now:
                    ended += self._remove(key, waiter)
            for key in waiter.keys if self._called else ():
                mine = (self._shared[key], waiter)
                if mine in self._called:
                    self._called.remove(mine)
                    self._trying.add(mine)
        for call in ended:
            call()

    def _add(self, key: Key, waiter: Waiter, queue: Queue) -> None:
        *_, partitions, trigger = key
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = _Shared(self, queue.qid, for_all=trigger.for_all)
            shared.stops = tuple(trigger.watch(queue, number, shared.wake) for number in partitions)
        shared.waiters[waiter] = None

    def _remove(self, key: Key, waiter: Waiter) -> Sequence[Callable[[], None]]:
        """Removes a waiter; returns what is to be called without the lock.

        If it was woken and did not finish its try, others are woken for it.
        """
        shared = self._shared[key]
        del shared.waiters[waiter]
        mine = (shared, waiter)
        others = mine in self._called or mine in self._trying
        self._called.discard(mine)
        self._trying.discard(mine)
        if shared.waiters:
            return (partial(self.tell, self.call, shared, 2),) if others else ()
        del self._shared[key]
        # They lead back to this trigger, which would not be freed before a collector of cycles comes.
        stops, shared.stops = shared.stops, ()
        return stops

    def call(self, shared: _Shared, count: int) -> None:
        """Wakes some waiters of one trigger. Runs where :attr:`tell` makes its calls."""
        with self._lock:
            if shared.for_all:
                called = list(shared.waiters)
            else:
                called = [one for one in islice(shared.waiters, count) if (shared, one) not in self._called]
                for one in called:
                    self._called.add((shared, one))
                    shared.waiters[one] = shared.waiters.pop(one)
        for one in called:
            one.wake(shared.qid)

    def tried(self, waiter: Waiter) -> None:
        """Records that a try gave nothing, so no other waiter needs to try."""
        with self._lock:
            for key in waiter.keys if self._trying else ():
                self._trying.discard((self._shared[key], waiter))


class Waiter(ABC):
    """A request that waits for messages. Used by one thread at a time, except for :meth:`wake` and :meth:`close`.

    Attributes:
        keys: What it waits for.
        closed: It waits for nothing any more, also if a try of it is still under way in a thread.
    """

    __slots__ = ("_watchers", "_woken_by", "closed", "keys")

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self.keys: tuple[Key, ...] = ()
        self.closed = False
        self._woken_by: set[int] | tuple[()] | None = None

    @abstractmethod
    def wake(self, qid: int | None = None) -> None:
        """Called when another try may succeed, in any thread, or where ``Watchers.tell`` makes its calls.

        ``qid`` is the queue that may have news; None: any.
        """

    def note_woken(self, qid: int | None) -> None:
        if qid is None:
            self._woken_by = None
        elif isinstance(self._woken_by, set):
            self._woken_by.add(qid)
        elif self._woken_by is not None:
            self._woken_by = {qid}

    @property
    def may_be_any(self) -> bool:
        """True if any queue may have news, or something else may have changed."""
        return self._woken_by is None

    def take_woken(self) -> frozenset[int] | None:
        """Returns the queues (qid) that may have news since the last call; None: any."""
        woken, self._woken_by = self._woken_by, ()  # Thousands wait, so nothing has no set.
        return None if woken is None else frozenset(woken)

    def subscribe(self, wanted: Iterable[Wanted]) -> None:
        """Replaces this waiter's subscriptions; called before each try."""
        self._watchers.subscribe(
            self, {key: each for each, numbers, trigger in wanted for key in _keys_of(each, numbers, trigger)}
        )

    def found_nothing(self) -> None:
        """Ends a try without a result."""
        self._watchers.tried(self)

    def close(self) -> None:
        self.closed = True
        self.subscribe(())


def _keys_of(queue: Queue, numbers: Sequence[int], trigger: WakeSource) -> list[Key]:
    there = [number for number in numbers if number <= queue.partitions]
    row = (queue.qid, queue.version)
    if len(there) > FEW:
        return [(*row, range(1, queue.partitions + 1), trigger)]
    return [(*row, (number,), trigger) for number in there]


def _call(call: Callable[..., None], *arguments: object) -> None:
    call(*arguments)
