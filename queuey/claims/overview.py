"""Claims and backlog of a queue, for display and for metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from heapq import nsmallest
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec

from queuey.access.queue_access import QueueAccess
from queuey.api.claims import Backlog, ClaimCounts, DeliveredJob, JobStatus, PartitionClaims, QueueSize
from queuey.claims.job_records import JobRecord, JobRecords
from queuey.claims.log.claim_search import QueueLogs
from queuey.claims.rules.partition_state import State
from queuey.model import ids
from queuey.model.deadletters import queue_for
from queuey.model.errors import NotFound
from queuey.model.ids import TICKS_PER_SECOND, Position
from queuey.model.kinds import compute_body_digest
from queuey.model.messages import Location, Message, Queue, Slice, position_of, rendered_bytes
from queuey.model.task_calls import find_call
from queuey.model.texts import shorten
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.runtime.metrics import Metrics
from queuey.storage import Store

T = TypeVar("T")

MAX_SHOWN_TEXT = 200
"""Max characters of a failure's text in a list of jobs."""
_PAGE_SIZE, FIRST_PAGE_SIZE = 1000, 10
"""Number of messages per read, and in the read that looks for the first unfinished message."""


class WorkerClaims(NamedTuple):
    """The claims of one worker.

    Attributes:
        worker: The worker's name for itself; empty if it gave none.
        jobs: Number of messages that it has claimed.
        renewed: When it last claimed or renewed one of them, in seconds since 1970; 0 if not known.
        expires: When the last of its claims ends, in seconds since 1970.
    """

    worker: str
    jobs: int
    renewed: float
    expires: float


