"""Use cases that read ranges of queues and wait for messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec

from queuey.access.queue_access import MAX_ATTEMPTS, QueueAccess
from queuey.messages import ranges
from queuey.messages.ranges import Merge, RangeAnswer, RangeRequest
from queuey.model.errors import NotAllowed, NotFound, QueueyError, StoreBusy
from queuey.model.messages import Page, Queue, Slice, bytes_at_most, bytes_of
from queuey.model.partitions import MAX_PARTITIONS
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.runtime.metrics import Metrics
from queuey.runtime.waiters import Waiter, WakeSource, Watchers
from queuey.storage import Store, bridge
from queuey.storage.deadlines import GivenUp

MAX_SHORT_MESSAGES = 256
"""Max messages of a short read."""
MAX_SHORT_BYTES = 256 * 1024
"""Max bytes of the answer to a short read."""
_RESERVED_BYTES = 16 * 1024
"""Bytes of a short answer that are reserved for the last message and the frame."""


class RangeSource(msgspec.Struct, frozen=True):
    """A queue of a read, and its range."""

    access: QueueAccess
    range: RangeRequest


class Reader:
    """Reads ranges of queues, and counts the returned messages as delivered. Calls that are not coroutines block."""

    def __init__(self, store: Store, limits: Limits, metrics: Metrics, core: Core) -> None:
        self._store = store
        self._limits = limits
        self._metrics = metrics
        self._core = core
        self.watchers = Watchers()
        # By whether reads keep the read delay, and whether they include early messages.
        self._triggers = {
            kind: WakeSource(partial(store.messages.watch, delayed=kind[0], early=kind[1]), for_all=True)
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
        return self._store.claim_logs.claim_time()

    def read(self, access: QueueAccess, requested: RangeRequest, *, waiter: Waiter | None = None) -> RangeAnswer:
        """Reads a range of one queue, and counts the messages as delivered.

        Args:
            access: The queue.
            requested: The range.
            waiter: Subscribed to the range, and woken when another read may return messages.
        """
        if waiter is not None:
            [response] = self.read_many([RangeSource(access, requested)], waiter=waiter)
            if isinstance(response, QueueyError):
                raise response
            return response
        room = self._available_bytes([RangeSource(access, requested)])
        reading = bridge.run(self._read(access, requested, room), as_one=True)
        self._metrics.count_delivered(reading.count, access.queue)
        return reading

    async def read_short(
        self, queue: Queue, requested: RangeRequest, waiter: Waiter | None = None
    ) -> RangeAnswer | None:
        """Reads up to ``MAX_SHORT_MESSAGES`` messages of one partition. Returns None if the read is not short.

        Subscribes the waiter before it reads, and counts the messages as delivered.

        Raises:
            QueueChanged: The row is out of date.
        """
        numbers = _partition_numbers(queue, requested)
        if len(numbers) != 1 or requested.limit > MAX_SHORT_MESSAGES:
            return None
        max_bytes = min(MAX_SHORT_BYTES, self._limits.page_bytes)
        pieces = ranges.make_slices(
            requested, numbers, limit=requested.limit, max_bytes=max(1, max_bytes - _RESERVED_BYTES)
        )
        if not pieces:
            return None
        if waiter is not None:
            waiter.subscribe([(queue, numbers, self._trigger(requested))])
        page = await self._read_page(queue, pieces[0])
        if page.more and not _fits(page, requested.limit, max_bytes):
            return None
        reading = RangeAnswer([], 0, {}, more=False, cursor_safe=requested.delayed)
        ranges.append_pages(pieces, [page], reading)
        if early := self._early_slices(queue, requested, pieces, reading, max(1, max_bytes - _RESERVED_BYTES)):
            page = await self._read_page(queue, early[0])
            if page.more:
                return None
            ranges.add_early(requested, early, [page], reading)
        self._metrics.count_delivered(reading.count, queue)
        return reading

    async def _read_page(self, queue: Queue, piece: Slice) -> Page:
        """Reads a slice; if cancelled, raises ``GivenUp`` with the outcome ``none``."""
        try:
            [page] = await self._store.messages.read(queue, [piece])
        except asyncio.CancelledError:
            raise GivenUp("none") from None
        return page

    def _trigger(self, requested: RangeRequest) -> WakeSource:
        return self._triggers[requested.delayed, requested.early]

    def read_many(
        self, sources: Sequence[RangeSource], *, waiter: Waiter | None = None
    ) -> list[RangeAnswer | QueueyError]:
        """Reads ranges of several queues, each up to its own horizon. They share the bytes of one answer.

        The messages are counted as delivered. With a waiter, reads as :meth:`read_woken`.

        Returns for each source its reading, or the error if the queue is gone or the caller has lost access to it.
        """
        if waiter is not None:
            return self.read_woken(sources, sources, waiter)
        return self._count_delivered(sources, bridge.run(self._read_each(sources), as_one=True))

    def _count_delivered(
        self, sources: Sequence[RangeSource], responses: list[RangeAnswer | QueueyError]
    ) -> list[RangeAnswer | QueueyError]:
        for source, response in zip(sources, responses, strict=True):
            if isinstance(response, RangeAnswer):
                self._metrics.count_delivered(response.count, source.access.queue)
        return responses

    def read_woken(
        self, sources: Sequence[RangeSource], sources_to_read: Sequence[RangeSource], waiter: Waiter
    ) -> list[RangeAnswer | QueueyError]:
        """Subscribes the waiter to ``sources``, then reads ``sources_to_read``, some of them; so no message is missed.

        If nothing was found by outdated rows, does both again.
        """
        for _ in range(MAX_ATTEMPTS):
            queues = [source.access.queue for source in sources]
            waiter.subscribe(
                (queue, _partition_numbers(queue, source.range), self._trigger(source.range))
                for queue, source in zip(queues, sources, strict=True)
            )
            responses = bridge.run(self._read_each(sources_to_read), as_one=True)
            if not are_empty(responses):
                return self._count_delivered(sources_to_read, responses)
            if queues == [source.access.queue for source in sources]:
                return responses
        raise StoreBusy(f"A queue changed {MAX_ATTEMPTS} times while this request ran. Try again.")

    async def _read_each(self, sources: Sequence[RangeSource]) -> list[RangeAnswer | QueueyError]:
        """Reads sources in turn, each with its share of the remaining bytes; returns denials as errors."""
        remaining_bytes = self._available_bytes(sources)
        responses: list[RangeAnswer | QueueyError] = []
        for index, source in enumerate(sources):
            share = ranges.divide_evenly(remaining_bytes, len(sources) - index) if remaining_bytes > 0 else 0
            try:
                reading = await self._read(source.access, source.range, share)
            except (NotFound, NotAllowed) as error:
                responses.append(error)
            else:
                remaining_bytes -= bytes_of(reading.messages) + bytes_of(reading.early)
                responses.append(reading)
        return responses

    def _available_bytes(self, sources: Sequence[RangeSource]) -> int:
        """Returns the bytes for all messages: at least 1, which admits one message of any length."""
        partition_counts = [len(_partition_numbers(source.access.queue, source.range)) for source in sources]
        frames = ranges.MAX_QUEUE_FRAME_BYTES * len(partition_counts) + ranges.MAX_PARTITION_FRAME_BYTES * sum(
            partition_counts
        )
        return max(1, self._limits.page_bytes - frames)

    async def _read(self, access: QueueAccess, requested: RangeRequest, max_bytes: int) -> RangeAnswer:
        return await access.apply(lambda queue: self._read_queue(queue, requested, max_bytes))

    async def _read_queue(self, queue: Queue, requested: RangeRequest, max_bytes: int) -> RangeAnswer:
        """Reads a range: merged, or by partition with the slices that are furthest behind first.

        Without bytes it reads only the horizon, or with ``looks_ahead`` the next ids.
        """
        numbers = _partition_numbers(queue, requested)
        pieces = ranges.make_slices(
            requested, numbers, limit=requested.limit, max_bytes=ranges.divide_evenly(max_bytes, len(numbers))
        )
        reading = RangeAnswer([], 0, dict.fromkeys(numbers), more=False, cursor_safe=requested.delayed)
        if not pieces or (max_bytes <= 0 and not requested.looks_ahead):
            horizon = (await self._store.messages.read(queue, [ranges.make_horizon_slice()]))[0].horizon
            ranges.append_pages(pieces, [piece.make_postponed_page(horizon) for piece in pieces], reading)
            reading.horizon = horizon
        elif requested.merge and len(pieces) > 1:
            merge = Merge(pieces, requested.limit, max_bytes, certain=queue.consistency != "weak")
            slices = merge.make_first_slices()
            while slices:
                merge.add_pages(slices, await self._store.messages.read(queue, slices))
                slices = merge.make_further_slices()
            merge.finish(reading)
        else:
            order = ranges.sort_furthest_behind_first(pieces)
            in_order = (
                await self._store.messages.read(queue, order)
                if max_bytes > 0
                else [piece.make_postponed_page(0) for piece in order]
            )
            pages = {piece.partition: page for piece, page in zip(order, in_order, strict=True)}
            if requested.looks_ahead and (
                late := [piece for piece in order if ranges.is_put_off(pages[piece.partition])]
            ):
                ids = await self._store.messages.read(queue, [ranges.make_first_id_slice(piece) for piece in late])
                pages.update(
                    (piece.partition, ranges.postpone_message(page)) for piece, page in zip(late, ids, strict=True)
                )
            ranges.append_pages(pieces, [pages[piece.partition] for piece in pieces], reading)
        if early := self._early_slices(queue, requested, pieces, reading, max_bytes):
            ranges.add_early(requested, early, await self._store.messages.read(queue, early), reading)
        return reading

    def _early_slices(
        self, queue: Queue, requested: RangeRequest, pieces: Sequence[Slice], reading: RangeAnswer, max_bytes: int
    ) -> list[Slice]:
        """Returns the slices of early messages, or none.

        Early messages must be requested, the reading must have reached the horizon, reads must have a delay, and bytes
        must remain.
        """
        if not requested.early or reading.more or not pieces or not self._store.read_delay(queue):
            return []
        remaining_bytes = max_bytes - bytes_of(reading.messages)
        return ranges.make_early_slices(requested, pieces, reading, remaining_bytes) if remaining_bytes > 0 else []


def _partition_numbers(queue: Queue, requested: RangeRequest) -> Sequence[int]:
    """Returns the partitions, each once; ignores numbers that no queue can have."""
    if requested.partitions is None:
        return range(1, queue.partitions + 1)
    if len(requested.partitions) == 1 and 1 <= requested.partitions[0] <= MAX_PARTITIONS:
        return requested.partitions
    return [number for number in dict.fromkeys(requested.partitions) if 1 <= number <= MAX_PARTITIONS]


def _fits(page: Page, limit: int, max_bytes: int) -> bool:
    """Returns whether a page, read with a bound of ``max_bytes - _RESERVED_BYTES``, has ``limit`` messages and fits."""
    frame = ranges.MAX_QUEUE_FRAME_BYTES + ranges.MAX_PARTITION_FRAME_BYTES
    return len(page.messages) == limit and (
        bytes_at_most(page.messages[-1:]) + frame <= _RESERVED_BYTES or bytes_of(page.messages) + frame <= max_bytes
    )


def are_empty(responses: Sequence[RangeAnswer | QueueyError]) -> bool:
    """Returns whether all responses are readings without messages, and no further read may return any now."""
    return all(isinstance(response, RangeAnswer) and not response.count and not response.more for response in responses)
