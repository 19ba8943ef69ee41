"""Use cases that read ranges: of one queue, of several, and with waiting for messages to come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

import msgspec

from queuey.errors import NotAllowed, NotFound, QueueyError, StoreBusy
from queuey.messages import Page, Queue, Slice
from queuey.metrics import Metrics
from queuey.partitions import MAX_PARTITIONS
from queuey.service import ranges
from queuey.service.limits import Limits
from queuey.service.queue_access import ATTEMPTS, QueueAccess
from queuey.service.ranges import Range, Reading
from queuey.service.watching import Trigger, Waiter, WaitingThread, Watchers
from queuey.storage import Store

SHORT = 256
"""Messages of a short read, at most."""
SHORT_BYTES = 256 * 1024
"""Bytes of bodies of a short read, but for its last message."""


class Source(msgspec.Struct, frozen=True):
    """One queue of a read and what to read of it."""

    access: QueueAccess
    range: Range


class Reader:
    """Reads ranges."""

    def __init__(self, store: Store, limits: Limits, metrics: Metrics, stopping: threading.Event) -> None:
        self._store = store
        self._limits = limits
        self._metrics = metrics
        self._stopping = stopping
        self.watchers = Watchers()
        # By whether reads keep the read delay.
        self._triggers = {
            delayed: Trigger(partial(store.watch, delayed=delayed), for_all=True) for delayed in (True, False)
        }

    def read(self, access: QueueAccess, wanted: Range, wait: float = 0.0, *, waiter: Waiter | None = None) -> Reading:
        """Reads a range of one queue; waits up to ``wait`` seconds if there is nothing to answer.

        Args:
            access: The way to the queue.
            wanted: What to read.
            wait: Seconds to wait at most.
            waiter: The request that waits instead of this call: it learns which triggers wake it, and whether to wait.
                None: this call waits.
        """
        if wait > 0:
            [response] = self.read_many([Source(access, wanted)], wait, waiter=waiter)
            if isinstance(response, QueueyError):
                raise response
            return response
        reading = self._read(access, wanted, self._limits.page_bytes, self._limits.page_bytes)
        self._metrics.delivered(len(reading.messages))
        return reading

    def begin_read(
        self,
        queue: Queue,
        wanted: Range,
        done: Callable[[Reading | None, Exception | None], None],
        wait: float = 0.0,
        waiter: Waiter | None = None,
    ) -> bool:
        """Starts a short read of one partition without blocking, for a caller that is authorized for exactly this row.

        Args:
            queue: The row.
            wanted: What to read.
            done: Called at the end (see ``Messages.begin_read``), without reading and error if the read is not short:
                the caller then reads in the ordinary way, as after ``QueueChanged``.
            wait: As for :meth:`read`.
            waiter: As for :meth:`read`.

        Returns:
            False: it cannot be done so; nothing was begun.
        """
        numbers = _numbers(queue, wanted)
        if len(numbers) != 1 or wanted.limit > SHORT or (wait and waiter is None):
            return False
        max_bytes = min(SHORT_BYTES, self._limits.page_bytes)
        asked = ranges.slices(wanted, numbers, limit=wanted.limit, max_bytes=max_bytes)
        if not asked:
            return False
        if wait and waiter is not None:
            waiter.expect([(queue, numbers, self._triggers[wanted.delayed])])

        def ended(page: Page | None, error: Exception | None) -> None:
            if page is None or (page.more and len(page.messages) < wanted.limit and max_bytes == SHORT_BYTES):
                done(None, error)
                return
            reading = Reading([], 0, {}, more=False, cursor_safe=wanted.delayed)
            ranges.one_after_another(asked, [page], reading)
            if waiter is not None and _fruitless([reading]):
                waiter.found_nothing(wait)
            self._metrics.delivered(len(reading.messages))
            done(reading, None)

        return self._store.begin_read(queue, asked[0], ended)

    def read_many(
        self, sources: Sequence[Source], wait: float = 0.0, *, waiter: Waiter | None = None
    ) -> list[Reading | QueueyError]:
        """Reads ranges of several queues, each under its own horizon, sharing the bytes of one answer.

        Args:
            sources: At least one.
            wait: Seconds to wait at most while no queue has anything.
            waiter: As for :meth:`read`.

        Returns:
            Per source its reading, or why it could not be read (the queue is gone, or no longer the caller's).
        """
        if wait <= 0:
            responses = self._read_each(sources)
        elif waiter is not None:
            responses = self._read_expecting(sources, wait, waiter)
        else:

            def look() -> None:
                for source in sources:
                    source.access.check_again()

            with closing(WaitingThread(self.watchers)) as thread:
                read = partial(self._read_expecting, sources, wait, thread)
                responses = thread.patiently(read, wait, self._stopping, look)
        for response in responses:
            if isinstance(response, Reading):
                self._metrics.delivered(len(response.messages))
        return responses

    def _read_expecting(self, sources: Sequence[Source], wait: float, waiter: Waiter) -> list[Reading | QueueyError]:
        """Reads, after having the waiter woken by whatever comes then: so nothing is missed."""
        for _ in range(ATTEMPTS):
            queues = [source.access.queue for source in sources]
            waiter.expect(
                (queue, _numbers(queue, source.range), self._triggers[source.range.delayed])
                for queue, source in zip(queues, sources, strict=True)
            )
            responses = self._read_each(sources)
            if not _fruitless(responses):
                return responses
            if queues == [source.access.queue for source in sources]:
                waiter.found_nothing(wait)
                return responses
        raise StoreBusy("A queue is being changed all the time.")

    def _read_each(self, sources: Sequence[Source]) -> list[Reading | QueueyError]:
        left = self._limits.page_bytes
        responses: list[Reading | QueueyError] = []
        for index, source in enumerate(sources):
            try:
                reading = self._read(source.access, source.range, ranges.share(left, len(sources) - index), left)
            except (NotFound, NotAllowed) as error:
                responses.append(error)
            else:
                left -= ranges.body_bytes(reading.messages)
                responses.append(reading)
        return responses

    def _read(self, access: QueueAccess, wanted: Range, max_bytes: int, most: int) -> Reading:
        return access.use(lambda queue: self._read_queue(queue, wanted, max_bytes, most))

    def _read_queue(self, queue: Queue, wanted: Range, max_bytes: int, most: int) -> Reading:
        """Reads about ``max_bytes`` of bodies, and never more than ``most`` plus one message."""
        numbers = _numbers(queue, wanted)
        parts = len(numbers)
        limit = wanted.limit
        if wanted.merge:
            limit = min(limit, ranges.share(2 * limit, parts, ranges.MERGE_MINIMUM))
        asked = ranges.slices(wanted, numbers, limit=limit, max_bytes=ranges.share(max_bytes, parts))
        reading = Reading([], 0, dict.fromkeys(numbers), more=False, cursor_safe=wanted.delayed)
        if not asked or most <= 0:
            reading.horizon = self._store.read(queue, [ranges.nothing()])[0].horizon
            ranges.one_after_another(asked, ranges.put_off(asked), reading)
            return reading
        if not wanted.merge:
            ranges.one_after_another(asked, self._pages(queue, asked, most), reading)
            return reading
        max_bytes = min(max_bytes, most)
        ranges.merge(asked, self._store.read(queue, asked), wanted.limit, max_bytes, reading)
        while reading.more and len(reading.messages) < wanted.limit:
            weight = ranges.body_bytes(reading.messages)
            if weight >= max_bytes:
                break
            asked = ranges.resume(asked, reading, limit=limit, max_bytes=ranges.share(max_bytes - weight, parts))
            ranges.merge(asked, self._store.read(queue, asked), wanted.limit, max_bytes, reading)
        return reading

    def _pages(self, queue: Queue, asked: Sequence[Slice], most: int) -> list[Page]:
        """Reads slices, only as many at a time as fit in memory if each returns one message of the greatest size.

        The slices that do not fit are put off: their pages are empty.
        """
        if most >= self._limits.longest * len(asked):
            return self._store.read(queue, asked)
        pages: dict[int, Page] = {}
        waiting = ranges.furthest_behind(asked)
        while waiting and most > 0:
            now = max(1, most // self._limits.longest)
            some, waiting = waiting[:now], waiting[now:]
            for piece, page in zip(some, self._store.read(queue, some), strict=True):
                pages[piece.partition] = page
                most -= ranges.body_bytes(page.messages)
        pages.update(zip((piece.partition for piece in waiting), ranges.put_off(waiting), strict=True))
        return [pages[piece.partition] for piece in asked]


def _numbers(queue: Queue, wanted: Range) -> Sequence[int]:
    """Returns the partitions to read, each once; numbers that no queue can have are left out."""
    if wanted.partitions is None:
        return range(1, queue.partitions + 1)
    if len(wanted.partitions) == 1 and 1 <= wanted.partitions[0] <= MAX_PARTITIONS:
        return wanted.partitions
    return [number for number in dict.fromkeys(wanted.partitions) if 1 <= number <= MAX_PARTITIONS]


def _fruitless(responses: Sequence[Reading | QueueyError]) -> bool:
    """Returns whether there is nothing to answer yet: no message, nothing more to read, and no queue lost."""
    return all(isinstance(response, Reading) and not response.messages and not response.more for response in responses)
