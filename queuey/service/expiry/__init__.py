"""Records of the queues that may have unfinished messages which become dead letters when they expire.

Perhaps no worker ever claims from a queue again. So a process has to search it when messages expire, and only then: a
queue has a record of the durable runner (:mod:`queuey.service.due_work`) from before such a message is stored until
nothing is left of them. The next search is its due time. Its value has two more times:

* ``until``: nobody removes the record before. So posts of a process rely on it until then, without a call. A post
  checks this before it stores messages, and again before it acknowledges them, since a process may stand still.
* ``shortest``: the shortest TTL of these posts. What a search has not seen was posted after its horizon, and ends that
  much later at the earliest. So the next search is due a minute after that, or when a message ends that it has seen.

The logs of the queue are marked before the record is made, or says that the queue has more partitions: so readers see
messages that have ended, and version 0.1.0, which would pass them, refuses these logs.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from queuey.claims.expiry import due_after
from queuey.errors import NotFound, QueueChanged, QueueyError, RecordChanged, StoreBusy, StoreUnavailable, in_doubt
from queuey.ids import FIRST, TICKS_MAX, TICKS_PER_SECOND
from queuey.messages import NewMessage, Queue, Record
from queuey.service.claims import ClaimUseCases
from queuey.service.core import Core
from queuey.service.due_work import DueTiming, DueWork, NextStep
from queuey.storage import Store

KIND = "expiry"
TIMING = DueTiming(search=300.0, overdue=60.0, max_pause=60.0, at_once=32)
"""A step may take long, and those of other queues do not wait for it."""
MIN_RELIANCE, MAX_RELIANCE = 600, 86_400
"""Min and max seconds for which posts rely on a record; between them as long as their messages live."""
LEASE = 60
"""Number of seconds for which other processes leave a step to the one that takes it."""
MAX_SECONDS = 10.0
"""Max seconds of a step, about; the next one goes on."""
AT_ONCE = 8
"""Max partitions that are searched at the same time."""
MAX_LATE = 60
"""Number of seconds by which a message that was posted after a search may be given up late."""
PAUSE = 1.0
"""Min interval in seconds between two steps."""
REST_RATIO, MAX_REST = 100, 3600.0
"""Ratio of the rest after a step that has found nothing to do to the time of the step, and max seconds of it."""
MAX_RECORDS = 10_000
"""Max queues whose records a process remembers."""
_TRIES = 20
"""Max attempts at a change that others interfere with."""


class ExpiryRecord(msgspec.Struct, frozen=True, array_like=True):
    """Value of a record.

    Attributes:
        queue: Its name.
        partitions: Number of partitions whose logs are marked, from the first on.
        until: Nobody removes it before (ticks).
        shortest: The shortest TTL of a message (seconds).
    """

    queue: str
    partitions: int
    until: int
    shortest: int

    def holds(self, queue: Queue, ttl: int, now: int) -> bool:
        """Returns whether posts may rely on it."""
        return self.is_in_force(now) and self.partitions >= queue.partitions and self.shortest <= ttl

    def is_in_force(self, now: int) -> bool:
        """Returns whether ``until`` is to come, and was not chosen by a clock that was ahead."""
        return now < self.until <= now + MAX_RELIANCE * TICKS_PER_SECOND


class Search(msgspec.Struct):
    """Result of a search.

    Attributes:
        given_up: Messages that become dead letters.
        following: When the first message that was seen may be given up (ticks).
        horizon: What was posted before was seen (ticks).
        is_unfinished: A message is not done, or a dead letter is not published.
        is_cut: There is more to do at once.
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


