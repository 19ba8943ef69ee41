"""Requests to one partition's log, their queue and their counters.

Each is answered once. Requests that wait at one moment share an entry.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, cast
from zlib import crc32

from queuey.claims.acts import JobStanding
from queuey.claims.drafts import MOST_IDS, EntryDraft
from queuey.claims.entries import Entry
from queuey.claims.order import MOST_WAITING
from queuey.claims.polls import Poll
from queuey.claims.receipts import ClaimReceipt, ReceiptStatus, Settlement
from queuey.claims.state import MOST_ABOVE, MOST_OUTSTANDING, State
from queuey.deadletters import queue_for
from queuey.errors import Outcome, StoreUnavailable, TooManyClaims, in_doubt
from queuey.messages import Backoff, Message, Queue
from queuey.service.claims.follow_ups import most_deliveries

Kind = Literal["acknowledge", "renew", "release", "fail", "give_up", "verify", "check"]
Given = tuple[Message, int, ClaimReceipt, int]
"""A claimed message: its deliveries, the receipt, and the expiry (milliseconds since 1970)."""


class Request:
    """A request to a log. Made and used in the loop's thread.

    Args:
        queue: The row of the queue that the caller is authorized for.
        weight: Max ids that it adds to an entry.

    Attributes:
        future: Awaited by the caller, which gives up by cancelling it.
        asked: Boot time at which it first came to a log, or to another worker.
        decided: Boot time of the decision on the entry that has answered it.
        sent: An entry that carries it may have been appended.
        doubtful: It may have been done before it comes to the log, so no error may say that nothing was changed.
    """

    __slots__ = ("asked", "decided", "doubtful", "future", "queue", "sent", "weight")

    def __init__(self, queue: Queue, weight: int = 1) -> None:
        self.queue = queue
        self.weight = weight
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.asked = self.decided = 0.0
        self.sent = self.doubtful = False

    def answer(self, value: Any, error: Exception | None = None) -> bool:  # noqa: ANN401 - what it was asked for
        """Answers the caller; returns False if it has its answer or has given up."""
        if self.future.done():
            return False
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(in_doubt(error) if self.doubtful else error)
            self.future.exception()  # Not all are awaited.
        return True

    def enter(self) -> bool:
        """Returns whether the next entry is to carry it: it was not given up. If it is later, it may be done."""
        if self.future.done():
            return False
        self.sent = True
        return True

    def edit(self, draft: EntryDraft) -> None:
        """Adds its part to the next entry."""

    def result(self, state: State) -> Any:  # noqa: ANN401, ARG002 - what it was asked for
        """Returns the result, given the state after the entry."""
        return None

    @property
    def depends_on_others(self) -> bool:
        """True if it needs no entry, but an entry of another process may change its answer."""
        return False


class PollRequest(Request):
    """Wants messages, unless an acknowledgement beside it has failed. The result is a list of :data:`Given`."""

    __slots__ = ("beside", "poll")

    def __init__(self, queue: Queue, poll: Poll, beside: Iterable[Request] = ()) -> None:
        super().__init__(queue, poll.limit)
        self.poll = poll
        self.beside = beside

    def enter(self) -> bool:
        self.poll.given = []
        for request in self.beside:
            future = request.future
            if future.done() and not future.cancelled() and (error := future.exception()):
                self.answer(None, cast("Exception", error))
        return super().enter()

    def gets(self, state: State, partition: int, number: int) -> list[Given]:
        """Returns its result, given the state after its entry, and the entry's number."""
        claimed: list[Given] = []
        for message in self.poll.given:
            ticks, low = position = message.ticks, message.low
            claim = state.outstanding.get(position)
            if not self.poll.ttl:
                deliveries = 0 if claim is None else claim.deliveries
                claimed.append((message, deliveries, ClaimReceipt(partition, ticks, low), 0))
            # While the entry was in doubt others may have gone on from it.
            elif claim is not None and claim.number == number and claim.expires:
                receipt = ClaimReceipt(partition, ticks, low, number, claim.secret)
                claimed.append((message, claim.deliveries, receipt, claim.expires))
        return claimed

    def give_up(self) -> list[ClaimReceipt]:
        """Ends the request; returns the receipts of its claims, if it had its answer."""
        if self.future.cancel() or self.future.cancelled() or self.future.exception() is not None:
            return []
        return [receipt for _, _, receipt, _ in self.future.result()]

    @property
    def depends_on_others(self) -> bool:
        return not self.future.done()


