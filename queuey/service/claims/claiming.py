"""A claim over several partitions, one after another, with waiting for messages to come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from queuey.claims import Poll, Receipt
from queuey.errors import Outcome, TooManyClaims
from queuey.messages import Message, Queue
from queuey.service.claims.log_cache import LogCache
from queuey.service.claims.requests import PollRequest
from queuey.service.claims.runtime import Done, Runtime
from queuey.service.watching import Waiter, Watchers

TICK = 0.5
"""Seconds between looks of those who wait, at claims that have ended; of new messages they are told."""


class Claimed(msgspec.Struct, gc=False):
    """A message that was given to a caller.

    Attributes:
        receipt: Names this delivery.
        deliveries: How many there were, this one included.
        expires: Seconds since 1970; 0: nothing was claimed.
    """

    message: Message
    receipt: Receipt
    deliveries: int
    expires: float


class Means(NamedTuple):
    """What every claim of a process needs.

    Attributes:
        logs: Of this process.
        watchers: Tell of new messages.
        runtime: Threads, timers, clocks.
        stopping: Whether the service ends, so that nobody waits any more.
    """

    logs: LogCache
    watchers: Watchers
    runtime: Runtime
    stopping: Callable[[], bool]


class Claiming(Waiter):
    """Asks partitions for messages until one has some, or the time is over. The result is a list of :class:`Claimed`.

    Args:
        means: Of this process.
        queue: The row.
        partitions: In the order in which they are asked.
        poll: What is wanted.
        wait: Seconds.
        done: Told of the end.
    """

    def __init__(
        self, means: Means, queue: Queue, partitions: Sequence[int], poll: Poll, *, wait: float, done: Done
    ) -> None:
        super().__init__(means.watchers)
        self._logs = means.logs
        self._runtime = means.runtime
        self._stopping = means.stopping
        self._queue = queue
        self._partitions = partitions
        self._poll = poll
        self._until = means.runtime.boottime() + wait
        self._done = done
        self._lock = threading.Lock()
        self._gone = False
        self._asked: PollRequest | None = None
        self._full: TooManyClaims | None = None
        self._at = 0
        self._watching = self._idle = self._woken = False
        self._call_off: Callable[[], None] = lambda: None

    def start(self) -> Callable[[], Outcome]:
        """Begins; returns what gives it up."""
        self._ask()
        return self.give_up

    def give_up(self) -> Outcome:
        """Has the caller not be told any more; what was claimed for it is released."""
        with self._lock:
            self._gone = True
            asked = self._asked
        self.expect(())
        return "none" if asked is None else asked.give_up()

    def _ask(self) -> None:
        number = self._partitions[self._at]
        poll = Poll(self._poll.limit, self._poll.ttl, self._poll.max_bytes)
        with self._lock:
            if self._gone:
                return
            request = self._asked = PollRequest(self._queue, partial(self._told, number), poll)
        self._logs.add((self._queue.qid, number), request)

    def _told(self, number: int, given: list[tuple[Message, int, int, int]] | None, error: Exception | None) -> None:
        if isinstance(error, TooManyClaims):
            self._full = error
        elif error is not None:
            self._end(None, error)
            return
        if given:
            found = [
                Claimed(message, Receipt(number, message.ticks, message.low, entry), deliveries, expires / 1000)
                for message, deliveries, entry, expires in given
            ]
            self._end(found, None)
            return
        self._at += 1
        if self._at < len(self._partitions):
            self._ask()
            return
        self._at = 0
        if self._until > self._runtime.boottime() and not self._stopping():
            self._full = None
            self._wait()
        elif self._full is not None:
            self._end(None, self._full)
        else:
            self._end([], None)

    def _wait(self) -> None:
        """Asks again when there may be something."""
        if not self._watching:
            # What came since the partitions were asked nobody has told of.
            self._watching = self._woken = True
            self.expect([(self._queue, self._partitions, False)])
        with self._lock:
            again, self._woken = self._woken, False
            self._idle = not again
        if again:
            self._ask()
        else:
            left = max(0.0, self._until - self._runtime.boottime())
            self._call_off = self._runtime.later(min(TICK, left), self._look)

    def wake(self) -> None:
        """See the base class."""
        with self._lock:
            self._woken = True
            if not self._idle:
                return
        self._runtime.submit(self._look)

    def _look(self) -> None:
        with self._lock:
            if not self._idle:
                return
            self._idle = self._woken = False
        self._call_off()
        self._ask()

    def _end(self, found: list[Claimed] | None, error: Exception | None) -> None:
        if self._watching:
            self.expect(())
        self._done(found, error)
