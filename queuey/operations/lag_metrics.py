"""Figures for metrics: the counts of all workers, backlogs of queues, and lags of consumer groups.

There may be many queues and groups, so the cost of one scrape is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from queuey.claims.claims import ClaimUseCases
from queuey.groups.offsets import OffsetUseCases
from queuey.model.errors import QueueyError
from queuey.model.messages import Queue
from queuey.queues.queues import Queues
from queuey.runtime import metrics
from queuey.runtime.event_loop import Core
from queuey.runtime.metrics import BACKLOG_STATES, GroupLag, QueueBacklog, Snapshot
from queuey.runtime.workers import Answer, Topic, Workers

log = logging.getLogger("queuey")
T = TypeVar("T")
ANSWER_TIMEOUT = 2.0
"""Timeout for the answers of all other workers to a scrape, in seconds."""
MAX_QUEUES, MAX_PARTITIONS = 100, 1000
"""Max queues shown, and max partitions of all of them: for each, a scrape reads a claim log, or an offset of each
group and the messages after it."""
MAX_COUNTED = 1000
"""Max messages of a queue that are counted; more are estimated."""
MEASURE_INTERVAL = 10.0
"""Interval between counts, in seconds."""
COUNTS_TOPIC = Topic(16, type(None), Snapshot)


class Collection(Generic[T]):
    """Coalesces collections: one task of the event loop collects for all concurrent callers.

    Args:
        collect: Collects.
        seconds: Seconds for which a result is reused.
        clock: The monotonic clock, in seconds.
    """

    def __init__(
        self,
        collect: Callable[[], Coroutine[Any, Any, T]],
        seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._collect = collect
        self._seconds = seconds
        self.clock = clock
        self._latest: asyncio.Task[T] | None = None
        self._until = 0.0

    def begin_or_reuse(self) -> asyncio.Task[T]:
        """Returns the running collection, or a recent one, even if that failed; else starts one."""
        if self._latest is None or self.clock() >= self._until:
            self._latest, self._until = asyncio.create_task(self._collect()), math.inf
            self._latest.add_done_callback(self._record_end)
        return self._latest

    async def read(self) -> T:
        """Returns the result of the running collection or of a recent one, or else of a new one."""
        return await asyncio.shield(self.begin_or_reuse())

    def _record_end(self, latest: asyncio.Task[T]) -> None:
        self._until = self.clock() + self._seconds
        if not latest.cancelled():
            latest.exception()  # All callers may have left.


class WorkerCounts:
    """Metrics of all workers of the service.

    Args:
        own: Returns the counts of this worker.
        workers: This worker and the others.
        core: Counts for the others.
    """

    def __init__(self, own: Callable[[], Coroutine[Any, Any, Snapshot]], workers: Workers, core: Core) -> None:
        self._own = own
        self._workers = workers
        self._core = core
        self._collection = Collection(own)
        workers.handle(COUNTS_TOPIC, self._answer_counts)

    async def collect_all(self) -> metrics.WorkerSnapshots:
        """Returns the counts of all workers, by number; None for one that does not answer in time.

        A sole worker has the key ``""``.
        """
        identity = self._workers.identity
        if identity.total == 1:
            return {"": await self._own()}
        counts = await self._workers.ask_all(COUNTS_TOPIC, None, ANSWER_TIMEOUT) | {identity.number: await self._own()}
        return {str(number): counts[number] for number in sorted(counts)}

    def _answer_counts(self, _question: None, answer: Answer[Snapshot]) -> None:
        self._core.call_soon(self._begin_answer, answer)

    def _begin_answer(self, answer: Answer[Snapshot]) -> None:
        self._collection.begin_or_reuse().add_done_callback(
            lambda task: answer(None if task.cancelled() or task.exception() else task.result())
        )


class ShownQueues:
    """Queues that operators want to see at ``/metrics``.

    Args:
        queues: The use cases of queues.
        patterns: Applications, and patterns of their queues' names.
        what: What is shown of the queues, for the log.
    """

    def __init__(self, queues: Queues, patterns: Sequence[tuple[str, str]], what: str) -> None:
        self._queues = queues
        self._patterns = patterns
        self._what = what

    def __bool__(self) -> bool:
        return bool(self._patterns)

    async def find_queues(self) -> AsyncIterator[Queue]:
        """Yields the matching queues, each once, up to a maximum. Logs if any are left out.

        Skips a pattern whose queues cannot be listed.
        """
        seen: set[tuple[str, str]] = set()
        for application, pattern in self._patterns:
            try:
                queues, more = await self._queues.list(application, start="", limit=MAX_QUEUES, patterns=[pattern])
            except QueueyError as error:
                log.debug("Queues %s/%s cannot be shown: %s", application, pattern, error)
                continue
            for queue in queues:
                if len(seen) >= MAX_QUEUES:
                    log.warning("Metrics leave out %s: more than %d queues match", self._what, MAX_QUEUES)
                    return
                if (application, queue.name) not in seen:
                    seen.add((application, queue.name))
                    yield queue
            if more is not None:
                log.warning("Metrics leave out %s: more than %d queues match %s", self._what, MAX_QUEUES, pattern)

    def leave_out_from(self, queue: Queue, why: str) -> None:
        """Logs that the metrics leave out this queue and all after it; does nothing else."""
        log.warning("Metrics leave out %s from %s/%s on: %s", self._what, queue.application, queue.name, why)


class Backlogs:
    """Measures the backlogs of the shown queues.

    Args:
        queues: The use cases of queues.
        claims: The use cases of claims.
        patterns: Applications, and patterns of their queues' names.
        clock: The monotonic clock, in seconds.
    """

    def __init__(
        self,
        queues: Queues,
        claims: ClaimUseCases,
        patterns: Sequence[tuple[str, str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queues = queues
        self._claims = claims
        self._shown = ShownQueues(queues, patterns, "backlogs")
        self._collection = Collection(self._measure, MEASURE_INTERVAL, clock)

    async def measure(self) -> list[QueueBacklog]:
        """Returns backlogs that are at most ``MEASURE_INTERVAL`` seconds old.

        Queues that cannot be read now are left out.
        """
        return await self._collection.read() if self._shown else []

    async def _measure(self) -> list[QueueBacklog]:
        remaining, backlogs = MAX_PARTITIONS, list[QueueBacklog]()
        async for queue in self._shown.find_queues():
            remaining -= queue.partitions
            if remaining < 0:
                self._shown.leave_out_from(queue, "too many queues")
                break
            try:
                access = self._queues.access_unchecked(queue)
                backlog = await self._claims.overview.backlog(access, MAX_COUNTED)
            except QueueyError as error:  # The queue is gone or cannot be claimed from, or the store is unavailable.
                log.debug("The backlog of %s/%s cannot be shown: %s", queue.application, queue.name, error)
                continue
            age = 0.0 if backlog.oldest is None else max(0.0, time.time() - backlog.oldest)
            counts = {name: getattr(backlog, name) for name in BACKLOG_STATES}
            backlogs.append(QueueBacklog(queue.application, queue.name, counts, age))
        return backlogs


class GroupLags:
    """Measures the lags of all consumer groups in the shown queues, as :class:`Backlogs` measures backlogs."""

    def __init__(
        self,
        queues: Queues,
        offsets: OffsetUseCases,
        patterns: Sequence[tuple[str, str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queues = queues
        self._offsets = offsets
        self._shown = ShownQueues(queues, patterns, "lags")
        self._collection = Collection(self._measure, MEASURE_INTERVAL, clock)

    async def measure(self) -> list[GroupLag]:
        return await self._collection.read() if self._shown else []

    async def _measure(self) -> list[GroupLag]:
        remaining, lags = MAX_PARTITIONS, list[GroupLag]()
        async for queue in self._shown.find_queues():
            try:
                access = self._queues.access_unchecked(queue)
                for group in await self._offsets.list_groups(access):
                    remaining -= queue.partitions
                    if remaining < 0:
                        self._shown.leave_out_from(queue, "too many groups")
                        return lags
                    lags.append(await self._offsets.measure_lag(access, group))
            except QueueyError as error:  # The queue is gone, or the store is unavailable.
                log.debug("The lag of groups in %s/%s cannot be shown: %s", queue.application, queue.name, error)
        return lags