class SettleRequest(Request):
    """Acknowledges, renews or releases receipts of this partition. The result is a list of settlements.

    ``ttl`` is the seconds of a renewal, or the delay of a release. ``fail`` releases them with the delay of the queue's
    backoff, and ``give_up`` makes dead letters of them. ``verify`` changes nothing and returns
    which would be done. ``check`` only fails, as the others do, if the log has never had such an entry.

    Attributes:
        newest: The highest number of an entry in its receipts.
    """

    __slots__ = ("kind", "newest", "receipts", "settled", "ttl")

    def __init__(self, queue: Queue, kind: Kind, receipts: Sequence[ClaimReceipt], ttl: float = 0.0) -> None:
        super().__init__(queue, len(receipts))
        self.kind = kind
        self.receipts = receipts
        self.newest = max([receipt.number for receipt in receipts], default=0)
        self.ttl = ttl
        self.settled: list[Settlement] = []

    def edit(self, draft: EntryDraft) -> None:
        if self.kind == "acknowledge":
            self.settled = draft.acknowledge(self.receipts)
        elif self.kind == "renew":
            self.settled = draft.renew(self.receipts, self.ttl)
        elif self.kind == "release":
            self.settled = draft.release(self.receipts, self.ttl)
        elif self.kind == "fail":
            self.settled = draft.release(self.receipts, partial(delay_after_failure, self.queue))
        elif self.kind == "give_up":
            target = queue_for(self.queue.name, self.queue.dead_letter)
            self.settled = draft.give_up(self.receipts, target)
        elif self.kind == "verify":
            self.settled = draft.verify(self.receipts)

    @property
    def depends_on_others(self) -> bool:
        # Only an entry proves that nobody else has got a message since.
        refused = {ReceiptStatus.SUPERSEDED, ReceiptStatus.REFUSED}
        return self.kind == "verify" or any(one.status in refused for one in self.settled)


def delay_after_failure(queue: Queue, receipt: ClaimReceipt, deliveries: int) -> float:
    """Returns the seconds until a message is delivered again; the last delivery makes it a dead letter at once."""
    most = most_deliveries(queue)
    if most and deliveries >= most:
        return 0.0
    # Random for its purpose, and the same if the entry is decided on again.
    draw = crc32(str(receipt).encode()) / 0xFFFFFFFF
    return (queue.backoff or Backoff()).delay(deliveries, draw)


class ChangeRequest(Request):
    """Makes a change of the next entry."""

    __slots__ = ("_change",)

    def __init__(self, queue: Queue, change: Callable[[EntryDraft], None]) -> None:
        super().__init__(queue)
        self._change = change

    def edit(self, draft: EntryDraft) -> None:
        self._change(draft)


class JobRequest(Request):
    """An operator's act on a message: the result is its standing then."""

    __slots__ = ("_act", "_message", "_standing")

    def __init__(
        self, queue: Queue, act: Callable[[EntryDraft, ClaimReceipt], JobStanding], message: ClaimReceipt
    ) -> None:
        super().__init__(queue)
        self._act = act
        self._message = message
        self._standing: JobStanding = "done"

    def edit(self, draft: EntryDraft) -> None:
        self._standing = self._act(draft, self._message)

    def result(self, state: State) -> tuple[JobStanding, int]:
        """Returns the standing, and the number of the last entry."""
        return self._standing, state.number

    @property
    def depends_on_others(self) -> bool:
        return True


class SentRequest(ChangeRequest):
    """Records that dead letters have been published, even if that took longer than a request may wait."""

    __slots__ = ()

    def enter(self) -> bool:
        super().enter()
        return True


class StateQuery(Request):
    """Reads a state that is at least as new as the request. The result is that of ``look``."""

    __slots__ = ("look",)

    def __init__(self, queue: Queue, look: Callable[[State], Any]) -> None:
        super().__init__(queue)
        self.look = look

    def result(self, state: State) -> Any:  # noqa: ANN401 - what it was asked for
        return self.look(state)


class RequestQueue:
    """The requests that wait for one log. One round at a time takes them.

    Attributes:
        load: Ids in all requests that wait or are being answered.
    """

    __slots__ = ("_answering", "_busy", "_waiting", "load")

    def __init__(self) -> None:
        self._waiting: deque[Request] = deque()
        self._busy = False
        self.load = self._answering = 0

    @property
    def idle(self) -> bool:
        """True if no request waits, and none is being answered."""
        return not self._busy

    def add(self, requests: Iterable[Request], now: float) -> bool:
        """Adds requests at a boot time; returns whether the log rested, so that its rounds are to begin.

        They go on until :meth:`take` returns nothing.
        """
        for request in requests:
            request.asked = request.asked or now
            self._waiting.append(request)
            self.load += request.weight
        rested, self._busy = not self._busy, True
        return rested

    def put_back(self, requests: Sequence[Request]) -> None:
        """Puts requests back before all others. Only while a round is under way."""
        self._waiting.extendleft(reversed(requests))
        self.load += sum(request.weight for request in requests)

    def take(self) -> list[Request]:
        """Removes requests for one entry, in the order in which they came; none: the log rests."""
        taken: list[Request] = []
        weight = 0
        self.load -= self._answering
        while self._waiting and (not taken or weight + self._waiting[0].weight <= MOST_IDS):
            request = self._waiting.popleft()
            if request.future.done():
                self.load -= request.weight
            else:
                taken.append(request)
                weight += request.weight
        self._answering = weight
        if not taken:
            self._busy = False
        return taken

    def join(self, taken: list[Request], number: int, *, polls: bool = False) -> None:
        """Adds later requests to an entry that need no further reads.

        Args:
            taken: The requests of the entry.
            number: Receipts of entries up to this need no reads.
            polls: Add requests for messages, too.
        """
        while self._waiting:
            request = self._waiting[0]
            settles = isinstance(request, SettleRequest) and request.newest <= number
            is_full = self._answering + request.weight > MOST_IDS
            if is_full or not (settles or (polls and isinstance(request, PollRequest))):
                return
            taken.append(self._waiting.popleft())
            self._answering += request.weight

    def waiting(self) -> list[Request]:
        """Returns the requests that no round has taken yet, and drops those that have their answer."""
        left = [request for request in self._waiting if not request.future.done()]
        self._waiting = deque(left)
        self.load = self._answering + sum(request.weight for request in left)
        return left

    def stop(self) -> None:
        """Marks that the rounds have ended although requests may wait; :meth:`add` says to begin them again."""
        self._busy = False


