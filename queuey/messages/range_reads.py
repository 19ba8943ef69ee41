"""Use cases that read ranges of queues and wait for messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from operator import attrgetter

import msgspec

from queuey.access.queue_access import MAX_ATTEMPTS, QueueAccess
from queuey.messages import ranges
from queuey.messages.ranges import Merge, RangeAnswer, RangeRequest
from queuey.model.errors import InvalidRequest, NotAllowed, NotFound, QueueyError, StoreBusy
from queuey.model.messages import Queue, Slice, bytes_at_most, bytes_of
from queuey.model.partitions import MAX_PARTITIONS
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.runtime.metrics import Metrics
from queuey.runtime.waiters import Subscription, Waiter, WakeSource, Watchers
from queuey.storage import Store
from queuey.storage.deadlines import GivenUp

MAX_SHORT_MESSAGES = 256
MAX_SHORT_BYTES = 256 * 1024
_RESERVED_BYTES = 16 * 1024
"""Bytes of a short answer that are reserved for the last message and the frame."""

_PARTITION = attrgetter("partition")


class NotShort(Exception):
    """A read that was tried as a short one returns too much for that. It needs a thread, and memory for a page."""


class RangeSource(msgspec.Struct, frozen=True):
    """A queue of a read, and its range."""

    access: QueueAccess
    range: RangeRequest


class Reader:
    """Reads ranges of queues, and counts the returned messages as delivered."""

    def __init__(self, store: Store, limits: Limits, metrics: Metrics, core: Core) -> None:
        self._store = store
        self._limits = limits
        self._metrics = metrics
        self._core = core
        self._short_bytes = max(1, min(MAX_SHORT_BYTES, limits.page_bytes) - _RESERVED_BYTES)
        self.watchers = Watchers()
        # By whether reads keep the read delay, and whether they include early messages.
        self._wake_sources = {
            kind: WakeSource(partial(store.messages.watch, keeps_read_delay=kind[0], early=kind[1]), for_all=True)
            for kind in ((True, False), (False, False), (True, True))
        }

    @property
    def clock_difference(self) -> float:
        """Max seconds by which the clocks of two processes differ."""
        return self._store.clock_difference

    def now(self) -> int:
        """Returns the clock of ids (ticks), which is right even if the machine's clock is not.

        Raises:
            StoreUnavailable: The clock of ids is not right.
        """
        return self._store.clock.now_ticks()

    async def read(self, access: QueueAccess, requested: RangeRequest) -> RangeAnswer:
        [result] = await self.read_each([RangeSource(access, requested)])
        if isinstance(result, QueueyError):
            raise result
        return result

    async def read_each(
        self,
        sources: Sequence[RangeSource],
        *,
        waiter: Waiter | None = None,
        waits_for: Sequence[RangeSource] | None = None,
        short: bool = False,
    ) -> list[RangeAnswer | QueueyError]:
        """Reads ranges of several queues, each up to its own horizon. They share the bytes of one answer.

        The messages are counted as delivered.

        Args:
            waiter: Subscribed before the read, so that it misses no message. If nothing was found by outdated rows,
                does both again.
            waits_for: The ranges to which it is subscribed, by default ``sources``.
            short: Read at most ``MAX_SHORT_MESSAGES`` of one partition, and ``MAX_SHORT_BYTES``.

        Returns:
            For each source its answer, or the error if the queue is gone or the caller has lost access to it.

        Raises:
            NotShort: The read is more than ``short`` allows.
        """
        if short and len(sources) > 1:
            raise NotShort
        waits_for = sources if waits_for is None else waits_for
        for _ in range(MAX_ATTEMPTS):
            if waiter is not None:
                queues = [source.access.queue for source in waits_for]
                waiter.subscribe([self._make_subscription(source) for source in waits_for])
            try:
                results = await self._read_one_by_one(sources, short=short)
            except asyncio.CancelledError:
                raise GivenUp("none") from None
            if waiter is None or not are_empty(results):
                return results
            if queues == [source.access.queue for source in waits_for]:
                return results
        raise StoreBusy(f"A queue changed {MAX_ATTEMPTS} times while this request ran. Try again.")

    async def _read_one_by_one(self, sources: Sequence[RangeSource], *, short: bool) -> list[RangeAnswer | QueueyError]:
        remaining_bytes = self._short_bytes if short else self._available_bytes(sources)
        results: list[RangeAnswer | QueueyError] = []
        for number, source in enumerate(sources):
            share = max(1, remaining_bytes // (len(sources) - number)) if remaining_bytes > 0 else 0
            read = partial(self._read_queue, requested=source.range, max_bytes=share, short=short)
            try:
                answer = await source.access.apply(read)
            except (NotFound, NotAllowed, InvalidRequest) as error:
                results.append(error)
                continue
            self._metrics.count_delivered(len(answer.messages) + len(answer.early), source.access.queue)
            results.append(answer)
            if number + 1 < len(sources):
                remaining_bytes -= bytes_of(answer.messages) + bytes_of(answer.early)
        return results

    def _make_subscription(self, source: RangeSource) -> Subscription:
        queue, requested = source.access.queue, source.range
        return (
            queue,
            _partition_numbers(queue, requested),
            self._wake_sources[requested.keeps_read_delay, requested.early],
        )

    def _available_bytes(self, sources: Sequence[RangeSource]) -> int:
        partition_counts = [len(_partition_numbers(source.access.queue, source.range)) for source in sources]
        frames = ranges.MAX_QUEUE_FRAME_BYTES * len(partition_counts) + ranges.MAX_PARTITION_FRAME_BYTES * sum(
            partition_counts
        )
        return max(1, self._limits.page_bytes - frames)

    async def _read_queue(self, queue: Queue, requested: RangeRequest, max_bytes: int, *, short: bool) -> RangeAnswer:
        """Reads a range: merged, or by partition with the slices that are furthest behind first.

        Without bytes it reads only the horizon, or with ``looks_ahead`` the next ids.
        """
        chosen = requested.partitions
        if chosen and not 1 <= min(chosen) <= max(chosen) <= queue.partitions:
            existing = f"1 to {queue.partitions}" if queue.partitions > 1 else "1 alone"
            raise InvalidRequest({"partitions": f"Queue {queue.name!r} has partition numbers {existing}"})
        numbers = _partition_numbers(queue, requested)
        if short and (len(numbers) != 1 or requested.limit > MAX_SHORT_MESSAGES):
            raise NotShort
        pieces = ranges.make_slices(requested, numbers, max_bytes)
        answer = RangeAnswer([], 0, dict.fromkeys(numbers), more=False, cursor_safe=requested.keeps_read_delay)
        if chosen and len(numbers) < queue.partitions:
            answer.partitions = queue.partitions
        if not pieces or (max_bytes <= 0 and not requested.looks_ahead):
            horizon = (await self._store.messages.read(queue, [ranges.make_horizon_slice()]))[0].horizon
            pages = {piece.partition: piece.make_postponed_page(horizon) for piece in pieces}
            ranges.append_pages(pieces, pages, answer)
            answer.horizon = horizon
        elif requested.merge and len(pieces) > 1:
            merge = Merge(pieces, requested.limit, max_bytes, certain=queue.consistency != "weak")
            slices = merge.make_first_slices()
            while slices:
                merge.add_pages(slices, await self._store.messages.read(queue, slices))
                slices = merge.make_further_slices()
            merge.finish(answer)
        else:
            order = ranges.sort_furthest_behind_first(pieces)
            in_order = (
                await self._store.messages.read(queue, order)
                if max_bytes > 0
                else [piece.make_postponed_page(0) for piece in order]
            )
            pages = dict(zip(map(_PARTITION, order), in_order, strict=True))
            if requested.looks_ahead and (
                late := [piece for piece in order if ranges.is_put_off(pages[piece.partition])]
            ):
                ids = await self._store.messages.read(queue, [ranges.make_first_id_slice(piece) for piece in late])
                pages.update(
                    (piece.partition, ranges.postpone_message(page)) for piece, page in zip(late, ids, strict=True)
                )
            ranges.append_pages(pieces, pages, answer)
        if requested.early and (early := self._early_slices(queue, requested, pieces, answer, max_bytes)):
            ranges.add_early(requested, early, await self._store.messages.read(queue, early), answer)
        if short and not self._is_whole(answer, requested.limit):
            raise NotShort
        return answer

    def _is_whole(self, answer: RangeAnswer, limit: int) -> bool:
        """Returns whether a longer read would return no more messages than a short one, and these fit."""
        if not answer.more:
            return not answer.early_more
        frame = ranges.MAX_QUEUE_FRAME_BYTES + ranges.MAX_PARTITION_FRAME_BYTES
        return len(answer.messages) == limit and (
            bytes_at_most(answer.messages[-1:]) + frame <= _RESERVED_BYTES
            or bytes_of(answer.messages) + frame <= self._short_bytes + _RESERVED_BYTES
        )

    def _early_slices(
        self, queue: Queue, requested: RangeRequest, pieces: Sequence[Slice], answer: RangeAnswer, max_bytes: int
    ) -> list[Slice]:
        """Returns the slices of early messages, or none.

        The answer must have reached the horizon, reads must have a delay, and bytes must remain.
        """
        if answer.more or not pieces or not self._store.read_delay(queue):
            return []
        remaining_bytes = max_bytes - bytes_of(answer.messages)
        return ranges.make_early_slices(requested, pieces, answer, remaining_bytes) if remaining_bytes > 0 else []


def _partition_numbers(queue: Queue, requested: RangeRequest) -> Sequence[int]:
    """Returns the partitions, each once; ignores numbers that no queue can have."""
    if requested.partitions is None:
        return range(1, queue.partitions + 1)
    if len(requested.partitions) == 1 and 1 <= requested.partitions[0] <= MAX_PARTITIONS:
        return requested.partitions
    return [number for number in dict.fromkeys(requested.partitions) if 1 <= number <= MAX_PARTITIONS]


def are_empty(responses: Sequence[RangeAnswer | QueueyError]) -> bool:
    """Returns whether all responses are readings without messages, and no further read may return any now."""
    return all(
        isinstance(response, RangeAnswer) and not (response.messages or response.early or response.more)
        for response in responses
    )
