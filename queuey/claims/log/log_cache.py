"""The claim logs in a process's memory, limited by their total size, and requests to all logs of a queue."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from queuey.claims.log.forwarding import Forwarding
from queuey.claims.log.log_requests import ClaimTotals, Key, LogRequest, StateQuery, gather_answers
from queuey.claims.log.partition_log import PartitionLog
from queuey.claims.rules.partition_state import ClaimTiming, State
from queuey.claims.rules.receipts import ClaimReceipt
from queuey.model.errors import ClaimsRefused, InvalidRequest
from queuey.model.messages import Queue
from queuey.model.partitions import outside_text
from queuey.runtime.event_loop import Core
from queuey.runtime.workers import Workers
from queuey.storage import Store

T = TypeVar("T")


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