class ExpiryRecords(DueWork):
    """Makes the records, takes their steps, and removes them.

    Attributes:
        planned: Is called with a record that was made or changed here.
    """

    kind = KIND

    def __init__(self, store: Store, claims: ClaimUseCases, core: Core) -> None:
        self._store = store
        self._claims = claims
        self._core = core
        self._records: OrderedDict[int, tuple[ExpiryRecord, float]] = OrderedDict()
        """Each with the boot time up to which it is relied on: the clock may be set back after it was removed."""
        self._changes: dict[int, asyncio.Task[None]] = {}
        self.planned: Callable[[Record], None] = lambda _record: None

    # Posts

    async def rely(self, queue: Queue, items: Sequence[NewMessage], *, is_stored: bool = False) -> None:
        """Makes sure that somebody searches a queue for these messages when they expire.

        Args:
            queue: The row that they are stored by.
            items: New messages; only kept ones matter.
            is_stored: They may be stored, so an error is in doubt.

        Raises:
            QueueChanged: ``queue`` is out of date; not if the messages are stored.
            StoreUnavailable: See its ``outcome``.
        """
        ttl = min((item.ttl for item in items if item.kept), default=0)
        if not ttl or self._may_rely(queue, ttl):
            return
        present: Queue | None = queue
        try:
            for _ in range(_TRIES):
                if present is None or self._may_rely(present, ttl):
                    return
                try:
                    await self._change(present, ttl)
                except QueueChanged:
                    if not is_stored:
                        raise
                    present = await self._present(queue.application, queue.name, queue.qid)
        except QueueyError as error:
            if is_stored:
                raise in_doubt(error) from error
            if isinstance(error, StoreUnavailable):
                raise StoreUnavailable(str(error), retry_after=error.retry_after) from error
            raise
        raise StoreBusy(f"The record of queue {queue.name!r} changes too fast. Try again.")

    def _now(self, ahead: float = 0.0) -> int:
        return self._store.claim_logs.claim_time() + int(ahead * TICKS_PER_SECOND)

    def _may_rely(self, queue: Queue, ttl: int) -> bool:
        record, until = self._records.get(queue.qid, (None, 0.0))
        if record is None or self._core.boottime() >= until:
            return False
        return record.holds(queue, ttl, self._now(self._store.clock_difference))

    async def _change(self, queue: Queue, ttl: int) -> None:
        """Makes or changes the record of a queue, once for all posts of the process that need it."""
        change = self._changes.get(queue.qid)
        if change is None:
            change = self._changes[queue.qid] = asyncio.ensure_future(self._make(queue, ttl))
            change.add_done_callback(partial(self._changed, queue.qid))
        await asyncio.shield(change)

    def _changed(self, qid: int, change: asyncio.Task[None]) -> None:
        del self._changes[qid]
        if not change.cancelled():
            change.exception()  # Its callers may have given up.

    async def _make(self, queue: Queue, ttl: int) -> None:
        name = _name_of(queue.qid)
        for _ in range(_TRIES):
            record = await self._store.records.record(KIND, queue.application, name)
            before = None if record is None else _decode(record.value)
            if before is not None and before.holds(queue, ttl, self._now(self._store.clock_difference + PAUSE)):
                self._remember(queue.qid, before)
                return
            if before is None or before.partitions < queue.partitions:
                await self._claims.keep(queue)
            now = self._now()
            until = now + min(max(ttl, MIN_RELIANCE), MAX_RELIANCE) * TICKS_PER_SECOND
            value = ExpiryRecord(queue.name, queue.partitions, until, ttl)
            due = now + ttl * TICKS_PER_SECOND + due_after(self._store.clock_difference)
            if record is None or before is None:
                record = Record(KIND, queue.application, name, _encode(value), due)
            else:
                value = ExpiryRecord(
                    queue.name,
                    max(queue.partitions, before.partitions),
                    max(until, before.until) if before.is_in_force(now) else until,
                    min(ttl, before.shortest),
                )
                record = replace(record, value=_encode(value), due=min(due, record.due))
            try:
                record = await self._store.records.set_record(record)
            except RecordChanged:
                continue
            self.planned(record)
            self._remember(queue.qid, value)
            return
        raise StoreBusy(f"The record of queue {queue.name!r} changes too fast. Try again.")

    def _remember(self, qid: int, record: ExpiryRecord) -> None:
        seconds = (record.until - self._now(self._store.clock_difference)) / TICKS_PER_SECOND
        self._records[qid] = record, self._core.boottime() + seconds
        self._records.move_to_end(qid)
        if len(self._records) > MAX_RECORDS:
            self._records.popitem(last=False)

    # Steps

    async def prepare(self, ahead: float) -> None:
        pass

    async def step(self, record: Record) -> NextStep | None:
        value = _decode(record.value)
        queue = await self._present(record.application, value.queue, int(record.name, 16))
        if queue is None:
            await self._remove(record)
            return None
        now, began = self._now(), self._core.boottime()
        record = await self._set(replace(record, due=now + LEASE * TICKS_PER_SECOND))
        result = await self._search(queue, began + MAX_SECONDS)
        if self._store.messages.exact_horizon:  # It is the last id of all, however long ago that was made.
            result.horizon = max(result.horizon, now)
        if result.is_over and self._may_remove(value, now):
            await self._remove(record)
            return None
        due = self._next(value, result, self._core.boottime() - began)
        record = await self._set(replace(record, due=due))
        return NextStep(record.version, record.due)

    def _may_remove(self, value: ExpiryRecord, began: int) -> bool:
        """Returns whether a search that began then (ticks) has seen all that was posted with the record."""
        return not (value.is_in_force(began - self._margin) or value.is_in_force(began + self._margin))

    @property
    def _margin(self) -> int:
        return int((self._store.clock_difference + PAUSE) * TICKS_PER_SECOND)

    def _next(self, value: ExpiryRecord, result: Search, took: float) -> int:
        """Returns when the next step is due, after one that took ``took`` seconds."""
        if result.is_cut:
            return self._now(PAUSE)
        rest = PAUSE if result.given_up else min(max(PAUSE, REST_RATIO * took), MAX_REST)
        unseen = result.horizon + (value.shortest + MAX_LATE) * TICKS_PER_SECOND
        removable = value.until + 2 * self._margin if result.is_over else TICKS_MAX
        return max(min(result.following, unseen, removable), self._now(rest))

    async def _search(self, queue: Queue, deadline: float) -> Search:
        """Searches all partitions."""
        result, room = Search(), asyncio.Semaphore(AT_ONCE)

        async def search(partition: int) -> None:
            async with room:
                await self._search_partition(queue, partition, result, deadline)

        await asyncio.gather(*map(search, range(1, queue.partitions + 1)))
        return result

    async def _search_partition(self, queue: Queue, partition: int, result: Search, deadline: float) -> None:
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

    async def _set(self, record: Record) -> Record:
        changed: Record = await self._store.records.set_record(record)
        return changed

    async def _remove(self, record: Record) -> None:
        await self._store.records.remove_record(record)

    async def _present(self, application: str, name: str, qid: int) -> Queue | None:
        """Returns the queue's present row, or None if it was purged or deleted: its messages are gone."""
        try:
            queue: Queue = await self._store.catalogue.queue(application, name, fresh=True)
        except NotFound:
            return None
        return queue if queue.qid == qid else None


def _name_of(qid: int) -> str:
    return f"{qid:x}"
