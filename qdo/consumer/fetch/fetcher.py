"""Reads ahead: keeps calls under way for all partitions that want messages.

It has no loop of its own. Whenever something changes (messages were handed out, an answer came, a partition was
added) :meth:`Fetcher.kick` plans anew and starts a task for each call. An answer counts for a partition only if the
call is still the one that the partition is part of: whoever was revoked or moved meanwhile has left it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Mapping, Sequence
from random import uniform

from qdo.consumer.batches import divide
from qdo.consumer.fetch.fetch_buffer import FetchBuffer
from qdo.consumer.fetch.fetch_planner import (
    PARTITIONS,
    QUEUES,
    FetchPlan,
    InFlightCalls,
    PlannedCall,
    ReadablePartition,
    plan_fetches,
    space_for,
)
from qdo.consumer.fetch.fetch_state import FetchState
from qdo.consumer.settings import ConsumerSettings
from qdo.partitions import Partition, Queue
from queuey.client import (
    ApiError,
    AsyncClient,
    ClientError,
    Message,
    Page,
    Query,
    QueueNotFound,
    QueueRead,
    TooManyWaiters,
    id_after,
)

log = logging.getLogger("qdo.consumer")

LOOK = 1.0
"""Seconds between looks at a partition for which there is no place in a poll."""
PAUSE, LONGEST_PAUSE = 0.25, 5.0
"""Seconds after a first failure, and at most; the client has tried again by itself before it reports one."""
CROWDED = 5.0
"""Seconds without polls when the service had no place for one; partitions are looked at meanwhile."""
SPARE_POLLS = 3
"""Polls beside those that are needed when all partitions wait together."""


class InFlightCall:
    """A call that is under way.

    Attributes:
        ask: What it asks.
        fetch_states: By queue and number those that it was made for.
        left: How many of them still want its answer.
        end: When it will have waited; None: it does not wait.
        task: Carries it out.
    """

    task: asyncio.Task[None]

    def __init__(self, ask: PlannedCall, fetch_states: dict[Queue, dict[int, FetchState]], end: float | None) -> None:
        self.ask = ask
        self.fetch_states = fetch_states
        self.left = len(ask.wants)
        self.end = end

    @property
    def expected(self) -> int:
        """Messages to make room for; a poll may well bring none."""
        return 0 if self.end is not None else self.ask.limit * self.left


class Fetcher:
    """Keeps the fetch buffer filled.

    Args:
        client: To read with.
        buffer: Where messages go.
        settings: How much to read.
        arrived: Called when there is something new on the fetch buffer.
        missing: Called when a queue was found to be gone.
        failed: Called with an error that will not pass by itself.
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
    ) -> None:
        self._client = client
        self._buffer = buffer
        self._settings = settings
        self._arrived = arrived
        self._missing = missing
        self._failed = failed
        self._queues: dict[Queue, int] = {}
        self._count = 0
        self._free: dict[Partition, FetchState] = {}
        self._pending_calls: set[InFlightCall] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._troubled: set[str] = set()
        self._crowded_until = 0.0
        self._closed = False

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def add(self, fetch_state: FetchState) -> None:
        """Begins to read a partition; ``kick`` follows."""
        self._free[fetch_state.partition] = fetch_state
        self._queues[fetch_state.partition.queue] = self._queues.get(fetch_state.partition.queue, 0) + 1
        self._count += 1

    def drop(self, fetch_state: FetchState) -> None:
        """Reads a partition no more."""
        self.leave(fetch_state)
        if self._free.pop(fetch_state.partition, None) is not fetch_state:
            return
        queue = fetch_state.partition.queue
        self._count -= 1
        self._queues[queue] -= 1
        if not self._queues[queue]:
            del self._queues[queue]

    def leave(self, fetch_state: FetchState) -> None:
        """Takes a partition out of the call that it is part of; a call that nobody wants any more is broken off."""
        pending_call = fetch_state.pending_call
        if not isinstance(pending_call, InFlightCall):
            return
        fetch_state.pending_call = None
        self._free[fetch_state.partition] = fetch_state
        pending_call.left -= 1
        if not pending_call.left:
            self._pending_calls.discard(pending_call)
            pending_call.task.cancel()

    def kick(self) -> None:
        """Starts the calls that are to be made now."""
        if self._closed:
            return
        now = self._loop.time()
        wants, instants = self._wants(now)
        if wants:
            found = self._plan(wants, now)
            for ask in found.asks:
                self._start(ask, now)
            if found.recheck is not None:
                instants.append(found.recheck)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(min(instants), self.kick) if instants else None

    async def close(self) -> None:
        """Breaks off whatever is under way."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _wants(self, now: float) -> tuple[list[ReadablePartition], list[float]]:
        """Returns which partitions could be read, and when the others will have rested."""
        wants = []
        rests = []
        for partition, fetch_state in self._free.items():
            if fetch_state.since is None or not fetch_state.live:
                continue
            if fetch_state.rest_until > now:
                rests.append(fetch_state.rest_until)
                continue
            wants.append(ReadablePartition(partition, fetch_state.since, fetch_state.count, fetch_state.more))
        return wants, rests

    def _plan(self, wants: list[ReadablePartition], now: float) -> FetchPlan:
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
        fetch_states: dict[Queue, dict[int, FetchState]] = {}
        for want in sorted(ask.wants):
            fetch_state = self._free.pop(want.partition)
            fetch_states.setdefault(want.partition.queue, {})[want.partition.number] = fetch_state
        pending_call = InFlightCall(ask, fetch_states, now + ask.wait if ask.wait else None)
        for group in fetch_states.values():
            for fetch_state in group.values():
                fetch_state.pending_call = pending_call
        self._pending_calls.add(pending_call)
        pending_call.task = self._loop.create_task(self._fly(pending_call))
        self._tasks.add(pending_call.task)
        pending_call.task.add_done_callback(self._tasks.discard)

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
        except Exception as error:  # noqa: BLE001 - whoever polls gets what will not pass by itself
            self._rest_all(pending_call, error)
        finally:
            self._pending_calls.discard(pending_call)
        self.kick()

    def _take(self, pending_call: InFlightCall, reads: tuple[QueueRead, ...]) -> None:
        """Takes an answer, queue by queue."""
        before = self._buffer.count
        for (queue, fetch_states), read in zip(pending_call.fetch_states.items(), reads, strict=True):
            here = {
                number: fetch_state
                for number, fetch_state in fetch_states.items()
                if fetch_state.pending_call is pending_call
            }
            if read.page is not None:
                self._restored(queue.name)
                self._take_page(pending_call, here, read.page)
            elif read.error is not None:
                self._trouble(queue.name, read.error)
                if isinstance(read.error, QueueNotFound):
                    self._missing()
                self._rest(here, read.error)
        if self._buffer.count != before:
            self._arrived()

    def _take_page(self, pending_call: InFlightCall, fetch_states: dict[int, FetchState], page: Page) -> None:
        given = {}
        for number, messages in divide(page.messages):
            given[number] = messages
            if number in fetch_states:
                self._buffer.put(fetch_states[number], messages)
        rich = _rich(page, given, pending_call)
        rest_until = self._loop.time() + LOOK
        for number, fetch_state in fetch_states.items():
            at = page.next.get(number)
            if at is not None:
                fetch_state.since = at
            elif number in given:
                fetch_state.since = id_after(given[number][-1].id)
            looked = fetch_state.more is False and pending_call.end is None
            fetch_state.more = number in rich
            fetch_state.failures = 0
            if looked and not fetch_state.more and number not in given:
                fetch_state.rest_until = rest_until
            self._release(fetch_state)

    def _poll_instead(self, pending_call: InFlightCall) -> None:
        """Takes note that the service found nothing and has no place to wait; partitions are looked at for a time."""
        now = self._loop.time()
        jitter = uniform(0.5, 1.0)  # noqa: S311 - so that consumers that came together come back apart
        self._crowded_until = now + CROWDED * jitter
        for fetch_states in pending_call.fetch_states.values():
            for fetch_state in fetch_states.values():
                if fetch_state.pending_call is pending_call:
                    fetch_state.more = False
                    fetch_state.rest_until = now + LOOK * jitter
                    self._release(fetch_state)

    def _rest_all(self, pending_call: InFlightCall, error: Exception) -> None:
        """Lets everybody rest after a call that failed."""
        self._trouble("", error)
        if not (isinstance(error, ClientError) and error.temporary):
            self._failed(error)
        for fetch_states in pending_call.fetch_states.values():
            self._rest(
                {
                    number: fetch_state
                    for number, fetch_state in fetch_states.items()
                    if fetch_state.pending_call is pending_call
                },
                error,
            )

    def _rest(self, fetch_states: dict[int, FetchState], error: Exception) -> None:
        asked = min(error.retry_after or 0.0, LONGEST_PAUSE) if isinstance(error, ApiError) else 0.0
        now = self._loop.time()
        jitter = uniform(0.5, 1.0)  # noqa: S311 - so that consumers that failed together come back apart
        for fetch_state in fetch_states.values():
            pause = min(LONGEST_PAUSE, PAUSE * 2.0 ** min(fetch_state.failures, 10))
            fetch_state.rest_until = now + asked + pause * jitter
            fetch_state.failures += 1
            self._release(fetch_state)

    def _release(self, fetch_state: FetchState) -> None:
        fetch_state.pending_call = None
        self._free[fetch_state.partition] = fetch_state

    def _trouble(self, name: str, error: Exception) -> None:
        """Says once that reads of a queue (without a name: all) fail."""
        if name not in self._troubled:
            self._troubled.add(name)
            log.warning("reads of %s fail and are retried: %s", name or "the service", error)

    def _restored(self, name: str) -> None:
        if name in self._troubled:
            self._troubled.discard(name)
            log.info("reads of %s work again", name or "the service")


def _queries(pending_call: InFlightCall) -> list[Query]:
    since = {want.partition: want.since for want in pending_call.ask.wants}
    return [
        Query(
            queue=queue.name,
            partitions=list(fetch_states),
            limit=pending_call.ask.limit,
            since={number: since[Partition(queue, number)] for number in fetch_states},
        )
        for queue, fetch_states in pending_call.fetch_states.items()
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
