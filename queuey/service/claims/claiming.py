"""A claim over several partitions, one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from queuey.claims import ClaimReceipt, Poll
from queuey.errors import Outcome, TooManyClaims
from queuey.messages import Message, Queue
from queuey.service.claims.log_cache import LogCache
from queuey.service.claims.requests import PollRequest
from queuey.service.claims.runtime import Done
from queuey.service.claims.turns import Turns


class HandedOut(msgspec.Struct, gc=False):
    """A message that was given to a caller.

    Attributes:
        receipt: Names this delivery.
        deliveries: How many there were, this one included.
        expires: Seconds since 1970; 0: nothing was claimed.
    """

    message: Message
    receipt: ClaimReceipt
    deliveries: int
    expires: float


class ClaimSearch:
    """Asks partitions for messages until one has some. The result is a list of :class:`HandedOut`.

    Args:
        logs: Of this process.
        turns: Notes partitions that have nothing.
        queue: The row.
        partitions: In the order in which they are asked.
        poll: What is wanted.
        done: Called at the end.
    """

    def __init__(
        self, logs: LogCache, turns: Turns, queue: Queue, partitions: Sequence[int], poll: Poll, done: Done
    ) -> None:
        self._logs = logs
        self._turns = turns
        self._queue = queue
        self._partitions = partitions
        self._poll = poll
        self._done = done
        self._lock = threading.Lock()
        self._gone = False
        self._asked: PollRequest | None = None
        self._full: TooManyClaims | None = None
        self._at = 0

    def start(self) -> Callable[[], Outcome]:
        """Begins; returns what gives it up."""
        self._ask()
        return self.give_up

    def give_up(self) -> Outcome:
        """Ends the claim without calling back; messages that were claimed for the caller are released."""
        with self._lock:
            self._gone = True
            asked = self._asked
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
            self._done(None, error)
            return
        if given:
            found = [
                HandedOut(message, ClaimReceipt(number, message.ticks, message.low, entry), deliveries, expires / 1000)
                for message, deliveries, entry, expires in given
            ]
            self._done(found, None)
            return
        self._turns.passed(self._queue.qid, number)
        self._at += 1
        if self._at < len(self._partitions):
            self._ask()
        elif self._full is not None:
            self._done(None, self._full)
        else:
            self._done([], None)
