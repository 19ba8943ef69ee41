"""Reads ahead: keeps calls under way for all partitions that want messages.

It has no loop. Whenever something changes (messages were handed out, an answer came, a partition was
added) :meth:`Fetcher.kick` plans anew and starts a task for each call. An answer counts for a partition only if the
partition still belongs to that call: one that was revoked or moved meanwhile does not.

**What is asked next** is decided by pure functions. Partitions that are known to have more are read at once, few at a
time and much of each. Partitions that were not read yet are read at once too, all together. Empty ones wait together in
long polls. A poll is never cancelled because one more partition wants to wait: the service would hold its place, one of
a few, until the time asked for is over. Instead new partitions wait in a separate poll, which ends at the same time,
and then all wait in one. When there are too many polls, new partitions are read in turn without waiting.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from random import uniform
from typing import NamedTuple

from qdo.consumer.owned_partition import FetchBuffer, OwnedPartition
from qdo.consumer.rebalance.queue_discovery import Refusals
from qdo.partitions import Partition, Queue
from qdo.settings import ConsumerSettings
from qdo.tasks import cancel
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

QUEUES = 100
"""Max queues that the service reads in one call."""
PARTITIONS = 1000
"""Max partitions to read in one call."""
READS = 2
"""Max calls that do not wait, under way at the same time."""
SLICE = 100
"""Min messages of one partition that make a read of it worthwhile when there is more than can be held."""
GATHER = 0.5
"""Interval in seconds: polls that would end this near to each other are made one."""
_place = attrgetter("partition")


class BufferSpace(NamedTuple):
    """Space for messages that are read.

    Attributes:
        free: Messages that may still be held, over all partitions; 0: none.
        low: So few messages are held that partitions that still hold some may be read on.
        reserve: Messages that a partition may have in any case if it holds none.
    """

    free: int
    low: bool
    reserve: int


class InFlightCalls(NamedTuple):
    """Calls that are under way.

    Attributes:
        reads: Calls that do not wait.
        polls: When those that wait are to end, each.
        most_polls: Max of these.
    """

    reads: int
    polls: Sequence[float]
    most_polls: int


class PlannedCall(NamedTuple):
    """One call to make.

    Attributes:
        wants: What to read.
        limit: Messages of each partition.
        wait: Seconds to wait if there is nothing.
    """

    wants: tuple[OwnedPartition, ...]
    limit: int
    wait: float = 0.0


class FetchPlan(NamedTuple):
    """Calls to make now.

    Attributes:
        asks: The calls.
        recheck: When to plan anew even if nothing happens; None: never.
    """

    asks: list[PlannedCall]
    recheck: float | None = None


def space_for(messages: int, size: int, partitions: int, *, prefetch_messages: int, prefetch_bytes: int) -> BufferSpace:
    """Returns how much may be read if so many messages, of so many bytes and partitions, are held."""
    reserved = prefetch_messages // 4
    common = max(1, prefetch_messages - reserved)
    if size >= prefetch_bytes:
        return BufferSpace(0, low=False, reserve=1)
    free = max(0, common - messages)
    return BufferSpace(free, low=2 * free >= common, reserve=max(1, reserved // max(1, partitions)))


def plan_fetches(
    wants: Iterable[OwnedPartition],
    room: BufferSpace,
    pending_calls: InFlightCalls,
    now: float,
    *,
    page: int,
    wait: float,
) -> FetchPlan:
    """Decides which calls to make.

    Args:
        wants: The partitions that could be read, in the order in which they became so; none that is part of a call.
        room: How much may be read.
        pending_calls: What is under way.
        now: The present instant, of any monotonic clock.
        page: Messages of one partition at most.
        wait: Seconds that a poll may wait.
    """
    sure: list[OwnedPartition] = []
    unknown: list[OwnedPartition] = []
    dry: list[OwnedPartition] = []
    for want in wants:
        if not want.count or (room.low and want.count < page):
            (sure if want.more else unknown if want.more is None else dry).append(want)
    reads = max(0, READS - pending_calls.reads)
    # First those that wait for their first read: busy partitions always have more, and would starve them.
    asks = _some_of_all(unknown, room, page, 0.0)[:reads]
    if sure:
        asks += _much_of_few(sure, room, page, reads - len(asks))
    if not dry:
        return FetchPlan(asks)
    polls, recheck = _polls(dry, room, pending_calls, now, page=page, wait=wait, reads=reads - len(asks))
    return FetchPlan(asks + polls, recheck)


def _polls(
    dry: list[OwnedPartition],
    room: BufferSpace,
    pending_calls: InFlightCalls,
    now: float,
    *,
    page: int,
    wait: float,
    reads: int,
) -> tuple[list[PlannedCall], float | None]:
    """Decides how those wait that had nothing."""
    # One that is overdue has lost its connection, or the service is slow; it is not waited for.
    ends = [end for end in pending_calls.polls if end + GATHER > now]
    if ends:
        if min(ends) - now < GATHER:
            return [], min(ends) + GATHER
        wait = min(wait, min(ends) - now)
    places = pending_calls.most_polls - len(pending_calls.polls)
    if places <= 0:
        return _some_of_all(dry, room, page, 0.0)[: max(0, reads)], None
    return _some_of_all(dry, room, page, wait)[:places], None


def _much_of_few(wants: list[OwnedPartition], room: BufferSpace, page: int, reads: int) -> list[PlannedCall]:
    """Reads as many partitions as limits allow with worthwhile reads; else, a little of all that hold none.

    When nothing is under way they are divided between two calls: the service works on one while the answer to the
    other is taken in, and from then on they take turns.
    """
    if not room.free:
        return [PlannedCall(next(_calls(wants)), min(page, room.reserve))][:reads]
    chosen = wants[: max(1, room.free // min(SLICE, page))]
    limit = min(page, max(SLICE, room.free // len(chosen)))
    first = -(-len(chosen) // max(1, reads))
    parts = [chosen[start : start + first] for start in range(0, len(chosen), first)]
    return [PlannedCall(next(_calls(part)), limit) for part in parts][:reads]


def _some_of_all(wants: list[OwnedPartition], room: BufferSpace, page: int, wait: float) -> list[PlannedCall]:
    limit = min(page, max(room.reserve, room.free // max(1, len(wants))))
    return [PlannedCall(call, limit, wait) for call in _calls(sorted(wants, key=_place))]


def _calls(wants: Iterable[OwnedPartition]) -> Iterator[tuple[OwnedPartition, ...]]:
    """Divides wants, in their order, by what fits into one call."""
    call: list[OwnedPartition] = []
    queues: set[Queue] = set()
    for want in wants:
        queue = want.partition.queue
        if len(call) == PARTITIONS or (len(queues) == QUEUES and queue not in queues):
            yield tuple(call)
            call, queues = [], set()
        call.append(want)
        queues.add(queue)
    if call:
        yield tuple(call)


log = logging.getLogger("qdo.consumer")

LOOK = 1.0
"""Interval in seconds between reads of a partition for which there is no place in a poll."""
_BACKOFF = RetryPolicy(base=0.25, cap=5.0, retry_after_cap=5.0)
"""Pauses after failures; the client has already retried before it reports one."""
CROWDED = 5.0
"""Timeout in seconds without polls when the service had no place for one; meanwhile reads do not wait."""
SPARE_POLLS = 3
"""Number of polls beside those that are needed when all partitions wait together."""


class InFlightCall:
    """A call that is under way.

    Attributes:
        ask: What it asks.
        rows: By queue and number those that it was made for.
        left: How many of them still want its answer.
        end: When it will have waited; None: it does not wait.
        task: Carries it out.
    """

    task: asyncio.Task[None]

    def __init__(self, ask: PlannedCall, rows: dict[Queue, dict[int, OwnedPartition]], end: float | None) -> None:
        self.ask = ask
        self.rows = rows
        self.left = len(ask.wants)
        self.end = end

    def mine(self, queue: Queue) -> dict[int, OwnedPartition]:
        """Returns the partitions of a queue that still want its answer."""
        return {number: row for number, row in self.rows[queue].items() if row.pending_call is self}

    @property
    def expected(self) -> int:
        """Messages to reserve space for; a poll may well bring none."""
        return 0 if self.end is not None else self.ask.limit * self.left


class Fetcher:
    """Keeps the fetch buffer filled.

    Args:
        client: To read with.
        buffer: Where messages go.
        settings: How much to read.
        arrived: Called when there is something new on the fetch buffer.
        missing: Called when a queue was found to be gone, or must not be read.
        failed: Called with an error that does not pass without help.
        refusals: Gets what the service refuses.
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
        self._client = client
        self._buffer = buffer
        self._settings = settings
        self._arrived = arrived
        self._missing = missing
        self._failed = failed
        self._queues: dict[Queue, int] = {}
        self._count = 0
        self._free: dict[Partition, OwnedPartition] = {}
        self._pending_calls: set[InFlightCall] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._troubled: set[str] = set()
        self._crowded_until = 0.0
        self._closed = False

    def add(self, row: OwnedPartition) -> None:
        """``kick`` follows."""
        self._free[row.partition] = row
        self._queues[row.partition.queue] = self._queues.get(row.partition.queue, 0) + 1
        self._count += 1

    def drop(self, row: OwnedPartition) -> None:
        self.leave(row)
        if self._free.pop(row.partition, None) is not row:
            return
        queue = row.partition.queue
        self._count -= 1
        self._queues[queue] -= 1
        if not self._queues[queue]:
            del self._queues[queue]
            self._forget_trouble(queue.name)
        if not self._queues:
            self._forget_trouble("")

    def leave(self, row: OwnedPartition) -> None:
        """Removes a partition from the call that it is part of; a call without partitions is cancelled."""
        pending_call = row.pending_call
        if not isinstance(pending_call, InFlightCall):
            return
        row.pending_call = None
        self._free[row.partition] = row
        pending_call.left -= 1
        if not pending_call.left:
            self._pending_calls.discard(pending_call)
            pending_call.task.cancel()

    def kick(self) -> None:
        """Starts the calls that are to be made now."""
        if self._closed:
            return
        now = asyncio.get_running_loop().time()
        wants, instants = self._wants(now)
        if wants:
            found = self._plan(wants, now)
            for ask in found.asks:
                self._start(ask, now)
            if found.recheck is not None:
                instants.append(found.recheck)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(min(instants), self.kick) if instants else None

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await cancel(*self._tasks)

    def _wants(self, now: float) -> tuple[list[OwnedPartition], list[float]]:
        """Returns the partitions that could be read, and when the pause of the rest ends."""
        wants = []
        rests = []
        for row in self._free.values():
            if row.fetch_from is None or not row.live:
                continue
            if row.rest_until > now:
                rests.append(row.rest_until)
                continue
            wants.append(row)
        return wants, rests

    def _plan(self, wants: list[OwnedPartition], now: float) -> FetchPlan:
        room = space_for(
            self._buffer.count + sum(pending_call.expected for pending_call in self._pending_calls),
            self._buffer.size,
            self._count,
            prefetch_messages=self._settings.prefetch_messages,
            prefetch_bytes=self._settings.prefetch_bytes,
        )
        polls = [pending_call.end for pending_call in self._pending_calls if pending_call.end is not None]
        most_polls = SPARE_POLLS + self._count // PARTITIONS + len(self._queues) // QUEUES
        if now < self._crowded_until:
            most_polls = 0
        pending_calls = InFlightCalls(len(self._pending_calls) - len(polls), polls, most_polls)
        return plan_fetches(wants, room, pending_calls, now, page=self._settings.page, wait=self._settings.wait)

    def _start(self, ask: PlannedCall, now: float) -> None:
        rows: dict[Queue, dict[int, OwnedPartition]] = {}
        pending_call = InFlightCall(ask, rows, now + ask.wait if ask.wait else None)
        for row in sorted(ask.wants, key=_place):
            del self._free[row.partition]
            rows.setdefault(row.partition.queue, {})[row.partition.number] = row
            row.pending_call = pending_call
        self._pending_calls.add(pending_call)
        pending_call.task = task = asyncio.create_task(self._fly(pending_call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fly(self, pending_call: InFlightCall) -> None:
        try:
            reads = await self._client.read_queues(_queries(pending_call), wait=pending_call.ask.wait)
            self._pending_calls.discard(pending_call)
            self._take(pending_call, reads)
            self._restored("")
        except asyncio.CancelledError:
            raise
        except TooManyWaiters:
            self._poll_instead(pending_call)
        except Exception as error:  # noqa: BLE001 - the poll raises what does not pass without help
            self._rest_all(pending_call, error)
        finally:
            self._pending_calls.discard(pending_call)
        self.kick()

    def _take(self, pending_call: InFlightCall, reads: tuple[QueueRead, ...]) -> None:
        before = self._buffer.count
        for queue, read in zip(pending_call.rows, reads, strict=True):
            here = pending_call.mine(queue)
            if read.page is not None:
                self._restored(queue.name)
                self._take_page(pending_call, here, read.page)
            elif read.error is not None:
                self._trouble(queue.name, read.error)
                if isinstance(read.error, QueueNotFound | NotAllowed):
                    self._missing()
                self._rest(here.values(), read.error)
        if self._buffer.count != before:
            self._arrived()

    def _take_page(self, pending_call: InFlightCall, rows: dict[int, OwnedPartition], page: Page) -> None:
        given = {}
        for number, messages in divide(page.messages):
            given[number] = messages
            if number in rows:
                self._buffer.put(rows[number], messages)
        rich = _rich(page, given, pending_call)
        rest_until = asyncio.get_running_loop().time() + LOOK
        for number, row in rows.items():
            at = page.next.get(number)
            if at is not None:
                row.fetch_from = at
            elif number in given:
                row.fetch_from = id_after(given[number][-1].id)
            looked = row.more is False and pending_call.end is None
            row.more = number in rich
            row.failures = 0
            if looked and not row.more and number not in given:
                row.rest_until = rest_until
            self._release(row)

    def _poll_instead(self, pending_call: InFlightCall) -> None:
        """Notes that the service found nothing and has no place to wait; for a time, reads do not wait."""
        now = asyncio.get_running_loop().time()
        jitter = uniform(0.5, 1.0)  # noqa: S311 - so that consumers that came together come back apart
        self._crowded_until = now + CROWDED * jitter
        for queue in pending_call.rows:
            for row in pending_call.mine(queue).values():
                row.more = False
                row.rest_until = now + LOOK * jitter
                self._release(row)

    def _rest_all(self, pending_call: InFlightCall, error: Exception) -> None:
        """Makes all partitions pause after a call that failed."""
        self._trouble("", error)
        if not (isinstance(error, ClientError) and error.temporary):
            self._failed(error)
        if isinstance(error, NotAuthenticated):
            self._missing()
        for queue in pending_call.rows:
            self._rest(pending_call.mine(queue).values(), error)

    def _rest(self, rows: Iterable[OwnedPartition], error: Exception) -> None:
        asked = error.retry_after if isinstance(error, ApiError) else None
        now = asyncio.get_running_loop().time()
        draw = uniform(0.5, 1.0)  # noqa: S311 - so that consumers that failed together come back apart
        for row in rows:
            row.failures += 1
            row.rest_until = now + _BACKOFF.pause(row.failures, draw, asked)
            self._release(row)

    def _release(self, row: OwnedPartition) -> None:
        row.pending_call = None
        self._free[row.partition] = row

    def _trouble(self, name: str, error: Exception) -> None:
        """Logs once that reads of a queue (without a name: all) fail."""
        if isinstance(error, NotAuthenticated | NotAllowed):
            self._refusals.note(name)
        if name not in self._troubled:
            self._troubled.add(name)
            log.warning("reads of %s fail and are retried: %s", name or "the service", error)

    def _restored(self, name: str) -> None:
        if name in self._troubled:
            self._forget_trouble(name)
            log.info("reads of %s work again", name or "the service")

    def _forget_trouble(self, name: str) -> None:
        self._troubled.discard(name)
        self._refusals.over(name)


def _queries(pending_call: InFlightCall) -> list[Query]:
    return [
        Query(
            queue=queue.name,
            partitions=list(rows),
            limit=pending_call.ask.limit,
            since={number: row.fetch_from or EARLIEST for number, row in rows.items()},
        )
        for queue, rows in pending_call.rows.items()
    ]


def _rich(page: Page, given: Mapping[int, Sequence[Message]], pending_call: InFlightCall) -> Container[int]:
    """Returns the partitions of which there certainly is more.

    The page says so for all together. Those that reached the limit are; if none did, those were cut by bytes that
    have any; a page without any may say so as well.
    """
    if not page.more:
        return ()
    full = {number for number, messages in given.items() if len(messages) >= pending_call.ask.limit}
    return full or given or page.next


def divide(messages: Sequence[Message]) -> Iterator[tuple[int, list[Message]]]:
    """Divides what a read gave, partition after partition in ascending order, at the bounds between them.

    Costs by the number of partitions that have any, not by the number of messages.
    """
    start = 0
    while start < len(messages):
        number = messages[start].partition
        end = bisect_right(messages, number, start, key=_place)
        yield number, list(messages[start:end])
        start = end
