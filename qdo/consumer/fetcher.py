"""Prefetches messages: keeps read calls in flight for all partitions that need messages.

The fetcher has no loop. Whenever something changes (messages were handed out, an answer arrived, a partition was
added), :meth:`Fetcher.kick` plans again and starts a task for each call. The answer to a call counts for a partition
only if the partition still belongs to that call: it was not revoked or moved meanwhile.

**The next calls** are planned by pure functions. Partitions that are known to have more messages are read at once, few
partitions per call and many messages of each. Partitions that were not read yet are read at once, too, all together.
Empty partitions share long polls. A poll is never cancelled to add a partition: the service would keep its slot, one of
a few, until the wait is over. Instead, new partitions wait in a separate poll that ends at the same time, and then all
share one. If there are too many polls, new partitions are read in turn without waiting.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from random import uniform
from typing import NamedTuple

from qdo.consumer.buffer import FetchBuffer
from qdo.group.offsets import PartitionOwnership
from qdo.group.refusals import Refusals
from qdo.loops import cancel
from qdo.partitions import Partition, Queue
from qdo.settings import ConsumerSettings
from queuey.client import (
    EARLIEST,
    ApiError,
    AsyncClient,
    ClientError,
    Message,
    NotAllowed,
    NotAuthenticated,
    Page,
    Query,
    QueueNotFound,
    QueueRead,
    RetryPolicy,
    TooManyWaiters,
    id_after,
)

MAX_QUEUES_PER_CALL = 100
"""Max queues that the service reads in one call."""
MAX_PARTITIONS_PER_CALL = 1000
"""Max partitions to read in one call."""
MAX_READS = 2
"""Max concurrent calls that do not wait."""
MIN_READ_MESSAGES = 100
"""Min messages per partition for which a read is worthwhile when the buffer has too little space for all."""
POLL_MERGE_INTERVAL = 0.5
"""Interval within which the ends of two polls count as one, so that they are merged, in seconds."""
_partition_of = attrgetter("partition")


class BufferSpace(NamedTuple):
    """Free space in the fetch buffer.

    Attributes:
        free: Max further messages over all partitions.
        low: Whether the buffer is so empty that partitions with buffered messages may be read, too.
        reserve: Messages that a partition without buffered messages may always read.
    """

    free: int
    low: bool
    reserve: int


class InFlightCalls(NamedTuple):
    """Calls in flight.

    Attributes:
        reads: Number of calls that do not wait.
        polls: The end of the wait of each poll.
        max_polls: Max polls.
    """

    reads: int
    polls: Sequence[float]
    max_polls: int


class PlannedCall(NamedTuple):
    """A call to make.

    Attributes:
        partitions: The partitions to read.
        limit: Max messages of each partition.
        wait: Seconds to wait if there are no messages.
    """

    partitions: tuple[PartitionOwnership, ...]
    limit: int
    wait: float = 0.0


class FetchPlan(NamedTuple):
    """Calls to make now.

    Attributes:
        calls: The calls.
        recheck: When to plan again even if nothing changes, if ever.
    """

    calls: list[PlannedCall]
    recheck: float | None = None


def compute_free_space(
    messages: int, size: int, partitions: int, *, prefetch_messages: int, prefetch_bytes: int
) -> BufferSpace:
    """Returns the free space if the buffer holds this many messages and bytes of this many partitions.

    A quarter of ``prefetch_messages`` is the reserve, in equal shares. With ``prefetch_bytes`` or more in the buffer
    nothing is free, and the reserve is one message.
    """
    reserved = prefetch_messages // 4
    common = max(1, prefetch_messages - reserved)
    if size >= prefetch_bytes:
        return BufferSpace(0, low=False, reserve=1)
    free = max(0, common - messages)
    return BufferSpace(free, low=2 * free >= common, reserve=max(1, reserved // max(1, partitions)))


def plan_fetches(
    wants: Iterable[PartitionOwnership],
    room: BufferSpace,
    pending_calls: InFlightCalls,
    now: float,
    *,
    page: int,
    wait: float,
) -> FetchPlan:
    """Decides which calls to make: first for partitions that were never read, then for those with more messages.

    Empty ones share polls. A partition with buffered messages is left out, unless the buffer is low and the partition
    has less than a page in it.

    Args:
        wants: The readable partitions that are not part of a call, in the order in which they became readable.
        room: The free space.
        pending_calls: The calls in flight.
        now: The present time of any monotonic clock.
        page: Max messages of one partition in a call.
        wait: Max seconds that a poll waits.
    """
    sure: list[PartitionOwnership] = []
    unknown: list[PartitionOwnership] = []
    dry: list[PartitionOwnership] = []
    for want in wants:
        if not want.count or (room.low and want.count < page):
            (sure if want.more else unknown if want.more is None else dry).append(want)
    reads = max(0, MAX_READS - pending_calls.reads)
    # Partitions without a first read come first: busy partitions always have more and would starve them.
    asks = _plan_calls_for_all(unknown, room, page, 0.0)[:reads]
    if sure:
        asks += _plan_reads_of_few(sure, room, page, reads - len(asks))
    if not dry:
        return FetchPlan(asks)
    polls, recheck = _plan_polls(dry, room, pending_calls, now, page=page, wait=wait, reads=reads - len(asks))
    return FetchPlan(asks + polls, recheck)


def _plan_polls(
    dry: list[PartitionOwnership],
    room: BufferSpace,
    pending_calls: InFlightCalls,
    now: float,
    *,
    page: int,
    wait: float,
    reads: int,
) -> tuple[list[PlannedCall], float | None]:
    """Plans polls that end with the earliest one in flight, or reads if there are too many polls.

    Returns the calls, and when to plan again: no poll is planned if the earliest one ends soon.
    """
    # Ignore overdue polls: their connection is lost or the service is slow.
    ends = [end for end in pending_calls.polls if end + POLL_MERGE_INTERVAL > now]
    if ends:
        if min(ends) - now < POLL_MERGE_INTERVAL:
            return [], min(ends) + POLL_MERGE_INTERVAL
        wait = min(wait, min(ends) - now)
    places = pending_calls.max_polls - len(pending_calls.polls)
    if places <= 0:
        return _plan_calls_for_all(dry, room, page, 0.0)[: max(0, reads)], None
    return _plan_calls_for_all(dry, room, page, wait)[:places], None


def _plan_reads_of_few(wants: list[PartitionOwnership], room: BufferSpace, page: int, reads: int) -> list[PlannedCall]:
    """Reads as many partitions as the space allows with worthwhile reads; without space, a little of each.

    If no read is in flight, the partitions are divided between two calls: the service prepares one answer while the
    other is processed, and from then on the calls alternate.
    """
    if not room.free:
        return [PlannedCall(next(_group_into_calls(wants)), min(page, room.reserve))][:reads]
    chosen = wants[: max(1, room.free // min(MIN_READ_MESSAGES, page))]
    limit = min(page, max(MIN_READ_MESSAGES, room.free // len(chosen)))
    first = -(-len(chosen) // max(1, reads))
    batches = [chosen[start : start + first] for start in range(0, len(chosen), first)]
    return [PlannedCall(next(_group_into_calls(batch)), limit) for batch in batches][:reads]


def _plan_calls_for_all(
    wants: list[PartitionOwnership], room: BufferSpace, page: int, wait: float
) -> list[PlannedCall]:
    limit = min(page, max(room.reserve, room.free // max(1, len(wants))))
    return [PlannedCall(call, limit, wait) for call in _group_into_calls(sorted(wants, key=_partition_of))]


def _group_into_calls(wants: Iterable[PartitionOwnership]) -> Iterator[tuple[PartitionOwnership, ...]]:
    call: list[PartitionOwnership] = []
    queues: set[Queue] = set()
    for want in wants:
        queue = want.partition.queue
        if len(call) == MAX_PARTITIONS_PER_CALL or (len(queues) == MAX_QUEUES_PER_CALL and queue not in queues):
            yield tuple(call)
            call, queues = [], set()
        call.append(want)
        queues.add(queue)
    if call:
        yield tuple(call)


log = logging.getLogger("qdo.consumer")

EMPTY_READ_INTERVAL = 1.0
"""Interval between reads of an empty partition that is in no poll, in seconds."""
_BACKOFF = RetryPolicy(deadline=0.0, base=0.25, cap=5.0, retry_after_cap=5.0)
"""Pauses after failures. The client itself does not repeat reads."""
MAX_TIME_WITHOUT_POLLS = 5.0
"""Max time without polls after the service refused one (TooManyWaiters), in seconds; reads do not wait meanwhile."""
SPARE_POLLS = 3
"""Number of polls beyond the number needed if all partitions share polls."""


class InFlightCall:
    """A call in flight.

    Attributes:
        planned_call: The planned call.
        rows: The partitions that it was made for, by queue and number.
        remaining: The number of partitions that still need the answer.
        end: When its wait ends, or None if it does not wait.
        task: The task that runs it.
    """

    task: asyncio.Task[None]

    def __init__(self, ask: PlannedCall, rows: dict[Queue, dict[int, PartitionOwnership]], end: float | None) -> None:
        self.planned_call = ask
        self.rows = rows
        self.remaining = len(ask.partitions)
        self.end = end

    def remaining_rows(self, queue: Queue) -> dict[int, PartitionOwnership]:
        return {number: row for number, row in self.rows[queue].items() if row.pending_call is self}

    @property
    def expected_messages(self) -> int:
        """Messages to reserve space for; 0 for polls, which may return none."""
        return 0 if self.end is not None else self.planned_call.limit * self.remaining


class Fetcher:
    """Keeps the fetch buffer filled.

    Args:
        client: The client that reads messages.
        buffer: The buffer to fill.
        settings: The limits of reads.
        arrived: Called when messages were added to the buffer.
        missing: Called when a queue does not exist or must not be read.
        failed: Called with an error that requires a correction.
        refusals: Records refused reads.
    """

    def __init__(
        self,
        client: AsyncClient,
        buffer: FetchBuffer,
        settings: ConsumerSettings,
        *,
        arrived: Callable[[], None],
        missing: Callable[[], None],
        failed: Callable[[Exception], None],
        refusals: Refusals,
    ) -> None:
        self._refusals = refusals
        self._client = client.with_retry(_BACKOFF)
        self._buffer = buffer
        self._settings = settings
        self._arrived = arrived
        self._missing = missing
        self._failed = failed
        self._queues: dict[Queue, int] = {}
        self._count = 0
        self._free: dict[Partition, PartitionOwnership] = {}
        self._pending_calls: set[InFlightCall] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._troubled: set[str] = set()
        self._crowded_until = 0.0
        self._closed = False

    def add(self, row: PartitionOwnership) -> None:
        self._free[row.partition] = row
        self._queues[row.partition.queue] = self._queues.get(row.partition.queue, 0) + 1
        self._count += 1

    def drop(self, row: PartitionOwnership) -> None:
        """Stops all reads of a partition, and forgets the failures of a queue that has no other partition here."""
        self.leave_call(row)
        if self._free.pop(row.partition, None) is not row:
            return
        queue = row.partition.queue
        self._count -= 1
        self._queues[queue] -= 1
        if not self._queues[queue]:
            del self._queues[queue]
            self._end_failure_and_refusal(queue.name)
        if not self._queues:
            self._end_failure_and_refusal("")

    def leave_call(self, row: PartitionOwnership) -> None:
        pending_call = row.pending_call
        if not isinstance(pending_call, InFlightCall):
            return
        row.pending_call = None
        self._free[row.partition] = row
        pending_call.remaining -= 1
        if not pending_call.remaining:
            self._pending_calls.discard(pending_call)
            pending_call.task.cancel()

    def kick(self) -> None:
        if self._closed:
            return
        now = asyncio.get_running_loop().time()
        wants, instants = self._find_due_rows(now)
        if wants:
            plan = self._plan(wants, now)
            for ask in plan.calls:
                self._start(ask, now)
            if plan.recheck is not None:
                instants.append(plan.recheck)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(min(instants), self.kick) if instants else None

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await cancel(*self._tasks)

    def _find_due_rows(self, now: float) -> tuple[list[PartitionOwnership], list[float]]:
        wants = []
        rests = []
        for row in self._free.values():
            if row.fetch_from is None or not row.may_be_read:
                continue
            if row.rest_until > now:
                rests.append(row.rest_until)
                continue
            wants.append(row)
        return wants, rests

    def _plan(self, wants: list[PartitionOwnership], now: float) -> FetchPlan:
        room = compute_free_space(
            self._buffer.count + sum(pending_call.expected_messages for pending_call in self._pending_calls),
            self._buffer.size,
            self._count,
            prefetch_messages=self._settings.prefetch_messages,
            prefetch_bytes=self._settings.prefetch_bytes,
        )
        polls = [pending_call.end for pending_call in self._pending_calls if pending_call.end is not None]
        max_polls = SPARE_POLLS + self._count // MAX_PARTITIONS_PER_CALL + len(self._queues) // MAX_QUEUES_PER_CALL
        if now < self._crowded_until:
            max_polls = 0
        pending_calls = InFlightCalls(len(self._pending_calls) - len(polls), polls, max_polls)
        return plan_fetches(wants, room, pending_calls, now, page=self._settings.page, wait=self._settings.wait)

    def _start(self, planned_call: PlannedCall, now: float) -> None:
        rows: dict[Queue, dict[int, PartitionOwnership]] = {}
        pending_call = InFlightCall(planned_call, rows, now + planned_call.wait if planned_call.wait else None)
        for row in sorted(planned_call.partitions, key=_partition_of):
            del self._free[row.partition]
            rows.setdefault(row.partition.queue, {})[row.partition.number] = row
            row.pending_call = pending_call
        self._pending_calls.add(pending_call)
        pending_call.task = task = asyncio.create_task(self._run_call(pending_call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_call(self, pending_call: InFlightCall) -> None:
        try:
            reads = await self._client.read_queues(_make_queries(pending_call), wait=pending_call.planned_call.wait)
            self._pending_calls.discard(pending_call)
            self._handle_answer(pending_call, reads)
            self._record_success("")
        except asyncio.CancelledError:
            raise
        except TooManyWaiters:
            self._suspend_polls(pending_call)
        except Exception as error:  # noqa: BLE001 - poll raises errors that require a correction
            self._fail_call(pending_call, error)
        finally:
            self._pending_calls.discard(pending_call)
        self.kick()

    def _handle_answer(self, pending_call: InFlightCall, reads: tuple[QueueRead, ...]) -> None:
        before = self._buffer.count
        for queue, read in zip(pending_call.rows, reads, strict=True):
            rows = pending_call.remaining_rows(queue)
            if read.page is not None:
                self._record_success(queue.name)
                self._buffer_page(pending_call, rows, read.page)
            elif read.error is not None:
                self._record_failure(queue.name, read.error)
                if isinstance(read.error, QueueNotFound | NotAllowed):
                    self._missing()
                self._pause_rows(rows.values(), read.error)
        if self._buffer.count != before:
            self._arrived()

    def _buffer_page(self, pending_call: InFlightCall, rows: dict[int, PartitionOwnership], page: Page) -> None:
        """Buffers a page and moves the read positions.

        A partition that is empty in two calls in a row is paused if the second one did not wait.
        """
        messages_by_number = {}
        for number, messages in split_by_partition(page.messages):
            messages_by_number[number] = messages
            if number in rows:
                self._buffer.put(rows[number], messages)
        rich = _find_partitions_with_more(page, messages_by_number, pending_call)
        rest_until = asyncio.get_running_loop().time() + EMPTY_READ_INTERVAL
        for number, row in rows.items():
            position = page.next.get(number)
            if position is not None:
                row.fetch_from = position
            elif number in messages_by_number:
                row.fetch_from = id_after(messages_by_number[number][-1].id)
            was_empty = row.more is False and pending_call.end is None
            row.more = number in rich
            row.failures = 0
            if was_empty and not row.more and number not in messages_by_number:
                row.rest_until = rest_until
            self._release_from_call(row)

    def _suspend_polls(self, pending_call: InFlightCall) -> None:
        """Stops all polls for a few seconds. Meanwhile the partitions are read at intervals."""
        now = asyncio.get_running_loop().time()
        jitter = uniform(0.5, 1.0)  # noqa: S311 - spreads consumers that polled at the same time
        self._crowded_until = now + MAX_TIME_WITHOUT_POLLS * jitter
        for queue in pending_call.rows:
            for row in pending_call.remaining_rows(queue).values():
                row.more = False
                row.rest_until = now + EMPTY_READ_INTERVAL * jitter
                self._release_from_call(row)

    def _fail_call(self, pending_call: InFlightCall, error: Exception) -> None:
        self._record_failure("", error)
        if not (isinstance(error, ClientError) and error.temporary):
            self._failed(error)
        if isinstance(error, NotAuthenticated):
            self._missing()
        for queue in pending_call.rows:
            self._pause_rows(pending_call.remaining_rows(queue).values(), error)

    def _pause_rows(self, rows: Iterable[PartitionOwnership], error: Exception) -> None:
        retry_after = error.retry_after if isinstance(error, ApiError) else None
        now = asyncio.get_running_loop().time()
        jitter = uniform(0.5, 1.0)  # noqa: S311 - spreads consumers that failed at the same time
        for row in rows:
            row.failures += 1
            row.rest_until = now + _BACKOFF.pause(row.failures, jitter, retry_after)
            self._release_from_call(row)

    def _release_from_call(self, row: PartitionOwnership) -> None:
        row.pending_call = None
        self._free[row.partition] = row

    def _record_failure(self, name: str, error: Exception) -> None:
        if isinstance(error, NotAuthenticated | NotAllowed):
            self._refusals.record(name)
        if name not in self._troubled:
            self._troubled.add(name)
            log.warning("reads of %s fail and are retried: %s", name or "the service", error)

    def _record_success(self, name: str) -> None:
        if name in self._troubled:
            self._end_failure_and_refusal(name)
            log.info("reads of %s work again", name or "the service")

    def _end_failure_and_refusal(self, name: str) -> None:
        self._troubled.discard(name)
        self._refusals.end_refusal(name)


def _make_queries(pending_call: InFlightCall) -> list[Query]:
    return [
        Query(
            queue=queue.name,
            partitions=list(rows),
            limit=pending_call.planned_call.limit,
            since={number: row.fetch_from or EARLIEST for number, row in rows.items()},
        )
        for queue, rows in pending_call.rows.items()
    ]


def _find_partitions_with_more(
    page: Page, messages_by_number: Mapping[int, Sequence[Message]], pending_call: InFlightCall
) -> Container[int]:
    """Returns the partitions to read again at once: none if the page's only flag for more messages is not set.

    Else these are the partitions that reached the limit. If none did, the page was cut by bytes: then these are the
    partitions with messages, or all of the page if it has no messages.
    """
    if not page.more:
        return ()
    full = {
        number for number, messages in messages_by_number.items() if len(messages) >= pending_call.planned_call.limit
    }
    return full or messages_by_number or page.next


def split_by_partition(messages: Sequence[Message]) -> Iterator[tuple[int, list[Message]]]:
    """Splits the messages of a read, ordered by partition, into one list per partition.

    The cost grows with the number of partitions that have messages, not with the number of messages.
    """
    start = 0
    while start < len(messages):
        number = messages[start].partition
        end = bisect_right(messages, number, start, key=_partition_of)
        yield number, list(messages[start:end])
        start = end
