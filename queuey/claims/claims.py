"""Claims: each message is given to one caller until it is acknowledged or released, or until its claim expires.

See ``docs/architecture-claims.md``. The methods are coroutines of the service's event loop. A caller may cancel one at
any time: requests already sent are still carried out, and messages claimed for a cancelled caller are released.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import msgspec

from queuey.access.queue_access import QueueAccess
from queuey.api.claims import MAX_STATES, JobStatus
from queuey.claims.expiry_records import ExpiryRecords
from queuey.claims.job_records import JobRecords, JobResult, JobState
from queuey.claims.jobs import JobUseCases, JobWatch
from queuey.claims.log.claim_search import (
    ClaimSearch,
    LogCache,
    PartitionRotation,
    PiggybackedAck,
    QueueLogs,
    group_by_partition,
    order_settlements,
)
from queuey.claims.log.expiry_turns import ExpiryRequest, ExpiryTurn
from queuey.claims.log.log_requests import (
    ChangeRequest,
    ClaimDelivery,
    ClaimTotals,
    ClaimUndecided,
    Key,
    SettleKind,
    SettleRequest,
    StateQuery,
    too_late_error,
)
from queuey.claims.log.move_turns import MoveOrder, MoveRequest, MoveTurn
from queuey.claims.log.partition_log import PartitionLog, SnapshotPolicy
from queuey.claims.log.wakeups import ClaimWakeups
from queuey.claims.overview import ClaimOverview
from queuey.claims.rules.entry_draft import EntryDraft, Poll
from queuey.claims.rules.partition_state import ClaimTiming, State
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptOutcome, ReceiptStatus
from queuey.messages.message_effects import EnsureExpiry
from queuey.model.deadletters import Attempt, holds_dead
from queuey.model.errors import ClaimsRefused, NotAllowed, NotFound, QueueyError, TooManyClaims
from queuey.model.ids import Position
from queuey.model.messages import Location, NewMessage, Queue
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.runtime.metrics import Metrics
from queuey.runtime.waiters import Waiter, WakeSource, Watchers
from queuey.runtime.workers import Workers
from queuey.storage import Store
from queuey.storage.deadlines import GivenUp

T = TypeVar("T")
MAX_PENDING_IDS = 100
"""Max ids in the pending requests to one partition before a claim starts at another one. Larger entries gain little
and leave the other partitions idle."""
MAX_CONCURRENT_WRITES = 4
RETRY_INTERVAL = 1.0
"""Interval in seconds after which a waiting claim is retried that skipped messages which may be free."""


logger = logging.getLogger(__name__)
QUEUE_ERRORS = (NotFound, NotAllowed, ClaimsRefused, TooManyClaims)
"""Errors that concern a single queue, so other queues are still tried."""


class HandlerFailure(msgspec.Struct, frozen=True):
    """Class and text of a handler's error."""

    error: str
    text: str = ""