class ClaimOverview:
    """Shows the claims of queues.

    Args:
        store: Store of messages, dead letters and the ledger.
        logs: Answers queries of states.
        core: Runs the queries.
        limits: Limits of one answer.
        metrics: Counts messages that :meth:`peek` shows as delivered.
    """

    def __init__(self, store: Store, logs: QueueLogs, core: Core, limits: Limits, metrics: Metrics) -> None:
        self._store = store
        self._logs = logs
        self._core = core
        self._limits = limits
        self._metrics = metrics
        self._records = JobRecords(store.ledger)

    async def count_claims(self, access: QueueAccess) -> ClaimCounts:
        """Counts outstanding messages as claimed, waiting or retrying by partition; not those never delivered."""

        def count(state: State, expiry_limit: int) -> PartitionClaims:
            claimed, retrying = state.count_live(expiry_limit), state.count_retrying(expiry_limit)
            waiting = len(state.outstanding) - claimed - retrying
            return PartitionClaims(claimed=claimed, waiting=waiting, retrying=retrying)

        partitions = await access.apply(lambda queue: self._logs.query_states(queue, count))
        return ClaimCounts(
            claimed=sum(counts.claimed for counts in partitions.values()),
            waiting=sum(counts.waiting for counts in partitions.values()),
            partitions=partitions,
            retrying=sum(counts.retrying for counts in partitions.values()),
        )

    async def backlog(self, access: QueueAccess, limit: int) -> Backlog:
        """Counts unfinished messages. Waiting ones are counted up to the limit and estimated beyond it.

        A message is waiting or delayed by its position, which is compared with one time in both counts.
        """

        async def measure(queue: Queue, partitions: Mapping[int, _UnfinishedMessages]) -> Backlog:
            dead = publishing = sum([unfinished.publishing for unfinished in partitions.values()])
            with suppress(NotFound):
                dead_letters = await self._store.catalogue.queue(queue.application, queue_for(queue.name))
                dead += sum(info.count for info in (await self._store.messages.inspect(dead_letters, rough=True))[1])
            delayed, all_counted, bounds = await self._count_delayed(queue, partitions, limit)
            size = await self._count_due(queue, partitions, limit, bounds)
            claimed = sum(unfinished.claimed for unfinished in partitions.values())
            retrying = sum(unfinished.retrying for unfinished in partitions.values())
            firsts = [
                await anext(self._read_unfinished(queue, number, unfinished, FIRST_PAGE_SIZE), None)
                for number, unfinished in partitions.items()
            ]
            return Backlog(
                waiting=max(0, size.size - claimed - retrying),
                exact=size.exact and all_counted,
                delayed=delayed,
                claimed=claimed,
                retrying=retrying,
                failed=sum(unfinished.failed for unfinished in partitions.values()),
                dead=dead,
                publishing=publishing,
                oldest=min((ids.ticks_to_seconds(first.ticks) for first in firsts if first is not None), default=None),
                due=await self._find_next_due(queue, partitions, bounds) if delayed else None,
            )

        return await self._read_in_thread(access, measure)

    async def list_workers(self, access: QueueAccess) -> list[WorkerClaims]:
        def live(state: State, expiry_limit: int) -> list[WorkerClaims]:
            claims = (claim for place, claim in state.outstanding.items() if state.is_live(place, expiry_limit))
            return _merge_by_worker(WorkerClaims(c.worker, 1, c.renewed / 1000, c.expires / 1000) for c in claims)

        partitions = await access.apply(lambda queue: self._logs.query_states(queue, live))
        workers = _merge_by_worker(worker for group in partitions.values() for worker in group)
        return sorted(workers, key=lambda worker: (-worker.jobs, worker.worker))

    async def list_jobs(
        self, access: QueueAccess, limit: int, *, states: bool = False, only_status: JobStatus | None = None
    ) -> list[DeliveredJob]:
        """Returns outstanding messages: those whose claims have ended, then the others by the end of their claims.

        Args:
            access: The queue.
            limit: Max messages.
            states: Add to each message its job state, its call and its last failed attempt.
            only_status: Status of the messages; None for all.
        """

        def look(state: State, expiry_limit: int) -> list[tuple[int, Position, JobStatus, int, int, str, int]]:
            standings = (
                (place, claim, state.find_status(place, expiry_limit)) for place, claim in state.outstanding.items()
            )
            rows = (
                (0 if status == "waiting" else c.expires, place, status, c.attempts, c.handed_out, c.worker, c.number)
                for place, c, status in standings
                if only_status in {None, status}
            )
            return nsmallest(limit, rows)

        async def outstanding(queue: Queue) -> list[DeliveredJob]:
            by_partition = await self._logs.query_states(queue, look)
            rows = nsmallest(limit, ((row[0], number, row) for number, group in by_partition.items() for row in group))
            calls = await self._read_calls(queue, [(number, row[1]) for _, number, row in rows]) if states else {}
            return [
                DeliveredJob(
                    message_id=ids.to_hex(position),
                    partition=number,
                    deliveries=attempts,
                    handed_out=handed_out,
                    status=status,
                    worker=worker,
                    expires=expires / 1000 or None,
                    **calls.get((number, position), {}),
                    **(_record_fields(await self._records.read(queue, number, position), delivery) if states else {}),
                )
                for _, number, (expires, position, status, attempts, handed_out, worker, delivery) in rows
            ]

        return await access.apply(outstanding)

    async def _read_calls(self, queue: Queue, locations: Sequence[Location]) -> dict[Location, Any]:
        calls = {}
        async for message in self._fetch_in_batches(queue, locations):
            call = find_call(message.body) if message.meta is not None and message.meta.json else None
            if call is not None:
                calls[message.partition, message.position] = call._asdict()
        return calls

    async def size(self, access: QueueAccess, limit: int) -> QueueSize:
        """Counts unfinished messages that are due: exactly up to ``limit``, and estimated beyond it."""
        return await self._read_in_thread(access, partial(self._count_due, limit=limit))

    async def _read_in_thread(
        self, access: QueueAccess, read: Callable[[Queue, Mapping[int, _UnfinishedMessages]], Coroutine[Any, Any, T]]
    ) -> T:
        """Calls ``read``, which reads and counts many messages, in a thread with those of all partitions."""

        async def apply(queue: Queue) -> T:
            partitions = await self._logs.query_states(queue, _UnfinishedMessages)
            return await self._core.read_in_thread(partial(read, queue, partitions))

        return await access.apply(apply)

    async def _count_due(
        self,
        queue: Queue,
        partitions: Mapping[int, _UnfinishedMessages],
        limit: int,
        bounds: Mapping[int, Position] = MappingProxyType({}),
    ) -> QueueSize:
        """Counts unfinished messages that are due, outstanding ones included.

        The count is exact up to the limit; beyond it, the rest of each partition is estimated. Where a partition has a
        bound, exactly the messages below it count as due.
        """
        total, exact = 0, True
        for number, unfinished in partitions.items():
            total += unfinished.outstanding
            unread, ends = self._slice_after_cursor(number, unfinished, bodies=unfinished.needs_bodies), []
            if (bound := bounds.get(number)) is not None:
                unread = msgspec.structs.replace(unread, upper=bound, due=False)
                ends = [(number, ids.preceding(bound))]
            async for page in self._read_pages(queue, unread):
                total += unfinished.count_unread(page)
                if total >= limit:
                    lag, *beyond = await self._store.messages.lag(queue, [(number, page[-1].position), *ends])
                    total += max(0, lag.count - sum(end.count for end in beyond))
                    exact = exact and all(end.exact for end in (lag, *beyond))
                    break
        return QueueSize(total, exact)

    async def _count_delayed(
        self, queue: Queue, partitions: Mapping[int, _UnfinishedMessages], limit: int
    ) -> tuple[int, bool, Mapping[int, Position]]:
        """Counts messages that are not due, up to a limit; messages that an operator has made available do not count.

        Returns also whether the count is complete, and for each partition that may have such messages the position from
        which on they count. It is of a time after the first read, so what was posted during that read is due.
        """
        count, now, bounds = 0, (self._store.clock.now_ticks(), ids.LOW_MIN), dict[int, Position]()
        for number in range(1, queue.partitions + 1):
            pages = self._read_pages(queue, _slice_delayed(number, now))
            async for page in pages:
                bound = bounds[number] = bounds.get(number) or await self._find_first_delayed()
                count += sum(m.position >= bound and not partitions[number].is_known(m.position) for m in page)
                if count >= limit:
                    return count, number == queue.partitions and await anext(pages, None) is None, bounds
        return count, True, bounds

    async def _find_first_delayed(self) -> Position:
        """Returns the lowest position that is not due yet. Ids that were made ahead of the clock count as due."""
        ahead = round(await self._store.ledger.ids_ahead() * TICKS_PER_SECOND)
        return self._store.clock.now_ticks() + ahead + 1, ids.LOW_MIN

    async def _find_next_due(
        self, queue: Queue, partitions: Mapping[int, _UnfinishedMessages], bounds: Mapping[int, Position]
    ) -> float | None:
        """Returns when the first message that counts as delayed is due (seconds since 1970), or None."""
        now = self._store.clock.now_ticks(), ids.LOW_MIN
        lowest = {number: bounds.get(number, now) for number in partitions}
        limits = {number: 1 + partitions[number].count_known_above(bound) for number, bound in lowest.items()}
        slices = [_slice_delayed(number, bound, min(_PAGE_SIZE, limits[number])) for number, bound in lowest.items()]
        pages = await self._store.messages.read(queue, slices)
        messages = [message for page in pages for message in page.messages]
        delayed = [
            message.ticks for message in messages if not partitions[message.partition].is_known(message.position)
        ]
        return ids.ticks_to_seconds(min(delayed)) if delayed else None

    async def peek(self, access: QueueAccess, limit: int) -> list[Message]:
        """Returns unfinished messages, partition after partition, up to the limit or the bytes of a page.

        The metrics count them as delivered.
        """

        async def read(queue: Queue, partitions: Mapping[int, _UnfinishedMessages]) -> list[Message]:
            messages: list[Message] = []
            weight = 0
            for number, unfinished in partitions.items():
                async for message in self._read_unfinished(queue, number, unfinished):
                    if len(messages) >= limit or weight >= self._limits.page_bytes:
                        return messages
                    messages.append(message)
                    weight += rendered_bytes(message.body, message.meta)
            return messages

        messages = await self._read_in_thread(access, read)
        self._metrics.count_delivered(len(messages), access.queue)
        return messages

    async def _read_unfinished(
        self, queue: Queue, number: int, unfinished: _UnfinishedMessages, limit: int = _PAGE_SIZE
    ) -> AsyncIterator[Message]:
        async for message in self._fetch_in_batches(queue, [(number, position) for position in unfinished.below]):
            yield message
        async for page in self._read_pages(queue, self._slice_after_cursor(number, unfinished, limit)):
            for message in page:
                if not unfinished.is_done(message):
                    yield message

    async def _fetch_in_batches(self, queue: Queue, locations: Sequence[Location]) -> AsyncIterator[Message]:
        step = max(1, self._limits.page_bytes // self._limits.longest)
        for first in range(0, len(locations), step):
            for message in await self._store.messages.fetch(queue, locations[first : first + step]):
                yield message

    def _slice_after_cursor(
        self, number: int, unfinished: _UnfinishedMessages, limit: int = _PAGE_SIZE, *, bodies: bool = True
    ) -> Slice:
        lower, max_bytes = ids.following(unfinished.cursor), self._limits.page_bytes
        return Slice(number, lower, limit=limit, max_bytes=max_bytes, ahead=True, bodies=bodies)

    async def _read_pages(self, queue: Queue, unread: Slice) -> AsyncIterator[list[Message]]:
        more = True
        while more:
            [page] = await self._store.messages.read(queue, [unread])
            if page.messages:
                yield page.messages
            more = page.more and page.next is not None
            unread = msgspec.structs.replace(unread, lower=page.next or unread.lower)


def _slice_delayed(number: int, lower: Position, limit: int = _PAGE_SIZE) -> Slice:
    return Slice(number, lower, limit=limit, keeps_read_delay=False, due=False, bodies=False)


def _merge_by_worker(claims: Iterable[WorkerClaims]) -> list[WorkerClaims]:
    workers: dict[str, WorkerClaims] = {}
    for worker, jobs, renewed, expires in claims:
        before = workers.get(worker, WorkerClaims(worker, 0, 0.0, 0.0))
        ends = max(before.expires, expires)
        workers[worker] = WorkerClaims(worker, before.jobs + jobs, max(before.renewed, renewed), ends)
    return list(workers.values())


def _record_fields(record: JobRecord, number: int) -> dict[str, Any]:
    state = record.state if record.state is not None and record.state.number == number else None
    fields = {
        "state": None if state is None else msgspec.Raw(state.json),
        "state_at": None if state is None else state.at,
    }
    if not record.attempts:
        return fields
    failure = record.attempts[-1]
    return fields | {"failure": msgspec.structs.replace(failure, text=shorten(failure.text, MAX_SHOWN_TEXT))}


class _UnfinishedMessages:
    """What a state shows about unfinished messages. It does not change while pages are read."""

    def __init__(self, state: State, expiry_limit: int) -> None:
        self.cursor = state.cursor
        self.outstanding = len(state.outstanding)
        self.claimed = state.count_live(expiry_limit)
        self.retrying = state.count_retrying(expiry_limit)
        ended = (claim for position, claim in state.outstanding.items() if state.has_ended(position, expiry_limit))
        self.publishing = len([target for target, _ in state.outbox.values() if target])
        self.failed = sum(claim.attempts > 0 for claim in ended)
        self.below = sorted(position for position in state.outstanding if position <= state.cursor)
        self.known = {position for position in state.outstanding if position > state.cursor}
        self._above = frozenset(state.above)
        covers = state.covers.by_digest.items()
        self._ended = {digest: cover for digest, cover in covers if state.is_done(cover.representative)}

    def is_known(self, position: Position) -> bool:
        return position in self.known or position in self._above

    def count_unread(self, messages: Sequence[Message]) -> int:
        """Returns how many messages above the cursor are neither outstanding nor done."""
        if self._ended:
            return sum(not (message.position in self.known or self.is_done(message)) for message in messages)
        delivered = self.known | self._above
        return len(messages) - (len(delivered.intersection(map(position_of, messages))) if delivered else 0)

    def count_known_above(self, position: Position) -> int:
        return sum(p > position for positions in (self.known, self._above) for p in positions)

    @property
    def needs_bodies(self) -> bool:
        return bool(self._ended)

    def is_done(self, message: Message) -> bool:
        """Returns whether a message above the cursor is acknowledged, or a copy of an acknowledged one."""
        if message.position in self._above or message.position in self.known or not self._ended:
            return message.position in self._above
        cover = self._ended.get(compute_body_digest(message.body, message.meta))
        return cover is not None and cover.includes_position(message.position)
