"""The claim logs in a process's memory, and requests to those of several partitions of a queue.

A claim asks one partition after another, all other requests ask at once. Concurrent claims begin with the same
partition, to share its entries (:class:`PartitionRotation`).
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from queuey.claims.job_ends import JobResult
from queuey.claims.log.forwarding import Forwarding
from queuey.claims.log.log_requests import (
    ClaimTotals,
    ClaimUndecided,
    Key,
    LogRequest,
    PollRequest,
    SettleRequest,
    StateQuery,
    combine_outcomes,
    gather_answers,
    make_release_request,
    too_late_error,
)
from queuey.claims.log.partition_log import PartitionLog
from queuey.claims.rules.entry_draft import Poll
from queuey.claims.rules.partition_state import ClaimTiming, State
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptOutcome
from queuey.model.errors import ClaimsRefused, InvalidRequest, QueueyError, TooManyClaims
from queuey.model.messages import Message, Queue, bytes_of
from queuey.model.partitions import outside_text
from queuey.runtime.event_loop import Core
from queuey.runtime.workers import Workers
from queuey.storage import Store
from queuey.storage.deadlines import GivenUp

T = TypeVar("T")

AVOIDANCE_SECONDS = 1.0
"""Number of seconds for which a partition comes last after another process was found at work there."""
MIN_TURN_SECONDS, MAX_TURN_SECONDS = 0.004, 0.1
"""Min and max seconds of a turn."""
MAX_ROTATION_SECONDS = 1.0
"""Max seconds until every partition has had its turn, unless turns would be shorter than ``MIN_TURN_SECONDS``."""
MAX_QUEUES = 10_000
"""Max queues whose rotation is remembered."""

LastConflict = Callable[[int], float]
"""Returns the boot time at which another process was last found at work on a partition."""
IsLate = Callable[[float], bool]
"""Returns whether claims decided at this boot time may expire before the answer arrives."""
Complete = Callable[[list["ClaimDelivery"]], Awaitable[None]]
"""Completes messages before they are returned, for example with job states."""


class LogCache:
    """Returns logs by key: creates missing ones and evicts the least recently used ones.

    A log that is not in memory has no pending ids, no conflict and none of the receipts' entries.

    Args:
        make: Creates a log. Its second argument is called after each round of the log.
        bound: Approximate max bytes of all states together. Logs in use may exceed it.
        workers: The other workers of the service, which may do requests for this one.
        core: Event loop and clock.
        totals: Counters.
    """

    def __init__(
        self,
        make: Callable[[Key, Callable[[PartitionLog], None]], PartitionLog],
        bound: int,
        workers: Workers,
        core: Core,
        totals: ClaimTotals,
    ) -> None:
        self._make = make
        self._bound = bound
        self._logs: OrderedDict[Key, PartitionLog] = OrderedDict()
        self._weights: dict[Key, int] = {}
        self.weight = 0
        """Approximate bytes of all states together."""
        self._forwarding = Forwarding(workers, self.add_here, core, totals)

    def __len__(self) -> int:
        return len(self._logs)

    def add(self, key: Key, *requests: LogRequest) -> None:
        """Adds requests to a log, unless another process was at work on it and a worker takes them."""
        log = self._logs.get(key)
        if log is None or log.last_conflict < 0:
            self.add_here(key, *requests)
        elif remaining := self._forwarding.forward(key, log.last_conflict, requests):
            self.add_here(key, *remaining)

    def add_here(self, key: Key, *requests: LogRequest) -> None:
        log = self._logs.get(key)
        if log is None:
            log = self._logs[key] = self._make(key, self._update_weight)
        self._logs.move_to_end(key)
        log.add(*requests)

    def has_entries(self, key: Key, receipts: Sequence[ClaimReceipt]) -> bool:
        log = self._logs.get(key)
        return log is not None and all(receipt.number <= log.state.number for receipt in receipts)

    def find_last_conflict(self, key: Key) -> float:
        """Returns the boot time at which another process was last found at work on a log; -1e9 if never."""
        log = self._logs.get(key)
        return -1e9 if log is None else log.last_conflict

    def count_finished(self, key: Key) -> tuple[int, int]:
        """Returns ``keyed_done_count`` and ``freed_place_count`` of the state; zeros if the log is not in memory."""
        log = self._logs.get(key)
        return (0, 0) if log is None else (log.state.keyed_done_count, log.state.freed_place_count)

    def count_pending_ids(self, key: Key) -> int:
        log = self._logs.get(key)
        return 0 if log is None else log.pending_ids

    def measure(self) -> dict[str, float]:
        """Returns the totals of all logs by metric name: claims, covers and bytes. Any thread may call it."""
        states = [log.state for log in list(self._logs.values())]
        return {
            "claims_outstanding": sum(len(state.outstanding) for state in states),
            "claims_covers": sum(state.covers.count for state in states),
            "claims_memory_bytes": self.weight,
        }

    def _update_weight(self, log: PartitionLog) -> None:
        """Updates the total size after a round, and evicts idle logs if it is over the bound."""
        weight = log.weight
        if weight == self._weights.get(log.key) and self.weight <= self._bound:
            return
        if self._logs.get(log.key) is not log:
            return
        self.weight += weight - self._weights.get(log.key, 0)
        self._weights[log.key] = weight
        if self.weight > self._bound:
            self._evict()

    def _evict(self) -> None:
        """Removes idle logs, least recently used first, until within the bound; busy ones stay."""
        for _ in range(len(self._logs)):
            if self.weight <= self._bound:
                return
            key = next(iter(self._logs))
            if self._logs[key].idle:
                del self._logs[key]
                self.weight -= self._weights.pop(key, 0)
            else:
                self._logs.move_to_end(key)


class QueueLogs:
    """The claim logs of a queue's partitions: sends requests to several of them, and returns the answers.

    Args:
        store: Decides which queues allow claims.
        logs: The logs of this process.
        timing: Decides when claims have expired.
    """

    def __init__(self, store: Store, logs: LogCache, timing: ClaimTiming) -> None:
        self._store = store
        self._logs = logs
        self._timing = timing

    def check(self, queue: Queue, partitions: Sequence[int] | None = None) -> None:
        """Raises ``ClaimsRefused``, or ``InvalidRequest`` if the queue does not have one of the partitions."""
        if (refusal := self._store.claim_logs.claims_refusal(queue)) is not None:
            raise ClaimsRefused(refusal)
        for number in partitions or ():
            if not 1 <= number <= queue.partitions:
                raise InvalidRequest({"partitions": outside_text(number, queue.partitions)})

    async def ask(self, queue: Queue, requests: Mapping[int, LogRequest]) -> dict[int, Any]:
        """Sends requests to the logs of partitions; returns their answers by partition."""
        for number, request in requests.items():
            self._logs.add((queue.qid, number), request)
        return await gather_answers(requests)

    async def query_states(
        self, queue: Queue, query: Callable[[State, int], T], numbers: Sequence[int] | None = None
    ) -> dict[int, T]:
        """Returns the result of ``query`` for each partition.

        Args:
            queue: The queue's row.
            query: Called once per partition, with the state and a time in milliseconds since 1970. Claims that expire
                before it are over for every process.
            numbers: Partitions; None for all.

        Raises:
            ClaimsRefused: The queue's consistency level does not allow claims.
            InvalidRequest: The queue does not have one of the partitions.
        """
        numbers = range(1, queue.partitions + 1) if numbers is None else numbers
        self.check(queue, numbers)

        def query_now(state: State) -> T:
            return query(state, self._timing.expiry_limit(self._store.claim_logs.claim_now()))

        return await self.ask(queue, {number: StateQuery(queue, query_now) for number in numbers})


class ClaimDelivery(msgspec.Struct, gc=False):
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


class PiggybackedAck(msgspec.Struct):
    """Acknowledgements sent with a claim. All attempts of a request share one object, so that they are sent once.

    Attributes:
        receipts: Receipts of the queue that is claimed from.
        texts: The receipts as the caller wrote them, for its answer.
        results: Results of some of these jobs.
        settled: Results of the acknowledgements, in the order of the receipts; None if not known yet.
        in_doubt: Some receipts may have been acknowledged, so an error of the request has the outcome ``unknown``.
    """

    receipts: Sequence[ClaimReceipt] = ()
    texts: Sequence[str] = ()
    results: Mapping[ClaimReceipt, JobResult] = {}
    settled: list[ReceiptOutcome] | None = None
    in_doubt: bool = False

    async def wait(self, settles: Mapping[int, SettleRequest]) -> None:
        """Waits for the results and sets :attr:`settled`; from then on, errors of the request are in doubt.

        Raises:
            QueueyError: The acknowledgement failed. Some receipts may have been acknowledged.
        """
        try:
            settlements = await gather_answers(settles)
        except QueueyError as error:
            # If one receipt was refused, others may have been acknowledged.
            self.in_doubt = self.in_doubt or isinstance(error, TooManyClaims)
            raise
        self.in_doubt = True
        self.settled = order_settlements(settlements, self.receipts)


class _Turn:
    """The current order of a queue's partitions."""

    __slots__ = ("began", "ends", "order")

    def __init__(self, partitions: int) -> None:
        self.order = list(range(1, partitions + 1))
        self.began = self.ends = -1e9


