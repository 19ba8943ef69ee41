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
from queuey.service.claims.requests import PollRequest, SettleRequest, too_late
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
    """Asks partitions for messages until one has some, or enough. The result is a list of :class:`HandedOut`.

    Args:
        logs: Of this process.
        turns: Notes partitions that have nothing.
        queue: The row.
        partitions: In the order in which they are asked.
        poll: What is wanted.
        done: Called at the end.
        gather: Go on to further partitions until there are as many messages as wanted. Says, given when the first
            partition that had some was asked (boot time), whether its claims are over before the caller has the answer.
            None: do not go on.
    """

    def __init__(
        self,
        logs: LogCache,
        turns: Turns,
        queue: Queue,
        partitions: Sequence[int],
        poll: Poll,
        done: Done,
        *,
        gather: Callable[[float], bool] | None = None,
    ) -> None:
        self._logs = logs
        self._turns = turns
        self._queue = queue
        self._partitions = partitions
        self._poll = poll
        self._done = done
        self._is_late = gather
        self._found: list[HandedOut] = []
        self._lock = threading.Lock()
        self._gone = False
        self._asked: PollRequest | None = None
        self._full: TooManyClaims | None = None
        self._at = 0
        self._began = 0.0
        self._went_on = False

    def start(self) -> Callable[[], Outcome]:
        """Begins; returns what gives it up."""
        self._ask()
        return self.give_up

    def give_up(self) -> Outcome:
        """Ends the claim without calling back; messages that were claimed for the caller are released."""
        with self._lock:
            self._gone = True
            asked, found = self._asked, self._found
            self._found = []
        self._release(found)
        return "none" if asked is None else asked.give_up()

    def _release(self, found: Sequence[HandedOut]) -> None:
        """Ends claims that nobody waits for any more. If that fails they end by themselves."""
        if not self._poll.ttl:
            return
        for number in {each.receipt.partition for each in found}:
            receipts = [each.receipt for each in found if each.receipt.partition == number]
            request = SettleRequest(self._queue, lambda _value, _error: None, "release", receipts)
            self._logs.add((self._queue.qid, number), request)

    def _ask(self) -> None:
        number = self._partitions[self._at]
        left = self._poll.max_bytes - sum(len(each.message.body) for each in self._found)
        poll = Poll(self._poll.limit - len(self._found), self._poll.ttl, left)
        self._went_on = bool(self._found)
        with self._lock:
            if self._gone:
                return
            request = self._asked = PollRequest(self._queue, partial(self._told, number), poll)
        self._logs.add((self._queue.qid, number), request)

    def _told(self, number: int, given: list[tuple[Message, int, int, int]] | None, error: Exception | None) -> None:
        if isinstance(error, TooManyClaims):
            self._full = error
        elif error is not None:
            self._end(error)
            return
        if given:
            found = [
                HandedOut(message, ClaimReceipt(number, message.ticks, message.low, entry), deliveries, expires / 1000)
                for message, deliveries, entry, expires in given
            ]
            with self._lock:
                gone = self._gone
                if not self._found and self._asked is not None:
                    self._began = self._asked.asked
                self._found += found
            if gone:
                self._release(found)
                return
            if self._has_enough():
                self._end()
                return
        else:
            self._turns.passed(self._queue.qid, number)
        self._at += 1
        if self._at < len(self._partitions):
            self._ask()
        else:
            self._end(self._full)

    def _has_enough(self) -> bool:
        """Returns whether no further partition is to be asked."""
        if self._is_late is None or len(self._found) >= self._poll.limit:
            return True
        return sum(len(each.message.body) for each in self._found) >= self._poll.max_bytes

    def _end(self, error: Exception | None = None) -> None:
        """Gives the caller what was found; the error if that is nothing."""
        if self._went_on and self._poll.ttl and self._is_late is not None and self._is_late(self._began):
            self._release(self._found)
            self._done(None, too_late())
        elif self._found or error is None:
            self._done(self._found, None)
        else:
            self._done(None, error)
