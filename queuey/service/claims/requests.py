"""The requests to one partition's log. Each is answered once. Those that wait at one moment share an entry."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from queuey.claims import MOST_ABOVE, MOST_OUTSTANDING, ClaimReceipt, EntryDraft, Poll, ReceiptStatus, Settlement, State
from queuey.claims.drafts import MOST_IDS
from queuey.errors import Outcome, StoreUnavailable, TooManyClaims, in_doubt
from queuey.ids import Position
from queuey.messages import Message, Queue
from queuey.service.claims.runtime import Done

Kind = Literal["acknowledge", "renew", "release", "check"]


class Request:
    """Something asked of a log.

    Args:
        queue: The row of the queue that the caller is authorized for.
        done: Called at the end, unless the caller gives up before.

    Attributes:
        asked: When it first came to a log, or to another worker (boot time).
        sent: An entry that carries it may have been appended.
        doubtful: It may have been done before it comes to the log, so no error may say that nothing was changed.
    """

    __slots__ = ("_done", "_first", "asked", "doubtful", "queue", "sent")

    weight = 1
    """Ids that it adds to an entry, at most."""

    def __init__(self, queue: Queue, done: Done) -> None:
        self.queue = queue
        self.asked = 0.0
        self.sent = self.doubtful = False
        self._done = done
        self._first = threading.Lock()

    def answer(self, value: Any, error: Exception | None = None) -> bool:  # noqa: ANN401 - what it was asked for
        """Gives the caller its answer; returns False if it has one already or has given up."""
        if not self._first.acquire(blocking=False):
            return False
        if self.doubtful and error is not None:
            error = in_doubt(error)
        # The callback mostly belongs to something that has this request, and that may have a long answer.
        done, self._done = self._done, ignore
        done(value, error)
        return True

    def give_up(self) -> Outcome:
        """Makes sure that the caller gets no answer any more; returns the outcome of its request."""
        if self._first.acquire(blocking=False):
            self._done = ignore
        return "unknown" if self.sent else "none"

    def enter(self) -> bool:
        """Returns whether the next entry is to carry it: it was not given up. If it is later, it may be done."""
        if not self.answered:
            self.sent = True
        return not self.answered

    def edit(self, draft: EntryDraft) -> None:
        """Adds to the next entry what the request asks for."""

    def result(self, state: State) -> Any:  # noqa: ANN401, ARG002 - what it was asked for
        """Returns the result, given the state after the entry."""
        return None

    @property
    def depends_on_others(self) -> bool:
        """Whether it needs no entry, but an entry of another process may change its answer."""
        return False

    @property
    def answered(self) -> bool:
        """Whether the caller has its answer, or has given up."""
        return self._first.locked()


class PollRequest(Request):
    """Wants messages. The result is a list: each message, its deliveries, the receipt, the expiry (ms)."""

    __slots__ = ("poll",)

    def __init__(self, queue: Queue, done: Done, poll: Poll) -> None:
        super().__init__(queue, done)
        self.poll = poll

    def enter(self) -> bool:
        """See the base class."""
        self.poll.given = []
        return super().enter()

    def gets(self, state: State, partition: int, number: int) -> list[tuple[Message, int, ClaimReceipt, int]]:
        """Returns its result, given the state after the entry that was made for it, and the entry's number."""
        claims = [(one, state.outstanding.get(one.position)) for one in self.poll.given]
        if not self.poll.ttl:
            bare = [(one, claim, ClaimReceipt(partition, *one.position)) for one, claim in claims]
            return [(one, 0 if claim is None else claim.deliveries, receipt, 0) for one, claim, receipt in bare]
        # While the entry was in doubt others may have gone on from it.
        return [
            (one, claim.deliveries, ClaimReceipt(partition, *one.position, number, claim.secret), claim.expires)
            for one, claim in claims
            if claim is not None and claim.number == number and claim.expires
        ]

    def tell(self, given: Sequence[Any], *, late: bool) -> bool:
        """Gives the caller what was claimed for it, unless it is too late; returns whether it has learned of that."""
        if late:
            self.answer(None, too_late())
            return False
        return self.answer(given)

    @property
    def depends_on_others(self) -> bool:
        """See the base class."""
        return not self.answered

    @property
    def weight(self) -> int:  # type: ignore[override]
        """See the base class."""
        return self.poll.limit