class PartitionRotation:
    """Rotates claims through the partitions of a queue. Thread-safe.

    Claims that arrive during a partition's turn start there. They gather while an entry is appended and share the next
    one, so one append serves many claims and, later, many acknowledgements. A turn ends when its time is up, when the
    partition had no messages, or when another process is found at work there.

    ``draw_start`` returns a random number from 0 to 1, which chooses the partition with which a process begins, so that
    processes drift apart.
    """

    def __init__(self, boottime: Callable[[], float], draw_start: Callable[[], float]) -> None:
        self._boottime = boottime
        self._draw_start = draw_start
        self._lock = threading.Lock()
        self._turns: OrderedDict[int, _Turn] = OrderedDict()

    def order(self, qid: int, partitions: int, last_conflict: LastConflict) -> Sequence[int]:
        """Returns the partitions of a queue in search order. Starts the next turn if the current one is over.

        Do not modify the list.
        """
        now = self._boottime()
        with self._lock:
            turn = self._turns.get(qid)
            if turn is None or len(turn.order) != partitions:
                turn = self._add_queue(qid, partitions)
            self._turns.move_to_end(qid)
            if now >= turn.ends or last_conflict(turn.order[0]) > turn.began:
                self._start_next(turn, now, last_conflict)
            return turn.order

    def end_turn(self, qid: int, number: int) -> None:
        with self._lock:
            turn = self._turns.get(qid)
            if turn is not None and turn.order[0] == number:
                turn.ends = -1e9

    def _add_queue(self, qid: int, partitions: int) -> _Turn:
        turn = self._turns[qid] = _Turn(partitions)
        start = int(self._draw_start() * partitions) % partitions
        turn.order = [*turn.order[start:], *turn.order[:start]]
        if len(self._turns) > MAX_QUEUES:
            self._turns.popitem(last=False)
        return turn

    def _start_next(self, turn: _Turn, now: float, last_conflict: LastConflict) -> None:
        """Starts the turn of the next partition where no other process works; skipped partitions come last."""
        order = turn.order
        free = (i for i in range(1, len(order)) if last_conflict(order[i]) <= now - AVOIDANCE_SECONDS)
        start = next(free, 1)
        turn.order = [*order[start:], *order[:start]]
        turn.began = now
        turn.ends = now + min(MAX_TURN_SECONDS, max(MIN_TURN_SECONDS, MAX_ROTATION_SECONDS / len(order)))


