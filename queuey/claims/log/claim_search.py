"""The claim logs in a process's memory, and requests to those of several partitions of a queue.

A claim asks one partition after another, all other requests ask at once. Concurrent claims begin with the same
partition, to share its entries (:class:`PartitionRotation`).
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from queuey.claims.job_records import JobResult
from queuey.claims.log.forwarding import Forwarding
from queuey.claims.log.log_requests import (
    ClaimDelivery,
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
    message_of,
)
from queuey.claims.log.partition_log import PartitionLog
from queuey.claims.rules.entry_draft import Poll
from queuey.claims.rules.partition_state import ClaimTiming, State
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptOutcome
from queuey.model.errors import ClaimsRefused, InvalidRequest, Outcome, QueueyError, TooManyClaims
from queuey.model.messages import Queue, bytes_of
from queuey.model.partitions import outside_text
from queuey.runtime.event_loop import Core
from queuey.runtime.workers import Workers
from queuey.storage import Store

T = TypeVar("T")

AVOIDANCE_SECONDS = 1.0
"""Number of seconds for which a partition comes last after another process was found at work there."""
MIN_TURN_SECONDS, MAX_TURN_SECONDS = 0.004, 0.1
"""Min and max seconds of a turn."""
MAX_ROTATION_SECONDS = 1.0
"""Max seconds until every partition has had its turn, unless turns would be shorter than ``MIN_TURN_SECONDS``."""
MAX_QUEUES = 10_000

LastConflict = Callable[[int], float]
"""Returns the boot time at which another process was last found at work on a partition."""


class LogCache:
    """Returns logs by key: creates missing ones and evicts the least recently used ones.

    A log that is not in memory has no pending ids, no conflict and none of the receipts' entries.

    Args:
        make: Creates a log. Its second argument is called after each round of the log.
        bound: Approximate max bytes of all states together. Logs in use may exceed it.
        workers: The other workers of the service, which may do requests for this one.
        core: Event loop and clock.
        totals: Counters.

    Attributes:
        after_round_hooks: Functions that are called after a round of a log, each with the keys of its logs.
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
        self.after_round_hooks: Sequence[tuple[Mapping[Key, object], Callable[[PartitionLog], None]]] = ()
        self._forwarding = Forwarding(workers, partial(self.add, here=True), core, totals)

    def __len__(self) -> int:
        return len(self._logs)

    def add(self, key: Key, *requests: LogRequest, here: bool = False) -> None:
        """Adds requests to a log, unless another process was at work on it and a worker takes them.

        With ``here``, no other worker may take them.
        """
        log = self._logs.get(key)
        if log is None:
            log = self._logs[key] = self._make(key, self._after_round)
        elif log.last_conflict >= 0 and not here:
            requests = self._forwarding.forward(key, log.last_conflict, requests)
            if not requests:
                return
        self._logs.move_to_end(key)
        log.add(*requests)

    def has_entries(self, key: Key, receipts: Sequence[ClaimReceipt]) -> bool:
        log = self._logs.get(key)
        return log is not None and all(receipt.number <= log.state.number for receipt in receipts)

    def find_last_conflict(self, key: Key) -> float:
        """Returns the boot time at which another process was last found at work on a log; -1e9 if never."""
        log = self._logs.get(key)
        return -1e9 if log is None else log.last_conflict

    def count_pending_ids(self, key: Key) -> int:
        log = self._logs.get(key)
        return 0 if log is None else log.pending_ids

    def measure(self) -> dict[str, float]:
        states = [log.state for log in list(self._logs.values())]
        return {
            "claims_outstanding": sum(len(state.outstanding) for state in states),
            "claims_covers": sum(state.covers.count for state in states),
            "claims_memory_bytes": self.weight,
        }

    def _after_round(self, log: PartitionLog) -> None:
        weight = log.weight
        if weight != self._weights.get(log.key) or self.weight > self._bound:
            self._update_weight(log, weight)
        for keys, hook in self.after_round_hooks:
            if log.key in keys:
                hook(log)

    def _update_weight(self, log: PartitionLog, weight: int) -> None:
        if self._logs.get(log.key) is not log:
            return
        self.weight += weight - self._weights.get(log.key, 0)
        self._weights[log.key] = weight
        if self.weight > self._bound:
            self._evict()

    def _evict(self) -> None:
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
        for partition in partitions or ():
            if not 1 <= partition <= queue.partitions:
                raise InvalidRequest({"partitions": outside_text(partition, queue.partitions)})

    async def ask(self, queue: Queue, requests: Mapping[int, LogRequest]) -> dict[int, Any]:
        for partition, request in requests.items():
            self._logs.add((queue.qid, partition), request)
        return await gather_answers(requests)

    async def query_states(
        self, queue: Queue, query: Callable[[State, int], T], partitions: Sequence[int] | None = None
    ) -> dict[int, T]:
        """Returns the result of ``query`` for each partition.

        Each log begins a round for it, as for a claim: that may delete messages and publish dead letters.

        Args:
            queue: The queue's row.
            query: Called once per partition, with the state and a time in milliseconds since 1970. Claims that expire
                before it are over for every process.
            partitions: Partitions; None for all.

        Raises:
            ClaimsRefused: The queue's consistency level does not allow claims.
            InvalidRequest: The queue does not have one of the partitions.
        """
        partitions = range(1, queue.partitions + 1) if partitions is None else partitions
        self.check(queue, partitions)

        def query_now(state: State) -> T:
            return query(state, self._timing.expiry_limit(self._store.clock.now_ms()))

        return await self.ask(queue, {partition: StateQuery(queue, query_now) for partition in partitions})


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

    def end_turn(self, qid: int, partition: int) -> None:
        with self._lock:
            turn = self._turns.get(qid)
            if turn is not None and turn.order[0] == partition:
                turn.ends = -1e9

    def _add_queue(self, qid: int, partitions: int) -> _Turn:
        turn = self._turns[qid] = _Turn(partitions)
        start = int(self._draw_start() * partitions) % partitions
        turn.order = [*turn.order[start:], *turn.order[:start]]
        if len(self._turns) > MAX_QUEUES:
            self._turns.popitem(last=False)
        return turn

    def _start_next(self, turn: _Turn, now: float, last_conflict: LastConflict) -> None:
        order = turn.order
        free = (i for i in range(1, len(order)) if last_conflict(order[i]) <= now - AVOIDANCE_SECONDS)
        start = next(free, 1)
        turn.order = [*order[start:], *order[:start]]
        turn.began = now
        turn.ends = now + min(MAX_TURN_SECONDS, max(MIN_TURN_SECONDS, MAX_ROTATION_SECONDS / len(order)))


