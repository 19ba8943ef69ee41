"""What is asked of several partitions of a queue: a claim, of one after another; anything else, of all at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from queuey.claims import ClaimReceipt, Poll, Settlement
from queuey.errors import Outcome, TooManyClaims, in_doubt
from queuey.messages import Message, Queue, bytes_of
from queuey.service.claims.log_cache import LogCache
from queuey.service.claims.requests import ClaimUndecided, PollRequest, Request, giving_back, too_late
from queuey.service.claims.runtime import Done
from queuey.service.claims.turns import Turns

Add = Callable[[int, Request], None]
"""Passes a request to the log of a partition."""


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


class JoinedAck(msgspec.Struct):
    """What a claim acknowledges. All tries of a request share one, so that it is sent once.

    Attributes:
        receipts: Of the queue that is claimed from.
        texts: The same as the caller wrote them, for its answer.
        settled: What became of them, in the same order; None: that is not known yet.
        in_doubt: Some may have been acknowledged, so an error of the request has the outcome ``unknown``.
    """

    receipts: Sequence[ClaimReceipt] = ()
    texts: Sequence[str] = ()
    settled: list[Settlement] | None = None
    in_doubt: bool = False

    @property
    def pending(self) -> bool:
        """Whether there is something to acknowledge."""
        return self.settled is None and bool(self.receipts)


class ClaimSearch:
    """Asks partitions for messages until one has some, or enough. The result is a list of :class:`HandedOut`.

    Args:
        logs: Of this process.
        turns: Notes partitions that have nothing.
        queue: The row.
        partitions: In the order in which they are asked.
        poll: What is wanted.
        done: Called at the end, and not before :meth:`acknowledged`.
        is_late: Says, given when the first partition that had messages was asked (boot time), whether its claims are
            over before the caller has the answer.
        ack: What is acknowledged beside.
        gather: Go on to further partitions until there are as many messages as wanted.
    """

    def __init__(  # noqa: PLR0913 - what a claim needs, and what it was asked for
        self,
        logs: LogCache,
        turns: Turns,
        queue: Queue,
        partitions: Sequence[int],
        poll: Poll,
        done: Done,
        is_late: Callable[[float], bool],
        ack: JoinedAck,
        *,
        gather: bool,
    ) -> None:
        self._logs = logs
        self._turns = turns
        self._queue = queue
        self._partitions = partitions
        self._poll = poll
        self._done = done
        self._is_late = is_late
        self._gather = gather
        self._ack = ack
        self._ended = False
        self._error: Exception | None = None
        self._found: list[HandedOut] = []
        self._weight = 0
        self._lock = threading.Lock()
        self._gone = False
        self._asked: PollRequest | None = None
        self._refused: Exception | None = None
        self._at = 0
        self._began = 0.0
        self._went_on = False
        """It went on after it had found messages, so their claims may be over soon."""

    def start(self, *beside: Request) -> Callable[[], Outcome]:
        """Begins; returns what gives it up. The first partition gets other requests as well, for the same entry."""
        self._ask(*beside)
        return self.give_up

    def acknowledged(self, settled: list[Settlement] | None, error: Exception | None) -> None:
        """Takes in what became of the receipts; if that is an error, what was claimed is released."""
        ack = self._ack
        # Receipts beside one that was refused may have been acknowledged.
        ack.in_doubt = ack.in_doubt or error is None or isinstance(error, TooManyClaims)
        if error is not None:
            self.give_up()
            self._done(None, error)
            return
        with self._lock:
            ack.settled = settled
            ended = self._ended
        if ended:
            self._report()

    def give_up(self) -> Outcome:
        """Ends the claim without calling back; messages that were claimed for the caller are released."""
        with self._lock:
            self._gone = True
            asked, found = self._asked, self._found
            self._found = []
        self._release(found)
        outcome: Outcome = "none" if asked is None else asked.give_up()
        return "unknown" if found and self._poll.ttl else outcome

    def _release(self, found: Sequence[HandedOut]) -> None:
        """Ends claims that nobody waits for any more. If that fails they end by themselves."""
        if not self._poll.ttl:
            return
        for number in {each.receipt.partition for each in found}:
            receipts = [each.receipt for each in found if each.receipt.partition == number]
            self._logs.add((self._queue.qid, number), giving_back(self._queue, receipts))

    def _ask(self, *beside: Request) -> None:
        number = self._partitions[self._at]
        poll = Poll(self._poll.limit - len(self._found), self._poll.ttl, self._poll.max_bytes - self._weight)
        self._went_on = bool(self._found)
        with self._lock:
            if self._gone:
                return
            request = self._asked = PollRequest(self._queue, partial(self._told, number), poll)
        self._logs.add((self._queue.qid, number), *beside, request)

    def _told(
        self, number: int, given: list[tuple[Message, int, ClaimReceipt, int]] | None, error: Exception | None
    ) -> None:
        if isinstance(error, TooManyClaims | ClaimUndecided):
            self._refused = error  # of this partition; others may have messages
        elif error is not None:
            self._end(error)
            return
        if given:
            found = [
                HandedOut(message, receipt, deliveries, expires / 1000)
                for message, deliveries, receipt, expires in given
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
            self._end(self._refused)

    def _has_enough(self) -> bool:
        """Returns whether no further partition is to be asked."""
        if not self._gather or len(self._found) >= self._poll.limit:
            return True
        self._weight = bytes_of(each.message for each in self._found)
        return self._weight >= self._poll.max_bytes

    def _end(self, error: Exception | None = None) -> None:
        """Notes the end of the search, and reports it unless receipts are still being acknowledged."""
        with self._lock:
            self._ended, self._error = True, error
            if self._ack.pending:
                self._went_on = True
                return
        self._report()

    def _report(self) -> None:
        """Gives the caller what was found; the error if that is nothing."""
        if self._found and self._went_on and self._poll.ttl and self._is_late(self._began):
            self._release(self._found)
            self._done(None, too_late())
        elif self._found or self._error is None:
            self._done(self._found, None)
        else:
            self._done(None, self._error)


def begin_each(
    add: Add, numbers: Sequence[int], make: Callable[[int, Done], Request], done: Done
) -> Callable[[], Outcome]:
    """Asks the logs of several partitions; reports their results by partition, or the first error."""
    if not numbers:
        done({}, None)
        return lambda: "none"
    lock = threading.Lock()
    found: dict[int, Any] = {}
    errors: list[Exception] = []

    def told(number: int, value: object, error: Exception | None) -> None:
        with lock:
            found[number] = value
            if error is not None:
                errors.append(error)
            last = len(found) == len(numbers)
        if last and errors:
            done(None, _first_error(errors, sent=any(request.sent for _, request in requests)))
        elif last:
            done({number: found[number] for number in numbers}, None)

    requests = [(number, make(number, partial(told, number))) for number in numbers]
    for number, request in requests:
        add(number, request)

    def give_up() -> Outcome:
        outcomes = {request.give_up() for _, request in requests}
        return "unknown" if "unknown" in outcomes else "none"

    return give_up


def begin_after(
    first: Callable[[Done], Callable[[], Outcome]], then: Callable[[], Callable[[], Outcome]], done: Done
) -> Callable[[], Outcome]:
    """Begins something when something else has succeeded, perhaps at once; reports the error if that fails."""
    lock = threading.RLock()
    given_up: list[Callable[[], Outcome]] = []
    gone = False

    def told(_value: object, error: Exception | None) -> None:
        if error is not None:
            done(None, error)
            return
        with lock:
            if not gone:
                given_up.append(then())

    with lock:
        given_up.insert(0, first(told))

    def give_up() -> Outcome:
        nonlocal gone
        with lock:
            gone = True
            return given_up[-1]()

    return give_up


def _first_error(errors: Sequence[Exception], *, sent: bool) -> Exception:
    """Returns the error for a caller if some of several partitions failed; ``sent``: others may have changed."""
    return in_doubt(errors[0]) if sent else errors[0]
