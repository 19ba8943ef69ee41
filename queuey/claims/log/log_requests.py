"""Requests to one partition's log, and their counters.

Each request is answered once. Requests that wait at the same time share an entry.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Literal, cast
from zlib import crc32

import msgspec

from queuey.claims.log.follow_ups import delivery_limit
from queuey.claims.rules.entries import ClaimEntry
from queuey.claims.rules.entry_draft import EntryDraft, Poll
from queuey.claims.rules.operator_acts import JobStanding
from queuey.claims.rules.partition_state import MAX_ABOVE, MAX_OUTSTANDING, State
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptOutcome, ReceiptStatus
from queuey.claims.rules.waiting import MAX_WAITING
from queuey.model.deadletters import queue_for
from queuey.model.errors import Outcome, QueueyError, StoreUnavailable, TooManyClaims, in_doubt
from queuey.model.messages import Backoff, Message, Queue
from queuey.storage.deadlines import GivenUp

Key = tuple[int, int]
"""A queue's ``qid``, and a partition."""
_number_of = attrgetter("number")
SettleKind = Literal["acknowledge", "renew", "release", "fail", "give_up", "verify", "check"]


class ClaimDelivery(msgspec.Struct, array_like=True, gc=False):
    """A message given to a caller.

    Attributes:
        receipt: Names this delivery.
        deliveries: Number of this attempt; 0 if the message was only shown and has had none.
        expires: End of the claim in seconds since 1970; 0 if the message was only shown.
        uncounted: Number of earlier deliveries that were given back before they began.
        suspected: A claim of the message has expired, so it is delivered alone.
        state: JSON of the last job state that an earlier delivery set; None if it has none or was not requested.
    """

    message: Message
    receipt: ClaimReceipt
    deliveries: int
    expires: float
    uncounted: int = 0
    suspected: bool = False
    state: bytes | None = None

    @property
    def handed_out(self) -> int:
        return self.deliveries + self.uncounted


message_of: Callable[[ClaimDelivery], Message] = attrgetter("message")


class LogRequest:
    """A request to a log. Created and used in the loop's thread.

    Args:
        queue: The queue's row, already authorized for the caller.
        weight: Max ids that the request adds to an entry.

    Attributes:
        future: Awaited by the caller, which gives up by cancelling it.
        arrived: Boot time at which the request first came to a log or to another worker.
        decided: Boot time of the decision on the entry that answered it.
        sent: An entry that carries it may have been appended.
        maybe_done: It may have been done before it came to this log, so no error may say that nothing changed.
    """

    __slots__ = ("arrived", "decided", "future", "maybe_done", "queue", "sent", "weight")

    def __init__(self, queue: Queue, weight: int = 1) -> None:
        self.queue = queue
        self.weight = weight
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.arrived = self.decided = 0.0
        self.sent = self.maybe_done = False

    def answer(self, value: Any, error: Exception | None = None) -> bool:  # noqa: ANN401 - depends on the request
        """Answers the caller; returns False if it already has an answer or has given up.

        The error of a request that may have been done before is in doubt.
        """
        if self.future.done():
            return False
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(in_doubt(error) if self.maybe_done else error)
            self.future.exception()  # Mark as retrieved: the caller may not await it.
        return True

    def edit(self, draft: EntryDraft) -> None:
        """Adds the request's part to the next entry."""

    def result(self, state: State) -> Any:  # noqa: ANN401, ARG002 - depends on the request
        return None

    @property
    def depends_on_others(self) -> bool:
        return False


class PollRequest(LogRequest):
    """A poll for messages. It fails if a request ``beside`` it fails. The result is a list of deliveries."""

    __slots__ = ("beside", "poll")

    def __init__(self, queue: Queue, poll: Poll, beside: Iterable[LogRequest] = ()) -> None:
        super().__init__(queue, poll.limit)
        self.poll = poll
        self.beside = beside

    def enter(self) -> bool:
        """Marks the poll as sent with the next entry, without messages of an earlier attempt.

        Returns False if it was given up or already answered. It fails if a request beside it has failed.
        """
        self.poll.given = []
        for request in self.beside:
            future = request.future
            if future.done() and not future.cancelled() and (error := future.exception()):
                self.answer(None, cast("Exception", error))
        if self.future.done():
            return False
        self.sent = True
        return True

    def list_claimed(self, state: State, partition: int, number: int) -> list[ClaimDelivery]:
        claimed: list[ClaimDelivery] = []
        for message in self.poll.given:
            ticks, low = position = message.ticks, message.low
            claim = state.outstanding.get(position)
            if not self.poll.ttl:
                deliveries, uncounted = (0, 0) if claim is None else (claim.attempts, claim.uncounted)
                claimed.append(ClaimDelivery(message, ClaimReceipt(partition, ticks, low), deliveries, 0.0, uncounted))
            # While the entry was in doubt, others may have appended further entries.
            elif claim is not None and claim.number == number and claim.expires:
                receipt = ClaimReceipt(partition, ticks, low, number, claim.secret)
                marks = claim.uncounted, claim.suspected
                claimed.append(ClaimDelivery(message, receipt, claim.deliveries, claim.expires / 1000, *marks))
        return claimed

    def give_up(self) -> list[ClaimReceipt]:
        """Cancels the request; returns the receipts of its claims if it was already answered."""
        if self.future.cancel() or self.future.cancelled() or self.future.exception() is not None:
            return []
        return [delivery.receipt for delivery in self.future.result()]

    @property
    def depends_on_others(self) -> bool:
        return not self.future.done()