class ClaimUseCases:
    """Claims, acknowledges, renews and releases messages.

    Every use of a claim log first raises ``ClaimsRefused`` if the queue's consistency level does not allow claims.

    Args:
        store: Stores the logs.
        limits: Limits of one answer.
        metrics: Counts messages out.
        watchers: Wakes waiting claims.
        core: Event loop and clock.
        timing: Decides when claims have expired.
        upkeep: When to write snapshots and truncate a log.
        workers: The other workers of the service, which share the logs' entries; by default no others.
        make_expiry: Makes the records of expiry of these claims. Without it, an expired message that nobody claims
            does not become a dead letter.

    Attributes:
        ensure_expiry: Awaited by use cases that store messages.
        logs: The claim logs, by queue.
        jobs: Single jobs.
        overview: Claims and backlog, for display.
    """

    def __init__(  # noqa: PLR0913 - what claims are made of
        self,
        store: Store,
        limits: Limits,
        metrics: Metrics,
        *,
        watchers: Watchers | None = None,
        core: Core | None = None,
        timing: ClaimTiming | None = None,
        upkeep: SnapshotPolicy | None = None,
        workers: Workers | None = None,
        make_expiry: Callable[[ClaimUseCases], ExpiryRecords] | None = None,
    ) -> None:
        self._store = store
        self._limits = limits
        self._metrics = metrics
        self._watchers = Watchers() if watchers is None else watchers
        self.core = core or Core()
        self._timing = timing or ClaimTiming(partial(getattr, store, "clock_difference"))
        self._upkeep = upkeep or SnapshotPolicy()
        self._totals = ClaimTotals()
        workers = Workers() if workers is None else workers
        self._log_cache = LogCache(self._make_log, limits.claims_memory, workers, self.core, self._totals)
        self.logs = QueueLogs(store, self._log_cache, self._timing)
        self._wakeups = ClaimWakeups(store, self._log_cache, self.core, self._timing)
        self._job_watch = JobWatch(self._log_cache, self.core)
        self._log_cache.after_round_hooks = (
            (self._wakeups.watched, self._wakeups.after_round),
            (self._job_watch.watched, self._job_watch.wake_for),
        )
        self.jobs = JobUseCases(store, self.core, limits, self._timing, self.logs, self._job_watch)
        self.overview = ClaimOverview(store, self.logs, self.core, limits, metrics)
        self._records = JobRecords(store.ledger)
        self._wake_source = WakeSource(self._wakeups.watch, for_all=False)
        self._rotation = PartitionRotation(self.core.boottime, self.core.rng.random)
        self.expiry = None if make_expiry is None else make_expiry(self)
        self.ensure_expiry: EnsureExpiry = _skip_expiry if self.expiry is None else self.expiry.ensure_expiry
        self._record_outbox = _skip_outbox if self.expiry is None else self.expiry.record_outbox

    def _make_log(self, key: Key, after: Callable[[PartitionLog], None]) -> PartitionLog:
        return PartitionLog(
            self._store,
            key,
            self.core,
            self._timing,
            self._limits,
            self._upkeep,
            self._totals,
            after,
            record_outbox=self._record_outbox,
        )

    def start_background_work(self) -> None:
        """Starts the task that searches for expired messages, or wakes it."""
        if self.expiry is not None:
            self.expiry.runner.start_or_wake()

    def end(self) -> asyncio.Task[None] | None:
        """Wakes the task, which ends if the service is stopping, and returns it. Returns None if it has not begun."""
        return None if self.expiry is None else self.expiry.runner.end()

    def statistics(self) -> dict[str, float]:
        return {
            **self._totals.statistics(),
            **self._log_cache.measure(),
            "claims_waiting": self._watchers.count(for_all=False),
        }

    # Claiming

    async def claim(  # noqa: PLR0913 - the options of a claim
        self,
        queue: Queue,
        *,
        limit: int,
        ttl: float,
        waiter: Waiter | None = None,
        partitions: Sequence[int] | None = None,
        max_bytes: int | None = None,
        gather: bool = False,
        ack: PiggybackedAck | None = None,
        worker: str = "",
        states: bool = False,
    ) -> list[ClaimDelivery]:
        """Claims messages for a caller, and counts them as delivered.

        Args:
            queue: The queue's row, already authorized for the caller.
            limit: Max messages.
            ttl: Duration of the claims in seconds. With 0, messages are only shown.
            waiter: The call subscribes it to the queue, so that it is woken when a further attempt may find messages.
            partitions: Partitions to search; None for all.
            max_bytes: Max bytes of the returned messages, not counting the last one; None for the limit of a page.
            gather: Collect messages of several partitions to reach ``limit``; otherwise all are of one partition.
            ack: Receipts to acknowledge along with the claim; those of the first partition share its log entry. The
                results are known before this returns. If the acknowledgement fails, nothing is claimed.
            worker: The caller's name for itself.
            states: Add the last job state to messages that were delivered before, at most ``MAX_STATES`` of them.
                States that cannot be read are omitted.

        Raises:
            ClaimsRefused: The queue's consistency level does not allow claims.
            ClaimUndecided: Some messages may be free soon. The waiter is woken then.
            InvalidRequest: The queue does not have one of the partitions, or a log never had a receipt's entry.
            StoreUnavailable: Its ``outcome`` says whether something may have been claimed or acknowledged. Also raised
                if the claims may expire before the answer arrives; they are released then.
        """
        parts = {} if ack is None or ack.settled is not None else group_by_partition(ack.receipts)
        self.logs.check(queue, [*(partitions or ()), *parts])
        order = self._search_order(queue, partitions, limit)
        if waiter is not None:
            waiter.subscribe([(queue, order, self._wake_source)])
        ack = ack or PiggybackedAck()
        if parts and ack.results:
            await self._write_valid_results(queue, ack.results)
        if parts and parts.keys() != {order[0]} and not self._has_entries(queue, parts):
            # If a receipt names an entry that never existed, nothing may be claimed.
            await self._check_receipts(queue, parts)
        settles = {partition: SettleRequest(queue, "acknowledge", group) for partition, group in parts.items()}
        poll = Poll(limit, ttl, min(max_bytes or self._limits.page_bytes, self._limits.page_bytes), worker)
        search = ClaimSearch(self._log_cache, self._rotation, queue, poll, settles, gather)
        deliveries = search.deliveries
        try:
            failure = await search.run(order)
            if settles:
                await ack.wait(settles)
            if deliveries and ttl and (states or queue.result_ttl):
                await self._complete_deliveries(queue, deliveries, states=states)
        except (asyncio.CancelledError, GivenUp):
            raise GivenUp(search.give_up()) from None
        except Exception:
            search.give_up()
            raise
        if failure is not None and not deliveries:
            self._wake_later(waiter, failure)
            raise failure
        if deliveries and ttl and self._is_late(ttl, search.decided):
            search.give_up()
            raise too_late_error()
        self._metrics.count_delivered(len(deliveries), queue)
        return deliveries

    async def claim_first(
        self,
        accesses: Sequence[QueueAccess],
        claim: Callable[[Queue], Coroutine[Any, Any, list[ClaimDelivery]]],
        waiter: Waiter | None,
        refused: dict[str, QueueyError],
    ) -> tuple[Queue | None, list[ClaimDelivery]]:
        """Claims messages of the first queue that has any; returns the queue and its messages, or None and no messages.

        If the row of a queue was out of date, all queues are tried again.

        Args:
            accesses: Queues in order of preference.
            claim: Calls :meth:`claim` for one queue.
            waiter: As for :meth:`claim`.
            refused: Filled with the error of each queue that this caller, or any caller, may not claim from. The other
                queues are still tried.

        Raises:
            ClaimUndecided: As for :meth:`claim`.
            QueueyError: All queues refused the claim; this is the first error.
        """
        undecided, rows = None, None
        while rows != (rows := [access.queue for access in accesses]):  # Repeat if a row was out of date.
            if waiter is not None:
                waiter.subscribe([(row, range(1, row.partitions + 1), self._wake_source) for row in rows])
            for access in accesses:
                try:
                    deliveries = await access.apply(claim)
                except ClaimUndecided as error:
                    undecided = error
                    continue
                except QUEUE_ERRORS as error:
                    refused[access.queue.name] = error
                    continue
                if deliveries:
                    return access.queue, deliveries
        if refused.keys() >= {access.queue.name for access in accesses}:
            raise next(iter(refused.values()))
        if undecided is not None:
            self._wake_later(waiter, undecided)
            raise undecided
        return None, []

    async def _complete_deliveries(self, queue: Queue, deliveries: list[ClaimDelivery], *, states: bool) -> None:
        if queue.result_ttl:
            now = self._store.clock.now_ms() / 1000
            repeated = [delivery.receipt for delivery in deliveries if delivery.handed_out > 1]
            write = partial(self._records.void_result, queue, time=now)
            await self._write_concurrently([partial(write, receipt) for receipt in repeated])
        if states:
            await self._add_states(queue, deliveries)

    async def _add_states(self, queue: Queue, deliveries: list[ClaimDelivery]) -> None:
        repeated = [delivery for delivery in deliveries if delivery.handed_out > 1][:MAX_STATES]

        try:
            for delivery in repeated:
                state = (await self._records.read(queue, delivery.receipt.partition, delivery.message.position)).state
                delivery.state = None if state is None else state.json
        except QueueyError as error:
            logger.debug("the states of messages delivered again cannot be read: %s", error)

    def _wake_later(self, waiter: Waiter | None, error: QueueyError) -> None:
        if waiter is not None and isinstance(error, ClaimUndecided):
            self.core.loop.call_later(RETRY_INTERVAL, self._watchers.schedule, waiter.wake)

    def _is_late(self, ttl: float, decided: float) -> bool:
        return self.core.boottime() - decided > self._timing.seconds_to_answer(ttl)

    def _search_order(self, queue: Queue, partitions: Sequence[int] | None, limit: int) -> Sequence[int]:
        if queue.partitions == 1:
            return (1,)
        if partitions is not None and len(partitions) == 1:
            return partitions
        order = self._rotation.order(
            queue.qid, queue.partitions, lambda partition: self._log_cache.find_last_conflict((queue.qid, partition))
        )
        if partitions is not None:
            requested = set(partitions)
            order = [partition for partition in order if partition in requested]

        def count_pending(partition: int) -> int:
            return self._log_cache.count_pending_ids((queue.qid, partition))

        has_room = (p for p in order if not (pending := count_pending(p)) or pending + limit <= MAX_PENDING_IDS)
        start = order.index(next(has_room, None) or min(order, key=count_pending))
        return [*order[start:], *order[:start]] if start else order

    # Receipts

    async def acknowledge(
        self, queue: Queue, receipts: Sequence[ClaimReceipt], results: Mapping[ClaimReceipt, JobResult] | None = None
    ) -> list[ReceiptOutcome]:
        """Acknowledges messages, so that they are not delivered again; returns results in the order of the receipts.

        Args:
            queue: The queue's row, already authorized for the caller.
            receipts: Receipts of this queue. Entry number 0 means the message, whichever caller has claimed it.
            results: Results of some of the jobs. Each one is a write to the store, so pass only a few. A queue without
                ``result_ttl`` ignores them.

        Raises:
            ClaimsRefused: The queue's consistency level does not allow claims.
            InvalidRequest: The queue does not have one of the partitions, or a log never had a receipt's entry.
            StoreUnavailable: Its ``outcome`` says whether some receipts may have been acknowledged.
        """
        if results:
            await self._write_valid_results(queue, results)
        return await self._settle(queue, "acknowledge", receipts)

    async def _write_valid_results(self, queue: Queue, results: Mapping[ClaimReceipt, JobResult]) -> None:
        if not queue.result_ttl:
            return
        now = self._store.clock.now_ms() / 1000
        settled = await self._settle(queue, "verify", list(results))
        valid = [settlement.receipt for settlement in settled if settlement.status is ReceiptStatus.ACCEPTED]
        await self._write_concurrently(
            [partial(self._records.write_result, queue, receipt, results[receipt], now) for receipt in valid]
        )

    async def _write_concurrently(self, writes: Sequence[Callable[[], Awaitable[None]]]) -> None:
        async def run(lane: Sequence[Callable[[], Awaitable[None]]]) -> None:
            for write in lane:
                await write()

        await asyncio.gather(
            *(run(writes[first::MAX_CONCURRENT_WRITES]) for first in range(min(MAX_CONCURRENT_WRITES, len(writes))))
        )

    async def renew(self, queue: Queue, receipts: Sequence[ClaimReceipt], ttl: float) -> list[ReceiptOutcome]:
        """Extends claims to at least ``ttl`` seconds from now; 0 releases them.

        An expired claim becomes valid again if no other caller has claimed the message. Results and errors are those of
        :meth:`acknowledge`; ``StoreUnavailable`` is also raised if the claims may expire before the answer arrives.
        """
        return await self._settle(queue, "renew" if ttl else "release", receipts, ttl)

    async def release(
        self,
        queue: Queue,
        receipts: Sequence[ClaimReceipt],
        delay: float | None = None,
        reason: HandlerFailure | None = None,
        *,
        retry: bool = True,
        begun: bool = True,
    ) -> list[ReceiptOutcome]:
        """Ends claims: the messages become available again after ``delay`` seconds.

        Args:
            queue: As for :meth:`acknowledge`, as are results and errors.
            receipts: As for :meth:`acknowledge`. With a reason, each one is a write to the store, so pass only a few.
            delay: Seconds. None means 0, or with a reason the queue's backoff.
            reason: Error of the handler; None records nothing, or ``GivenUp`` if ``retry`` is False.
            retry: If False, the messages become dead letters at once. A dead letter queue delivers them again anyway.
            begun: If False, the attempts do not count, at most 10 times for a message.
        """
        if not retry:
            reason = reason or HandlerFailure("GivenUp")
        if reason is not None:
            await self._record_failures(queue, receipts, reason)
        kind: SettleKind = "release" if reason is None or delay is not None else "fail"
        if not retry and not holds_dead(queue.name):
            kind = "give_up"
        return await self._settle(queue, kind, receipts, delay or 0.0, begun=begun)

    async def set_states(self, queue: Queue, states: Mapping[ClaimReceipt, bytes]) -> list[ReceiptOutcome]:
        """Sets the states of jobs whose receipts are valid. They are informational and last until the message is done.

        Args:
            queue: As for :meth:`acknowledge`, as are results and errors.
            states: JSON by receipt. Each one is a write to the store, so pass only a few.
        """
        settled = await self._settle(queue, "verify", list(states))
        now = self._store.clock.now_ms() / 1000
        for receipt in [result.receipt for result in settled if result.status is ReceiptStatus.ACCEPTED]:
            state = JobState(receipt.number, now, states[receipt])
            await self._records.set_state(queue, receipt.partition, receipt.position, state)
        return settled

    async def _record_failures(self, queue: Queue, receipts: Sequence[ClaimReceipt], reason: HandlerFailure) -> None:
        parts = group_by_partition(receipts)
        self.logs.check(queue, list(parts))
        queries = {partition: StateQuery(queue, partial(_find_workers, group)) for partition, group in parts.items()}
        answers_by_partition = await self.logs.ask(queue, queries)
        now = self._store.clock.now_ms() / 1000
        for receipt, worker in chain.from_iterable(answers_by_partition.values()):
            why = Attempt(number=receipt.number, at=now, worker=worker, error=reason.error, text=reason.text)
            await self._records.add_attempt(queue, receipt.partition, receipt.position, why)

    async def _settle(
        self, queue: Queue, kind: SettleKind, receipts: Sequence[ClaimReceipt], ttl: float = 0.0, *, begun: bool = True
    ) -> list[ReceiptOutcome]:
        """Settles receipts in their logs; returns results in their order. Renewals that come too late raise.

        If receipts of several partitions include one of an entry that never existed, it raises before any change.
        """
        parts = group_by_partition(receipts)
        self.logs.check(queue, list(parts))
        if len(parts) > 1 and not self._has_entries(queue, parts):
            await self._check_receipts(queue, parts)
        requests = {p: SettleRequest(queue, kind, group, ttl, begun=begun) for p, group in parts.items()}
        settled = order_settlements(await self.logs.ask(queue, requests), receipts)
        if settled and kind == "renew" and self._is_late(ttl, min(request.decided for request in requests.values())):
            raise too_late_error()
        return settled

    async def _check_receipts(self, queue: Queue, parts: Mapping[int, Sequence[ClaimReceipt]]) -> None:
        """Raises ``InvalidRequest`` if a receipt names an entry that its log never had."""
        await self.logs.ask(queue, {p: SettleRequest(queue, "check", group) for p, group in parts.items()})

    def _has_entries(self, queue: Queue, parts: Mapping[int, Sequence[ClaimReceipt]]) -> bool:
        return all(self._log_cache.has_entries((queue.qid, partition), group) for partition, group in parts.items())

    # Names

    async def supersede(self, queue: Queue, location: Location) -> None:
        """Ends a message that was removed because a newer value took its name; its receipts become superseded."""
        partition, position = location
        self.logs.check(queue, [partition])
        await self.logs.ask(queue, {partition: ChangeRequest(queue, lambda draft: draft.supersede([position]))})

    async def find_status(self, queue: Queue, location: Location) -> JobStatus | None:
        partition, position = location

        def find(state: State, expiry_limit: int) -> JobStatus | None:
            if position in state.outstanding:
                return state.find_status(position, expiry_limit)
            return None if state.is_done(position) else "waiting"

        return (await self.logs.query_states(queue, find, [partition]))[partition]

    # Moves to another queue

    async def take_move_turn(self, queue: Queue, partition: int, order: MoveOrder) -> MoveTurn:
        """Records the result of a move's last chunk in a partition, and takes its next messages.

        Raises:
            ClaimsRefused: The queue's consistency level does not allow claims, so no more messages can be taken.
            QueueChanged: ``queue`` is out of date.
        """
        if not (order.stop or order.give_back):
            self.logs.check(queue, [partition])
        turns = await self.logs.ask(queue, {partition: MoveRequest(queue, order)})
        turn: MoveTurn = turns[partition]
        return turn

    # Expired messages

    async def keep_expired(self, queue: Queue) -> None:
        self.logs.check(queue)
        partitions = range(1, queue.partitions + 1)
        await self.logs.ask(queue, {p: ChangeRequest(queue, EntryDraft.keep_expired) for p in partitions})

    async def expire(self, queue: Queue, partition: int, start: Position) -> ExpiryTurn:
        """Makes dead letters of a partition's expired messages, beginning at ``start``.

        Raises:
            ClaimsRefused: The queue's consistency level does not allow claims.
            QueueChanged: ``queue`` is out of date.
        """
        self.logs.check(queue, [partition])
        request = ExpiryRequest(queue, self._store.clock.now_ticks(), self._timing.margin, start)
        turn: ExpiryTurn = (await self.logs.ask(queue, {partition: request}))[partition]
        return turn

    # Whole queues

    async def release_all(self, queue: Queue) -> None:
        self.logs.check(queue)
        partitions = range(1, queue.partitions + 1)
        await self.logs.ask(queue, {p: ChangeRequest(queue, EntryDraft.release_all) for p in partitions})


async def _skip_expiry(queue: Queue, items: Sequence[NewMessage], *, is_stored: bool = False) -> None:
    """Does nothing, because these claims have no records of expiry."""


def _skip_outbox(_queue: Queue) -> None:
    """Does nothing, because these claims have no records of expiry."""


def _find_workers(receipts: Sequence[ClaimReceipt], state: State) -> list[tuple[ClaimReceipt, str]]:
    claims = [(receipt, state.outstanding.get(receipt.position)) for receipt in receipts]
    return [
        (receipt, claim.worker)
        for receipt, claim in claims
        if claim is not None and claim.number == receipt.number and claim.secret in {0, receipt.secret}
    ]