class ClaimSearch(msgspec.Struct):
    """Searches partitions until one has messages; with ``gather``, until the poll's limits are reached.

    Attributes:
        logs: The logs of this process.
        turns: The rotation of the queue's partitions.
        queue: The queue's row.
        poll: Limits of the claim.
        settles: Acknowledgements to send with the claim, by partition. That of the first partition shares its entry.
        gather: Collect messages of several partitions.
        requests: The polls so far.
        deliveries: The claimed messages.
        decided: Boot time of the first decision on the claims.
    """

    logs: LogCache
    turns: PartitionRotation
    queue: Queue
    poll: Poll
    settles: Mapping[int, SettleRequest]
    gather: bool
    requests: list[PollRequest] = []
    deliveries: list[ClaimDelivery] = []
    decided: float = math.inf

    async def run(self, partitions: Sequence[int]) -> QueueyError | None:
        """Searches the partitions in order, and collects messages; ends the turn of a partition that had none.

        Returns the error that ended the search or may have hidden messages.
        """
        first, failure = partitions[0], None
        for partition, settle in self.settles.items():
            if partition != first:
                self.logs.add((self.queue.qid, partition), settle)
        poll = self.poll
        for partition in partitions:
            request = PollRequest(self.queue, poll, self.settles.values())
            self.requests.append(request)
            acks = [self.settles[first]] if partition == first and first in self.settles else []
            self.logs.add((self.queue.qid, partition), *acks, request)
            try:
                claimed: list[ClaimDelivery] = await request.future
            except (TooManyClaims, ClaimUndecided) as error:
                failure, claimed = error, []  # Other partitions may have messages.
            except QueueyError as error:
                return error
            if not claimed:
                self.turns.end_turn(self.queue.qid, partition)
                continue
            if self.deliveries and claimed[0].suspected:  # A suspected message is delivered alone.
                self.logs.add((self.queue.qid, partition), make_release_request(self.queue, request.give_up()))
                return None
            self.decided = min(self.decided, request.decided)
            self.deliveries += claimed
            limit = self.poll.limit - len(self.deliveries)
            if not self.gather or limit <= 0 or claimed[-1].suspected:
                return None
            max_bytes = self.poll.max_bytes - bytes_of(map(message_of, self.deliveries))
            if max_bytes <= 0:
                return None
            poll = Poll(limit, poll.ttl, max_bytes, poll.worker)
        return failure

    def give_up(self) -> Outcome:
        """Releases the claims; returns the outcome for the caller's error. If the release fails, they expire."""
        claimed = [receipts for request in self.requests if (receipts := request.give_up())]
        if not claimed or not self.poll.ttl:
            return combine_outcomes([*self.settles.values(), *self.requests[-1:]])
        for receipts in claimed:
            self.logs.add((self.queue.qid, receipts[0].partition), make_release_request(self.queue, receipts))
        return "unknown"


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
    remaining = {partition: iter(results) for partition, results in settled.items()}
    return [next(remaining[receipt.partition]) for receipt in receipts]