class SettleRequest(Request):
    """Acknowledges, renews or releases receipts of this partition. The result is a list of settlements.

    ``ttl`` is for how many seconds to renew them, or after how many to release them. ``check`` does nothing: it fails,
    as the others do, if the log has never had such an entry.
    """

    __slots__ = ("kind", "receipts", "settled", "ttl")

    def __init__(
        self, queue: Queue, done: Done, kind: Kind, receipts: Sequence[ClaimReceipt], ttl: float = 0.0
    ) -> None:
        super().__init__(queue, done)
        self.kind = kind
        self.receipts = receipts
        self.ttl = ttl
        self.settled: list[Settlement] = []

    @property
    def weight(self) -> int:  # type: ignore[override]
        """See the base class."""
        return len(self.receipts)

    def edit(self, draft: EntryDraft) -> None:
        """See the base class."""
        if self.kind == "renew":
            self.settled = draft.renew(self.receipts, self.ttl)
        elif self.kind == "release":
            self.settled = draft.release(self.receipts, self.ttl)
        elif self.kind == "acknowledge":
            self.settled = draft.acknowledge(self.receipts)

    @property
    def depends_on_others(self) -> bool:
        """See the base class."""
        return any(one.status in {ReceiptStatus.SUPERSEDED, ReceiptStatus.REFUSED} for one in self.settled)

    def newest(self) -> int:
        """Returns the highest number of an entry that it speaks of."""
        return max((receipt.number for receipt in self.receipts), default=0)


class ReleaseAllRequest(Request):
    """Ends every claim of the partition."""

    __slots__ = ()

    def edit(self, draft: EntryDraft) -> None:
        """See the base class."""
        draft.release_all()


class SupersedeRequest(Request):
    """Ends messages that were removed because a newer value has taken their name."""

    __slots__ = ("positions",)

    def __init__(self, queue: Queue, done: Done, positions: Sequence[Position]) -> None:
        super().__init__(queue, done)
        self.positions = positions

    @property
    def weight(self) -> int:  # type: ignore[override]
        """See the base class."""
        return len(self.positions)

    def edit(self, draft: EntryDraft) -> None:
        """See the base class."""
        draft.supersede(self.positions)


class LookRequest(Request):
    """Reads a state that is at least as new as the request. The result is what ``look`` returns for it."""

    __slots__ = ("look",)

    def __init__(self, queue: Queue, done: Done, look: Callable[[State], Any]) -> None:
        super().__init__(queue, done)
        self.look = look

    def result(self, state: State) -> Any:  # noqa: ANN401 - what it was asked for
        """See the base class."""
        return self.look(state)


class SentRequest(Request):
    """Notes that dead letters have been published."""

    __slots__ = ("positions",)

    def __init__(self, queue: Queue, done: Done, positions: Sequence[Position]) -> None:
        super().__init__(queue, done)
        self.positions = positions

    def edit(self, draft: EntryDraft) -> None:
        """See the base class."""
        draft.report_sent(self.positions)


