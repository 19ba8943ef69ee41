"""The backlogs of queues that operators see, of which there may be many: what one look may cost is bounded."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from queuey.errors import QueueyError
from queuey.messages import Queue
from queuey.metrics import BACKLOG_STATES, QueueBacklog
from queuey.service import Service

log = logging.getLogger("queuey")

MAX_QUEUES, MAX_PARTITIONS = 100, 1000
"""Queues that are shown, and partitions that they have together: each has a claim log to be read."""
MAX_COUNTED = 1000
"""Max messages of a queue that are counted; further ones are estimated."""
INTERVAL = 10.0
"""Interval between counts, in seconds."""


class Backlogs:
    """Looks at the backlogs of some queues.

    Args:
        service: Has the queues.
        patterns: Applications, and patterns of their queues' names.
        clock: Monotonic seconds.
        queues, partitions: Max queues and partitions shown.
    """

    def __init__(
        self,
        service: Service,
        patterns: Sequence[tuple[str, str]],
        clock: Callable[[], float] = time.monotonic,
        *,
        queues: int = MAX_QUEUES,
        partitions: int = MAX_PARTITIONS,
    ) -> None:
        self._service = service
        self._patterns = patterns
        self._clock = clock
        self._most_queues, self._most_partitions = queues, partitions
        self._lock = threading.Lock()
        self._found: list[QueueBacklog] = []
        self._until = 0.0

    def look(self) -> list[QueueBacklog]:
        """Returns the backlogs as they were a moment ago; blocks. Queues that cannot be asked now are left out."""
        with self._lock:
            if self._patterns and self._clock() >= self._until:
                self._found = list(self._look())
                self._until = self._clock() + INTERVAL
            return self._found

    def _look(self) -> Iterator[QueueBacklog]:
        left = self._most_partitions
        for queue in self._queues():
            left -= queue.partitions
            if left < 0:
                log.warning("Metrics leave out backlogs from %s/%s on: too many queues", queue.application, queue.name)
                return
            try:
                access = self._service.enter(queue, lambda _queue: None)
                backlog = self._service.claims.backlog(access, MAX_COUNTED)
            except QueueyError as error:  # The queue is gone, or cannot be claimed from; or the store is away.
                log.debug("The backlog of %s/%s cannot be shown: %s", queue.application, queue.name, error)
                continue
            age = 0.0 if backlog.oldest is None else max(0.0, time.time() - backlog.oldest)
            counts = {name: getattr(backlog, name) for name in BACKLOG_STATES}
            yield QueueBacklog(queue.application, queue.name, counts, age)

    def _queues(self) -> Iterator[Queue]:
        """Gives the queues that match, each once, as many as may be shown."""
        seen: set[tuple[str, str]] = set()
        for application, pattern in self._patterns:
            try:
                found, more = self._service.queues.list(
                    application, start="", limit=self._most_queues, patterns=[pattern]
                )
            except QueueyError as error:
                log.debug("Queues %s/%s cannot be shown: %s", application, pattern, error)
                continue
            for queue in found:
                if len(seen) >= self._most_queues:
                    log.warning("Metrics leave out backlogs: more than %d queues match", self._most_queues)
                    return
                if (application, queue.name) not in seen:
                    seen.add((application, queue.name))
                    yield queue
            if more is not None:
                log.warning("Metrics leave out backlogs: more than %d queues match %s", self._most_queues, pattern)
