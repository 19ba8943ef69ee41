"""Records of the queues whose unfinished messages become dead letters when they expire.

A worker may never claim from a queue again, so a process must search the queue when messages expire. For that, a queue
has a record of :mod:`queuey.runtime.due_work` from before the first such message is stored until none is left. The
record's due time is the time of the next search. Its value has two more times:

* ``until``: no process removes the record earlier. Posts rely on it until then without reading it again. A post checks
  this before it stores messages, and again before it acknowledges them, because the process may have been paused.
* ``shortest``: the shortest TTL of these posts. A message that a search has not seen was posted after its horizon, so
  it expires at least ``shortest`` later. The next search is due a minute after that, or when a seen message expires.

A queue also has a record without a TTL, and with another name, while its logs may have dead letters that are not
published: from before an entry makes them until a search finds none. If the process ends, another one publishes them
when the record is due.

The claim logs of the queue are marked before the record of messages is created, or before its number of partitions is
raised. So readers of these logs see expired messages.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from functools import partial
from threading import Event
from typing import Protocol

import msgspec
from msgspec.structs import replace

from queuey.access.queue_access import find_same_queue
from queuey.claims.log.claim_search import QueueLogs
from queuey.claims.log.expiry_turns import ExpiryTurn
from queuey.claims.log.follow_ups import OVERDUE_SECONDS
from queuey.claims.rules.expiry import ticks_until_due
from queuey.model.errors import QueueChanged, QueueyError, StoreBusy, StoreUnavailable, in_doubt
from queuey.model.ids import FIRST, TICKS_MAX, TICKS_PER_SECOND, Position
from queuey.model.messages import NewMessage, Queue, Record
from queuey.runtime.due_work import DueRunner, DueTiming, DueWork, NextStep
from queuey.runtime.event_loop import Core
from queuey.storage import Store, change_record

KIND = "expiry"
TIMING = DueTiming(search=300.0, overdue=60.0, max_pause=60.0, at_once=32)
"""Many steps run concurrently, because a step may take long."""
MIN_RELIANCE_SECONDS, MAX_RELIANCE_SECONDS = 600, 86_400
"""Min and max seconds for which posts rely on a record; in between, the TTL of their messages."""
OUTBOX_RELIANCE_SECONDS = 8
"""Seconds for which processes that make dead letters rely on a record; it is due soon after."""
LEASE_SECONDS = 60
"""Seconds for which other processes do not take a step that one has begun."""
MAX_STEP_SECONDS = 10.0
"""Max seconds of a step, approximately; the next step continues its search."""
MAX_CONCURRENT_PARTITIONS = 8
MAX_SEARCH_DELAY = 60
"""Max seconds between the expiry of a message that was posted after a search and the next search."""
MIN_STEP_INTERVAL = 1.0
REST_RATIO, MAX_REST = 100, 3600.0
"""Pause after a step that found no expired messages: its ratio to the time of the step, and its max seconds."""
MAX_RECORDS = 10_000
_MAX_ATTEMPTS = 20


class ExpiryRecord(msgspec.Struct, frozen=True, array_like=True):
    """Value of a record.

    Attributes:
        queue: Name of the queue.
        partitions: Number of partitions, from the first on, whose claim logs are marked; 0 in a record of dead letters.
        until: Time before which no process removes the record (ticks).
        shortest: Shortest TTL of a message, in seconds.
    """

    queue: str
    partitions: int
    until: int
    shortest: int

    def suffices_for(self, queue: Queue, ttl: int, now: int) -> bool:
        has_all = not ttl or self.partitions >= queue.partitions
        return self.is_in_force(now) and has_all and self.shortest <= ttl

    def is_in_force(self, now: int) -> bool:
        """Returns whether ``until`` is in the future and was not set by a clock that was ahead."""
        return now < self.until <= now + MAX_RELIANCE_SECONDS * TICKS_PER_SECOND


class ExpirySearch(msgspec.Struct):
    """Result of a search.

    Attributes:
        given_up: Number of messages that become dead letters.
        following: Time at which the first of the seen messages may become a dead letter (ticks).
        horizon: Time before which all messages were seen (ticks).
        is_unfinished: True if a message is not done, or a dead letter is not published.
        is_cut: True if the search must continue at once.
    """

    given_up: int = 0
    following: int = TICKS_MAX
    horizon: int = TICKS_MAX
    is_unfinished: bool = False
    is_cut: bool = False

    @property
    def is_over(self) -> bool:
        return not (self.is_unfinished or self.is_cut)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ExpiryRecord).decode


class SearchedClaims(Protocol):
    """The claims that are searched for expired messages: :class:`~queuey.claims.claims.ClaimUseCases`."""

    @property
    def logs(self) -> QueueLogs: ...
    async def keep_expired(self, queue: Queue) -> None: ...
    async def expire(self, queue: Queue, partition: int, start: Position) -> ExpiryTurn: ...


class ExpiryRecords(DueWork):
    """Creates the records, takes their steps, and removes them.

    Args:
        store: Stores the records.
        claims: The claims of this process.
        core: Event loop and clock.
        stopping: Set when the service ends.

    Attributes:
        runner: Takes the steps.
    """

    kind = KIND

    def __init__(self, store: Store, claims: SearchedClaims, core: Core, stopping: Event) -> None:
        self._store = store
        self._claims = claims
        self._core = core
        self.runner = DueRunner(store, self, core, stopping, TIMING)
        self._records: OrderedDict[int, tuple[ExpiryRecord, float]] = OrderedDict()
        """Records by qid, those of dead letters by -qid, each with the boot time until which processes rely on it: the
        wall clock may be set back."""
        self._changes: dict[int, asyncio.Task[None]] = {}

    # Posts

    async def ensure_expiry(self, queue: Queue, items: Sequence[NewMessage], *, is_stored: bool = False) -> None:
        """Makes sure that a process searches the queue for these messages when they expire.

        Args:
            queue: The row by which the messages are stored.
            items: New messages; only messages with ``kept`` matter.
            is_stored: The messages may already be stored, so an error leaves the outcome in doubt.

        Raises:
            QueueChanged: ``queue`` is out of date; not raised with ``is_stored``.
            StoreUnavailable: The store failed; see ``outcome``.
        """
        ttl = min((item.ttl for item in items if item.kept), default=0)
        if not ttl or self._is_ensured(queue, ttl):
            return
        present: Queue | None = queue
        try:
            for _ in range(_MAX_ATTEMPTS):
                if present is None or self._is_ensured(present, ttl):
                    return
                try:
                    await self._join_or_start_change(present, ttl)
                except QueueChanged:
                    if not is_stored:
                        raise
                    present = await find_same_queue(self._store, queue.application, queue.name, queue.qid)
        except QueueyError as error:
            if is_stored:
                raise in_doubt(error) from error
            if isinstance(error, StoreUnavailable):
                raise StoreUnavailable(str(error), retry_after=error.retry_after) from error
            raise
        raise StoreBusy(f"The expiry record of queue {queue.name!r} changes too fast. Try again.")

    def record_outbox(self, queue: Queue) -> Awaitable[None] | None:
        """Makes sure that a process searches the queue for unpublished dead letters; returns None if that is known."""
        _, until = self._records.get(-queue.qid, (None, 0.0))
        return None if self._core.boottime() < until else self._join_or_start_change(queue, 0)

    def _now(self, ahead: float = 0.0) -> int:
        return self._store.clock.now_ticks() + int(ahead * TICKS_PER_SECOND)

    def _is_ensured(self, queue: Queue, ttl: int) -> bool:
        record, until = self._records.get(queue.qid, (None, 0.0))
        if record is None or self._core.boottime() >= until:
            return False
        return record.suffices_for(queue, ttl, self._now(self._store.clock_difference))

    async def _join_or_start_change(self, queue: Queue, ttl: int) -> None:
        """Waits for the queue's running change, or starts one.

        The running change may be for another TTL, so the caller must check again afterwards.
        """
        key = queue.qid if ttl else -queue.qid
        change = self._changes.get(key)
        if change is None:
            change = self._changes[key] = asyncio.ensure_future(self._make_record(queue, ttl))
            change.add_done_callback(partial(self._forget_change, key))
        await asyncio.shield(change)

    def _forget_change(self, key: int, change: asyncio.Task[None]) -> None:
        del self._changes[key]
        if not change.cancelled():
            change.exception()  # Retrieved here because its callers may have given up.

    async def _make_record(self, queue: Queue, ttl: int) -> None:
        """Creates or extends a queue's record unless it is sufficient; before, marks the claim logs if needed.

        A ``ttl`` of 0 means the record of dead letters.
        """
        key, partitions = (queue.qid, queue.partitions) if ttl else (-queue.qid, 0)
        value = ExpiryRecord(queue.name, 0, 0, 0)

        async def decide(record: Record | None) -> Record | None:
            nonlocal value
            before = None if record is None else _decode(record.value)
            soon = self._now(self._store.clock_difference + MIN_STEP_INTERVAL)
            if before is not None and before.suffices_for(queue, ttl, soon):
                value = before
                return None
            if partitions and (before is None or before.partitions < partitions):
                await self._claims.keep_expired(queue)
            now = self._now()
            seconds = min(max(ttl, MIN_RELIANCE_SECONDS), MAX_RELIANCE_SECONDS) if ttl else OUTBOX_RELIANCE_SECONDS
            until = now + seconds * TICKS_PER_SECOND
            value = ExpiryRecord(queue.name, partitions, until, ttl)
            due = now + ttl * TICKS_PER_SECOND + ticks_until_due(self._store.clock_difference)
            due = due if ttl else until + 2 * self._margin
            if record is None or before is None:
                return Record(KIND, queue.application, _record_name(key), _encode(value), due)
            value = ExpiryRecord(
                queue.name,
                max(partitions, before.partitions),
                max(until, before.until) if before.is_in_force(now) else until,
                min(ttl, before.shortest),
            )
            return replace(record, value=_encode(value), due=min(due, record.due))

        saved = await change_record(self._store.records, (KIND, queue.application, _record_name(key)), decide)
        if saved is not None:
            self.runner.plan(saved)
        self._remember(key, value)

    def _remember(self, key: int, record: ExpiryRecord) -> None:
        seconds = (record.until - self._now(self._store.clock_difference)) / TICKS_PER_SECOND
        self._records[key] = record, self._core.boottime() + max(seconds, MIN_STEP_INTERVAL)
        self._records.move_to_end(key)
        if len(self._records) > MAX_RECORDS:
            self._records.popitem(last=False)

    # Steps

    async def step(self, record: Record) -> NextStep | None:
        # Searches a queue for expired messages and sets the next due time. Removes the record if the queue is gone,
        # or if all is done and no post relies on the record.
        value = _decode(record.value)
        queue = await find_same_queue(self._store, record.application, value.queue, abs(int(record.name, 16)))
        if queue is None:
            await self._remove(record)
            return None
        now, began = self._now(), self._core.boottime()
        if value.partitions:
            record = await self._save(replace(record, due=now + LEASE_SECONDS * TICKS_PER_SECOND))
        search = self._search(queue, began + MAX_STEP_SECONDS) if value.partitions else self._search_outboxes(queue)
        result = await search
        if self._store.messages.exact_horizon:  # The horizon is the last id, which may be old.
            result.horizon = max(result.horizon, now)
        if result.is_over and self._may_remove(value, now):
            await self._remove(record)
            return None
        due = self._next_due_ticks(value, result, self._core.boottime() - began)
        record = await self._save(replace(record, due=due))
        return NextStep(record.version, record.due)

    def _may_remove(self, value: ExpiryRecord, began: int) -> bool:
        """Returns whether a search that began at ``began`` (ticks) has seen all messages that rely on the record."""
        return not (value.is_in_force(began - self._margin) or value.is_in_force(began + self._margin))

    @property
    def _margin(self) -> int:
        return int((self._store.clock_difference + MIN_STEP_INTERVAL) * TICKS_PER_SECOND)

    def _next_due_ticks(self, value: ExpiryRecord, result: ExpirySearch, took: float) -> int:
        """Returns when to search again (ticks), at the earliest after a pause.

        That is when a seen or an unseen message may expire, or when the record may be removed; a search that was cut
        continues after ``MIN_STEP_INTERVAL``. If nothing had expired, the pause grows with ``took``, the seconds of
        the step.
        """
        if result.is_cut:
            return self._now(MIN_STEP_INTERVAL)
        pause = MIN_STEP_INTERVAL if result.given_up else min(max(MIN_STEP_INTERVAL, REST_RATIO * took), MAX_REST)
        unseen = result.horizon + (value.shortest + MAX_SEARCH_DELAY) * TICKS_PER_SECOND
        removable = value.until + 2 * self._margin if result.is_over else TICKS_MAX
        return max(min(result.following, unseen, removable), self._now(pause))

    async def _search(self, queue: Queue, deadline: float) -> ExpirySearch:
        result, room = ExpirySearch(), asyncio.Semaphore(MAX_CONCURRENT_PARTITIONS)

        async def search(partition: int) -> None:
            async with room:
                await self._search_partition(queue, partition, result, deadline)

        await asyncio.gather(*map(search, range(1, queue.partitions + 1)))
        return result

    async def _search_outboxes(self, queue: Queue) -> ExpirySearch:
        sizes = await self._claims.logs.query_states(queue, lambda state, _limit: len(state.outbox))
        following = self._now(OVERDUE_SECONDS) if any(sizes.values()) else TICKS_MAX
        return ExpirySearch(sum(sizes.values()), following, is_unfinished=following < TICKS_MAX)

    async def _search_partition(self, queue: Queue, partition: int, result: ExpirySearch, deadline: float) -> None:
        start = FIRST
        while True:
            turn = await self._claims.expire(queue, partition, start)
            result.given_up += turn.given_up
            result.following = min(result.following, turn.following)
            result.horizon = min(result.horizon, turn.horizon)
            result.is_unfinished = result.is_unfinished or turn.is_unfinished
            if turn.next is None:
                return
            if (turn.next <= start and not turn.given_up) or self._core.boottime() > deadline:
                result.is_cut = True
                return
            start = turn.next

    async def _save(self, record: Record) -> Record:
        changed: Record = await self._store.records.set_record(record)
        return changed

    async def _remove(self, record: Record) -> None:
        await self._store.records.remove_record(record)


def _record_name(key: int) -> str:
    return f"{key:x}"