class ClaimSearch:
    """Searches partitions until one has messages; with ``gather``, until the poll's limits are reached."""

    def __init__(self, logs: LogCache, turns: PartitionRotation, queue: Queue, poll: Poll, *, gather: bool) -> None:
        self._logs = logs
        self._turns = turns
        self._queue = queue
        self._poll = poll
        self._gather = gather
        self._requests: list[PollRequest] = []
        self._deliveries: list[ClaimDelivery] = []
        self._decided = math.inf
        """Boot time of the first decision on the claims."""

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
            partitions: Partitions in search order.
            ack: Acknowledgements to send with the claim.
            settles: The requests for ``ack``, by partition. That of the first partition shares the entry of the claim.
            is_late: Returns whether the claims may expire before the caller has the answer.
            complete: Awaited with the messages if any were found.

        Raises:
            GivenUp: The caller cancelled the claim.
            QueueyError: The acknowledgement failed, the claims come too late, or nothing was found and a search failed.
        """
        for number, request in settles.items():
            if number != partitions[0]:
                self._logs.add((self._queue.qid, number), request)
        try:
            failure = await self._search(partitions, settles)
            if settles:
                await ack.wait(settles)
            if complete is not None and self._deliveries:
                await complete(self._deliveries)
        except (asyncio.CancelledError, GivenUp):
            claimed = self._give_up() and self._poll.ttl
            raise GivenUp(
                "unknown" if claimed else combine_outcomes([*settles.values(), *self._requests[-1:]])
            ) from None
        except Exception:
            self._give_up()
            raise
        if failure is not None and not self._deliveries:
            raise failure
        if self._deliveries and self._poll.ttl and is_late(self._decided):
            self._give_up()
            raise too_late_error()
        return self._deliveries

    async def _search(self, partitions: Sequence[int], settles: Mapping[int, SettleRequest]) -> QueueyError | None:
        """Searches the partitions in order; returns the error that ended the search or may have hidden messages.

        Collects the messages in ``_deliveries``, and ends the turn of a partition that had none.
        """
        refused: QueueyError | None = None
        poll: Poll | None = self._poll
        acks = [settles[partitions[0]]] if partitions[0] in settles else []
        for number in partitions:
            if poll is None:
                return None
            request = PollRequest(self._queue, poll, settles.values())
            self._requests.append(request)
            self._logs.add((self._queue.qid, number), *acks, request)
            acks = []
            try:
                claimed = await request.future
            except (TooManyClaims, ClaimUndecided) as error:
                refused, claimed = error, ()  # Other partitions may have messages.
            except QueueyError as error:
                return error
            if self._deliveries and claimed and claimed[0][-1]:  # A suspected message is delivered alone.
                self._logs.add((self._queue.qid, number), make_release_request(self._queue, request.give_up()))
                return None
            if claimed:
                self._decided = min(self._decided, request.decided)
            else:
                self._turns.end_turn(self._queue.qid, number)
            self._deliveries += [
                ClaimDelivery(message, receipt, deliveries, expires / 1000, *marks)
                for message, deliveries, receipt, expires, *marks in claimed
            ]
            poll = self._find_rest()
        return refused

    def _find_rest(self) -> Poll | None:
        """Returns what the poll still requests, or None if it has enough."""
        poll, deliveries = self._poll, self._deliveries
        if not deliveries:
            return poll
        limit = poll.limit - len(deliveries)
        if not self._gather or limit <= 0 or deliveries[-1].suspected:
            return None
        max_bytes = poll.max_bytes - bytes_of(map(message_of, deliveries))
        return Poll(limit, poll.ttl, max_bytes, poll.worker) if max_bytes > 0 else None

    def _give_up(self) -> bool:
        """Releases the claims; returns whether there are any. If the release fails, they expire."""
        claimed = [receipts for request in self._requests if (receipts := request.give_up())]
        for receipts in claimed if self._poll.ttl else ():
            self._logs.add((self._queue.qid, receipts[0].partition), make_release_request(self._queue, receipts))
        return bool(claimed)


def group_by_partition(receipts: Sequence[ClaimReceipt]) -> dict[int, list[ClaimReceipt]]:
    parts: dict[int, list[ClaimReceipt]] = {}
    for receipt in receipts:
        parts.setdefault(receipt.partition, []).append(receipt)
    return parts


def order_settlements(
    settled: Mapping[int, Sequence[ReceiptOutcome]], receipts: Sequence[ClaimReceipt]
) -> list[ReceiptOutcome]:
    if len(settled) == 1:
        [only] = settled.values()
        return [*only]
    remaining = {number: iter(results) for number, results in settled.items()}
    return [next(remaining[receipt.partition]) for receipt in receipts]