def outcome_of(requests: Iterable[Request]) -> Outcome:
    """Returns the outcome of requests that were given up."""
    return "unknown" if any(request.sent for request in requests) else "none"


def polls_of(requests: Iterable[Request]) -> list[PollRequest]:
    """Returns the requests for messages that wait for an answer."""
    return [request for request in requests if isinstance(request, PollRequest) and not request.future.done()]


def leave(requests: Iterable[Request]) -> None:
    """Marks requests as in no entry after all."""
    for request in requests:
        request.sent = request.doubtful


def giving_back(queue: Queue, receipts: Sequence[ClaimReceipt]) -> SettleRequest:
    """Returns a request that releases claims of which no caller has learned. If it fails, they end by themselves."""
    return SettleRequest(queue, "release", receipts)


def too_late() -> StoreUnavailable:
    """Returns the error of a claim that would expire before its answer arrives."""
    return StoreUnavailable("The claim would expire before this answer arrives. Claim again.", outcome="unknown")


class ClaimUndecided(StoreUnavailable):
    """A claim got no message of a partition, but some may be free there. Nothing was changed."""


def too_fast(partition: int) -> ClaimUndecided:
    """Returns the error of a partition that remembers as many done messages as it may."""
    text = f"Partition {partition} was read up to its limit: {MOST_ABOVE} messages done within the read delay."
    return ClaimUndecided(f"{text} Claim again in a second, or spread the messages over more partitions.")


def too_many_wait(partition: int) -> ClaimUndecided:
    """Returns the error of a partition in which too many messages wait for others of their keys."""
    text = f"{MOST_WAITING} messages of partition {partition} wait until earlier messages of their keys are done"
    return ClaimUndecided(f"{text}, or {MOST_ABOVE} are done behind one that waits. Acknowledge the earlier ones.")


def too_many(partition: int, outcome: Outcome = "none") -> TooManyClaims:
    """Returns the error of a partition that has as many claims as it may have."""
    text = f"Partition {partition} has {MOST_OUTSTANDING} claims, which is all that it may have."
    return TooManyClaims(f"{text} Acknowledge or release some.", outcome=outcome)


def too_many_done(partition: int) -> TooManyClaims:
    """Returns the error of a partition that remembers as many messages as it may for one that is done early."""
    text = f"Partition {partition} remembers as many messages as it may that are claimed, or done before earlier ones"
    return TooManyClaims(f"{text} or before they are due. Try again when workers have handled earlier messages.")


class ClaimTotals:
    """Counters of all logs of a process, by the names of their metrics. Safe for use by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("appends", "appends_refused", "operations", "forwarded"), 0)
        self._counts |= dict.fromkeys(("delivered", "redelivered", "acknowledged", "superseded"), 0)

    def refused(self) -> None:
        """Counts an append that another process was ahead of."""
        with self._lock:
            self._counts["appends_refused"] += 1

    def forwarded(self) -> None:
        """Counts a request that another worker was asked for."""
        with self._lock:
            self._counts["forwarded"] += 1

    def ended(self, requests: Sequence[Request], entry: Entry | None, state: State) -> None:
        """Counts a round: its requests, its entry, and the state after that."""
        counts = self._counts
        with self._lock:
            for request in requests:
                if isinstance(request, SettleRequest):
                    for one in request.settled:
                        counts["acknowledged"] += one.status is ReceiptStatus.DONE and request.kind == "acknowledge"
                        counts["superseded"] += one.status is ReceiptStatus.SUPERSEDED
            if entry is None:
                return
            counts["appends"] += 1
            counts["operations"] += len(requests)
            for _, positions in entry.claims:
                counts["delivered"] += len(positions)
                for position in positions:
                    claim = state.outstanding.get(position)
                    counts["redelivered"] += claim is not None and claim.deliveries > 1

    def statistics(self) -> dict[str, float]:
        with self._lock:
            return {f"claims_{name}_total": count for name, count in self._counts.items()}
