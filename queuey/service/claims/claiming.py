"""Requests to several partitions of a queue: a claim asks one after another, all others ask all at once.

Claims of one moment begin with the same partition, to share its entries (:class:`PartitionRotation`).
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from queuey.claims.polls import Poll
from queuey.claims.receipts import ClaimReceipt, Settlement
from queuey.errors import QueueyError, TooManyClaims, in_doubt
from queuey.messages import Message, Queue, bytes_of
from queuey.service.claims.log_cache import LogCache
from queuey.service.claims.requests import (
    ClaimUndecided,
    PollRequest,
    Request,
    SettleRequest,
    giving_back,
    outcome_of,
    too_late,
)
from queuey.service.claims.results import JobResult
from queuey.storage.calls import GivenUp

AVOIDED = 1.0
"""Number of seconds for which a partition comes last where another process is at work."""
MIN_TURN, MAX_TURN = 0.004, 0.1
"""Min and max seconds of a turn."""
MAX_ROUND = 1.0
"""Max seconds until every partition has its turn, unless there are so many that turns would be too short."""
MAX_QUEUES = 10_000
"""Max queues whose turns are remembered."""

Refused = Callable[[int], float]
"""Returns the boot time at which another process was last found at work on a partition."""
IsLate = Callable[[float], bool]
"""Returns whether claims decided at this boot time may expire before the answer arrives."""
Complete = Callable[[list["ClaimDelivery"]], Awaitable[None]]
"""Adds to messages what their caller has asked for besides."""


class ClaimDelivery(msgspec.Struct, gc=False):
    """A message given to a caller.

    Attributes:
        receipt: Names this delivery.
        deliveries: How many there were, this one included.
        expires: Seconds since 1970; 0: nothing was claimed.
        state: JSON of the last state that an earlier delivery's worker has set; None if it was not read, or not set.
    """

    message: Message
    receipt: ClaimReceipt
    deliveries: int
    expires: float
    state: bytes | None = None


class PiggybackedAck(msgspec.Struct):
    """Acknowledgements sent with a claim. All tries of a request share one, so that it is sent once.

    Attributes:
        receipts: Of the queue that is claimed from.
        texts: The receipts as the caller wrote them, for its answer.
        results: What some of these jobs have returned.
        settled: The results, in the same order; None: not known yet.
        in_doubt: Some may have been acknowledged, so an error of the request has the outcome ``unknown``.
    """

    receipts: Sequence[ClaimReceipt] = ()
    texts: Sequence[str] = ()
    results: Mapping[ClaimReceipt, JobResult] = {}
    settled: list[Settlement] | None = None
    in_doubt: bool = False

    @property
    def pending(self) -> bool:
        return self.settled is None and bool(self.receipts)

    async def take(self, settles: Mapping[int, SettleRequest]) -> None:
        """Waits for the results.

        Raises:
            QueueyError: They could not be acknowledged; perhaps some of them were.
        """
        try:
            found = await answers(settles)
        except QueueyError as error:
            # Receipts beside one that was refused may have been acknowledged.
            self.in_doubt = self.in_doubt or isinstance(error, TooManyClaims)
            raise
        self.in_doubt = True
        self.settled = in_order(found, self.receipts)


class _Turn:
    """The partitions of a queue in their present order."""

    __slots__ = ("began", "ends", "order")

    def __init__(self, partitions: int) -> None:
        self.order = list(range(1, partitions + 1))
        self.began = self.ends = -1e9


class PartitionRotation:
    """Gives each partition of a queue its turn. Any thread may call it.

    Claims that come while a partition has its turn begin there and gather, while an entry is appended, for the next
    one: so one append serves many of them, and the acknowledgements that follow. A turn ends when its time is over,
    when the partition had nothing to give, and when another process is found at work there.

    ``first`` (0 to 1) is the partition with which a process begins: another one each, so that processes drift apart.
    """

    def __init__(self, boottime: Callable[[], float], first: Callable[[], float]) -> None:
        self._boottime = boottime
        self._first = first
        self._lock = threading.Lock()
        self._turns: OrderedDict[int, _Turn] = OrderedDict()

    def order(self, qid: int, partitions: int, refused: Refused) -> Sequence[int]:
        """Returns the partitions of a queue in the order in which a claim asks them; it must not be changed."""
        now = self._boottime()
        with self._lock:
            turn = self._turns.get(qid)
            if turn is None or len(turn.order) != partitions:
                turn = self._begin(qid, partitions)
            self._turns.move_to_end(qid)
            if now >= turn.ends or refused(turn.order[0]) > turn.began:
                self._next(turn, now, refused)
            return turn.order

    def passed(self, qid: int, number: int) -> None:
        """Ends the turn of a partition that had nothing to give."""
        with self._lock:
            turn = self._turns.get(qid)
            if turn is not None and turn.order[0] == number:
                turn.ends = -1e9

    def _begin(self, qid: int, partitions: int) -> _Turn:
        turn = self._turns[qid] = _Turn(partitions)
        at = int(self._first() * partitions) % partitions
        turn.order = [*turn.order[at:], *turn.order[:at]]
        if len(self._turns) > MAX_QUEUES:
            self._turns.popitem(last=False)
        return turn

    def _next(self, turn: _Turn, now: float, refused: Refused) -> None:
        """Puts the next partition first at which no other process works; those passed over come last."""
        order = turn.order
        free = (at for at in range(1, len(order)) if refused(order[at]) <= now - AVOIDED)
        at = next(free, 1)
        turn.order = [*order[at:], *order[:at]]
        turn.began = now
        turn.ends = now + min(MAX_TURN, max(MIN_TURN, MAX_ROUND / len(order)))


class ClaimSearch:
    """Asks partitions for messages until one has some; ``gather``: until there are as many as wanted."""

    def __init__(self, logs: LogCache, turns: PartitionRotation, queue: Queue, poll: Poll, *, gather: bool) -> None:
        self._logs = logs
        self._turns = turns
        self._queue = queue
        self._poll = poll
        self._gather = gather
        self._asked: list[PollRequest] = []
        self._found: list[ClaimDelivery] = []
        self._decided = math.inf
        """Boot time of the first decision on their claims."""

    async def run(
        self,
        partitions: Sequence[int],
        ack: PiggybackedAck,
        settles: Mapping[int, SettleRequest],
        is_late: IsLate,
        complete: Complete | None = None,
    ) -> list[ClaimDelivery]:
        """Returns the claimed messages. If it fails, they are released.

        Args:
            partitions: In the order in which they are asked.
            ack: Acknowledgements to send.
            settles: Their requests, by partition. The first partition gets its own for the same entry.
            is_late: Tells if claims are over before the caller has the answer.
            complete: Is awaited with the messages, if there are any.

        Raises:
            GivenUp: The caller has cancelled this.
        """
        for number, request in settles.items():
            if number != partitions[0]:
                self._logs.add((self._queue.qid, number), request)
        try:
            failure = await self._search(partitions, settles)
            if settles:
                await ack.take(settles)
            if complete is not None and self._found:
                await complete(self._found)
        except (asyncio.CancelledError, GivenUp):
            claimed = self._give_up() and self._poll.ttl
            raise GivenUp("unknown" if claimed else outcome_of([*settles.values(), *self._asked[-1:]])) from None
        except Exception:
            self._give_up()
            raise
        if failure is not None and not self._found:
            raise failure
        if self._found and self._poll.ttl and is_late(self._decided):
            self._give_up()
            raise too_late()
        return self._found

    async def _search(self, partitions: Sequence[int], settles: Mapping[int, SettleRequest]) -> QueueyError | None:
        """Asks one partition after another; returns the error that has ended this, or that hid messages."""
        refused: QueueyError | None = None
        beside = [settles[partitions[0]]] if partitions[0] in settles else []
        for number in partitions:
            request = PollRequest(self._queue, self._wanted(), settles.values())
            self._asked.append(request)
            self._logs.add((self._queue.qid, number), *beside, request)
            beside = []
            try:
                given = await request.future
            except (TooManyClaims, ClaimUndecided) as error:
                refused, given = error, ()  # of this partition; others may have messages
            except QueueyError as error:
                return error
            if given:
                self._decided = min(self._decided, request.decided)
            else:
                self._turns.passed(self._queue.qid, number)
            self._found += [
                ClaimDelivery(message, receipt, deliveries, expires / 1000)
                for message, deliveries, receipt, expires in given
            ]
            if self._has_enough():
                return None
        return refused

    def _wanted(self) -> Poll:
        if not self._found:
            return self._poll
        poll, weight = self._poll, bytes_of(each.message for each in self._found)
        return Poll(poll.limit - len(self._found), poll.ttl, poll.max_bytes - weight, poll.worker)

    def _has_enough(self) -> bool:
        if not self._found or not self._gather:
            return bool(self._found)
        wanted = self._wanted()
        return wanted.limit <= 0 or wanted.max_bytes <= 0

    def _give_up(self) -> bool:
        """Ends the claims; returns whether there are any. If that fails they end by themselves."""
        given = [receipts for request in self._asked if (receipts := request.give_up())]
        for receipts in given if self._poll.ttl else ():
            self._logs.add((self._queue.qid, receipts[0].partition), giving_back(self._queue, receipts))
        return bool(given)


async def answers(requests: Mapping[int, Request]) -> dict[int, Any]:
    """Returns the answers of requests to several logs, by partition.

    Raises:
        QueueyError: The first error; in doubt if other requests may have changed something.
        GivenUp: The caller has cancelled this.
    """
    errors: list[QueueyError] = []
    for request in requests.values():
        try:
            await request.future
        except QueueyError as error:
            errors.append(error)
        except asyncio.CancelledError:
            for each in requests.values():
                each.future.cancel()
            raise GivenUp(outcome_of(requests.values())) from None
    if errors:
        raise in_doubt(errors[0]) if len(requests) > 1 and outcome_of(requests.values()) == "unknown" else errors[0]
    return {number: request.future.result() for number, request in requests.items()}


def by_partition(receipts: Sequence[ClaimReceipt]) -> dict[int, list[ClaimReceipt]]:
    found: dict[int, list[ClaimReceipt]] = {}
    for receipt in receipts:
        found.setdefault(receipt.partition, []).append(receipt)
    return found


def in_order(settled: Mapping[int, Sequence[Settlement]], receipts: Sequence[ClaimReceipt]) -> list[Settlement]:
    """Returns results by partition in the order of the receipts."""
    if len(settled) == 1:
        [only] = settled.values()
        return [*only]
    each = {number: iter(some) for number, some in settled.items()}
    return [next(each[receipt.partition]) for receipt in receipts]