class SettleRequest(LogRequest):
    """Settles receipts of this partition. The result is a list of settlements.

    Args:
        queue: The queue's row.
        kind: ``acknowledge``; ``renew``; ``release``; ``fail`` releases with the delay of the queue's backoff;
            ``give_up`` makes dead letters; ``verify`` changes nothing and returns which receipts would be settled;
            ``check`` only fails, as the others do, if the log never had an entry that a receipt names.
        receipts: Receipts of this partition.
        ttl: Seconds of a renewal, or delay of a release.
        begun: The attempts of a release have begun, so they count; None if no caller has learned of them.

    Attributes:
        newest: Highest entry number among the receipts.
        settlements: In the order of the receipts; empty before the first decision.
    """

    __slots__ = ("begun", "kind", "newest", "receipts", "settlements", "ttl")

    def __init__(
        self,
        queue: Queue,
        kind: SettleKind,
        receipts: Sequence[ClaimReceipt],
        ttl: float = 0.0,
        *,
        begun: bool | None = True,
    ) -> None:
        super().__init__(queue, len(receipts))
        self.kind = kind
        self.receipts = receipts
        self.newest = max(map(_number_of, receipts), default=0)
        self.ttl = ttl
        self.begun = begun
        self.settlements: list[ReceiptOutcome] = []

    def edit(self, draft: EntryDraft) -> None:
        if self.kind == "acknowledge":
            self.settlements = draft.acknowledge(self.receipts)
        elif self.kind == "renew":
            self.settlements = draft.renew(self.receipts, self.ttl)
        elif self.kind == "release":
            self.settlements = draft.release(self.receipts, self.ttl, begun=self.begun)
        elif self.kind == "fail":
            self.settlements = draft.release(self.receipts, partial(delay_after_failure, self.queue), begun=self.begun)
        elif self.kind == "give_up":
            target = queue_for(self.queue.name, self.queue.dead_letter)
            self.settlements = draft.dead_letter_claimed(self.receipts, target)
        elif self.kind == "verify":
            self.settlements = draft.verify(self.receipts)

    @property
    def depends_on_others(self) -> bool:
        # Only an entry proves that no other caller has claimed a message meanwhile.
        refused = {ReceiptStatus.SUPERSEDED, ReceiptStatus.REFUSED}
        return self.kind == "verify" or any(settlement.status in refused for settlement in self.settlements)


def delay_after_failure(queue: Queue, receipt: ClaimReceipt, deliveries: int) -> float:
    """Returns the seconds until a failed message is delivered again; 0 after the last delivery, for a dead letter."""
    max_deliveries = delivery_limit(queue)
    if max_deliveries and deliveries >= max_deliveries:
        return 0.0
    # Random enough, and the same value if the entry is decided again.
    draw = crc32(b"%d %d %d" % (*receipt.position, receipt.number)) / 0xFFFFFFFF
    return (queue.backoff or Backoff()).delay(deliveries, draw)


class ChangeRequest(LogRequest):
    """Changes the draft of the next entry."""

    __slots__ = ("_change",)

    def __init__(self, queue: Queue, change: Callable[[EntryDraft], None]) -> None:
        super().__init__(queue)
        self._change = change

    def edit(self, draft: EntryDraft) -> None:
        self._change(draft)


class JobRequest(LogRequest):
    """An operator's act on a message. The result is the message's standing after it, and the last entry's number."""

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
        return self._standing, state.number

    @property
    def depends_on_others(self) -> bool:
        return True


class SentRequest(ChangeRequest):
    """Records that dead letters were published. An entry carries it even if it was answered, as after a timeout."""

    __slots__ = ()