class RequestLine:
    """The requests that wait for one log. Any thread may add some; one round at a time takes them.

    Attributes:
        load: Ids that those who wait and those who are being answered ask for.
    """

    __slots__ = ("_answering", "_busy", "_lock", "_waiting", "load")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Request] = deque()
        self._busy = False
        self.load = self._answering = 0

    @property
    def idle(self) -> bool:
        """Whether no request waits, and none is being answered."""
        return not self._busy

    def add(self, requests: Iterable[Request], now: float) -> bool:
        """Adds requests that come now (boot time), or came before; returns whether the log rested.

        If it did, its rounds are to begin. They go on until :meth:`take` returns nothing.
        """
        with self._lock:
            for request in requests:
                request.asked = request.asked or now
                self._waiting.append(request)
                self.load += request.weight
            rested, self._busy = not self._busy, True
        return rested

    def put_back(self, requests: Sequence[Request]) -> None:
        """Puts requests that were taken before all others again. Only while a round is under way."""
        with self._lock:
            self._waiting.extendleft(reversed(requests))
            self.load += sum(request.weight for request in requests)

    def take(self) -> list[Request]:
        """Takes requests for one entry, in the order in which they came; none: the log rests."""
        taken: list[Request] = []
        weight = 0
        with self._lock:
            self.load -= self._answering
            while self._waiting and (not taken or weight + self._waiting[0].weight <= MOST_IDS):
                request = self._waiting.popleft()
                if request.answered:
                    self.load -= request.weight
                else:
                    taken.append(request)
                    weight += request.weight
            self._answering = weight
            if not taken:
                self._busy = False
        return taken

    def join(self, taken: list[Request], number: int, *, polls: bool = False) -> None:
        """Takes requests that came meanwhile into the same entry.

        Args:
            taken: What it is for already; they are added to this.
            number: Receipts of entries up to this are taken: they need no reads.
            polls: Take requests for messages, too, which do.
        """
        weight = sum(request.weight for request in taken)
        with self._lock:
            while self._waiting:
                request = self._waiting[0]
                weight += request.weight
                settles = isinstance(request, SettleRequest) and request.newest() <= number
                if weight > MOST_IDS or not (settles or (polls and isinstance(request, PollRequest))):
                    return
                taken.append(self._waiting.popleft())
                self._answering += request.weight

    def waiting(self) -> list[Request]:
        """Returns the requests that no round has taken yet, and drops those that have their answer."""
        with self._lock:
            left = [request for request in self._waiting if not request.answered]
            self._waiting = deque(left)
            self.load = self._answering + sum(request.weight for request in left)
        return left

    def stop(self) -> None:
        """Notes that the rounds have ended by a mistake in the program; the next request begins them again."""
        self._busy = False


def ignore(_value: object, _error: Exception | None) -> None:
    """Is called at the end of a request that nobody waits for."""


def polls_of(requests: Iterable[Request]) -> list[PollRequest]:
    """Returns the requests for messages that wait for an answer."""
    return [request for request in requests if isinstance(request, PollRequest) and not request.answered]


def leave(requests: Iterable[Request]) -> None:
    """Notes that requests are in no entry after all."""
    for request in requests:
        request.sent = request.doubtful


def giving_back(queue: Queue, receipts: Sequence[ClaimReceipt]) -> SettleRequest:
    """Returns a request that releases claims of which no caller has learned. If it fails, they end by themselves."""
    return SettleRequest(queue, ignore, "release", receipts)


def too_late() -> StoreUnavailable:
    """Returns the error for a caller whose claim would be over before it has the answer."""
    return StoreUnavailable("The claim was made too late to be of use. Claim again.", outcome="unknown")


class ClaimUndecided(StoreUnavailable):
    """A claim got no message of a partition, but some may be free there. Nothing was changed."""


def too_fast(partition: int) -> ClaimUndecided:
    """Returns the error for a caller if a partition remembers as many done messages as it may."""
    text = f"Partition {partition} was read up to its limit: {MOST_ABOVE} messages done within the read delay."
    return ClaimUndecided(f"{text} Claim again in a second, or spread the messages over more partitions.")


def too_many(partition: int, outcome: Outcome = "none") -> TooManyClaims:
    """Returns the error for a caller if a partition has as many claims as it may have."""
    text = f"Partition {partition} has {MOST_OUTSTANDING} claims, which is all that it may have."
    return TooManyClaims(f"{text} Acknowledge or release some.", outcome=outcome)