class StateQuery(LogRequest):
    """Reads a state at least as new as the request. The result is that of ``query``."""

    __slots__ = ("query",)

    def __init__(self, queue: Queue, query: Callable[[State], Any]) -> None:
        super().__init__(queue)
        self.query = query

    def result(self, state: State) -> Any:  # noqa: ANN401 - depends on the query
        return self.query(state)


def combine_outcomes(requests: Iterable[LogRequest]) -> Outcome:
    """Returns the outcome for an error of these requests: ``unknown`` if one of them may have been appended."""
    return "unknown" if any(request.sent for request in requests) else "none"


async def gather_answers(requests: Mapping[int, LogRequest]) -> dict[int, Any]:
    """Returns the answers to requests, by partition, once all have been answered.

    Raises:
        QueueyError: The first error; in doubt if other requests may have changed something.
        GivenUp: The caller cancelled the call.
    """
    errors: list[QueueyError] = []
    answers: dict[int, Any] = {}
    for number, request in requests.items():
        try:
            answers[number] = await request.future
        except QueueyError as error:
            errors.append(error)
        except asyncio.CancelledError:
            for sent_request in requests.values():
                sent_request.future.cancel()
            raise GivenUp(combine_outcomes(requests.values())) from None
    if errors:
        raise (
            in_doubt(errors[0]) if len(requests) > 1 and combine_outcomes(requests.values()) == "unknown" else errors[0]
        )
    return answers


def list_polls(requests: Iterable[LogRequest]) -> list[PollRequest]:
    return [request for request in requests if isinstance(request, PollRequest) and not request.future.done()]


def mark_unsent(requests: Iterable[LogRequest]) -> None:
    for request in requests:
        request.sent = request.maybe_done


def make_release_request(queue: Queue, receipts: Sequence[ClaimReceipt]) -> SettleRequest:
    """Returns a request to release claims that their caller never learned of. If it fails, they expire."""
    return SettleRequest(queue, "release", receipts, begun=None)


def too_late_error() -> StoreUnavailable:
    return StoreUnavailable("The claim would expire before this answer arrives. Claim again.", outcome="unknown")


class ClaimUndecided(StoreUnavailable):
    """A claim got no message from a partition, but some may be free there. Nothing was changed."""

    code = "StoreUnavailable"


def read_limit_error(partition: int) -> ClaimUndecided:
    text = f"Partition {partition} was read up to its limit: {MAX_ABOVE} messages done within the read delay."
    return ClaimUndecided(f"{text} Claim again in a second, or spread the messages over more partitions.")


def too_many_waiting_error(partition: int) -> ClaimUndecided:
    text = f"{MAX_WAITING} messages of partition {partition} wait until earlier messages of their keys are done"
    return ClaimUndecided(f"{text}, or {MAX_ABOVE} are done behind one that waits. Acknowledge the earlier ones.")


def too_many_claims_error(partition: int, outcome: Outcome = "none") -> TooManyClaims:
    text = f"Partition {partition} has {MAX_OUTSTANDING} claims, the maximum."
    return TooManyClaims(f"{text} Acknowledge or release some.", outcome=outcome)


def too_many_done_error(partition: int) -> TooManyClaims:
    text = f"Partition {partition} has the maximum number of messages that are claimed, or done before earlier ones"
    return TooManyClaims(f"{text} or before they are due. Try again when workers have handled earlier messages.")


class ClaimTotals:
    """Counters of all logs of a process, by metric name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("appends", "appends_refused", "operations", "forwarded"), 0)
        self._counts |= dict.fromkeys(("delivered", "redelivered", "acknowledged", "superseded"), 0)

    def count_refusal(self) -> None:
        with self._lock:
            self._counts["appends_refused"] += 1

    def count_forwarding(self) -> None:
        with self._lock:
            self._counts["forwarded"] += 1

    def count_round(self, requests: Sequence[LogRequest], entry: ClaimEntry | None, state: State) -> None:
        counts = self._counts
        with self._lock:
            for request in requests:
                if isinstance(request, SettleRequest):
                    for result in request.settlements:
                        is_accepted = result.status is ReceiptStatus.ACCEPTED
                        counts["acknowledged"] += is_accepted and request.kind == "acknowledge"
                        counts["superseded"] += result.status is ReceiptStatus.SUPERSEDED
            if entry is None:
                return
            counts["appends"] += 1
            counts["operations"] += len(requests)
            for _, positions in entry.claims:
                counts["delivered"] += len(positions)
                for position in positions:
                    claim = state.outstanding.get(position)
                    counts["redelivered"] += claim is not None and claim.deliveries + claim.uncounted > 1

    def statistics(self) -> dict[str, float]:
        with self._lock:
            return {f"claims_{name}_total": count for name, count in self._counts.items()}
