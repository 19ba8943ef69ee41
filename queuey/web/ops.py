"""Resources for operators: health, version and metrics. They need no credential.

Metrics are those of all workers of the service. They have the backlogs of queues, and the lags of consumer groups, that
operators want to see, of which there may be many: what one look may cost is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from queuey import __version__, metrics
from queuey.errors import QueueyError, StoreUnavailable
from queuey.messages import Queue
from queuey.metrics import BACKLOG_STATES, GroupLag, QueueBacklog, Snapshot
from queuey.service import Service
from queuey.service.workers import Answer, Topic, Workers
from queuey.storage import bridge
from queuey.time_parsing import clock_warning
from queuey.web.endpoint import Handler, Match
from queuey.web.parts import App
from queuey.web.requests import Request
from queuey.web.responses import Response, json_response, text_response

log = logging.getLogger("queuey")
T = TypeVar("T")

HEARTBEAT_INTERVAL = 1.0
"""Interval between two heartbeats to the store, in seconds; counts of a scrape are reused for as long."""
ANSWER_SECONDS = 2.0
"""Timeout of a scrape for all other workers together, in seconds."""
MAX_QUEUES, MAX_PARTITIONS = 100, 1000
"""Queues that are shown, and partitions that they have together: each has a claim log to be read, or of each group an
offset and what lies behind it."""
MAX_COUNTED = 1000
"""Max messages of a queue that are counted; further ones are estimated."""
INTERVAL = 10.0
"""Interval between counts, in seconds."""
COUNTS = Topic(16, type(None), Snapshot)


class OpsViews:
    """Views of the operations resources."""

    def __init__(
        self,
        service: Service,
        clock: Callable[[], float] = time.monotonic,
        backlogs: Callable[[], Iterable[QueueBacklog]] = tuple,
        lags: Callable[[], Iterable[GroupLag]] = tuple,
    ) -> None:
        self._service = service
        counts = WorkerCounts(lambda: metrics.snapshot(service.metrics, service.statistics()), service.workers)
        self._counts = Collection(
            lambda: metrics.exposition(counts.all(), backlogs(), lags()), HEARTBEAT_INTERVAL, clock
        )
        self._clock = clock
        self._looking = threading.Lock()
        self._health: StoreUnavailable | None = None
        self._warning: str | None = None
        self._looked: float | None = None

    async def heartbeat(self, request: Request, match: Match) -> Response:
        """Returns whether the store can write and read, and why not; at most ``HEARTBEAT_INTERVAL`` seconds old."""
        if self._looked is None or (self._due() and not self._looking.locked()):
            await request.in_pool(self._look)
        error = self._health
        if error is None:
            return text_response("OK" if self._warning is None else f"OK, but: {self._warning}")
        response = text_response(f"{error.code}: {error}", 503)
        response.headers += (("Retry-After", str(error.retry_after)),)
        return response

    def _due(self) -> bool:
        return self._looked is None or self._clock() >= self._looked + HEARTBEAT_INTERVAL

    def _look(self) -> None:
        """Writes to the store, unless that was done a moment ago, because any caller may ask for it."""
        if self._looking.acquire(blocking=self._looked is None):
            try:
                if self._due():
                    self._ping()
            finally:
                self._looking.release()

    def _ping(self) -> None:
        try:
            bridge.run(self._service.store.ping())
            self._warning = clock_warning(bridge.run(self._service.store.ledger.ids_ahead()))
            self._health = None
        except StoreUnavailable as error:
            self._health = error.with_traceback(None)
        self._looked = self._clock()

    async def lbheartbeat(self, request: Request, match: Match) -> Response:
        """Returns whether this process accepts requests; load balancers stop sending them when it is about to end."""
        if self._service.stopping.is_set():
            response = text_response("stopping", 503)
            response.headers += (("Retry-After", "1"),)
            return response
        return text_response("OK")

    async def version(self, request: Request, match: Match) -> Response:
        """Returns name and version of the service."""
        return json_response({"name": "queuey", "version": __version__, "store": self._service.store.name})

    async def metrics(self, request: Request, match: Match) -> Response:
        """Writes what all workers had done at most ``HEARTBEAT_INTERVAL`` seconds ago, for Prometheus.

        However many ask and however long other workers take, that needs no thread of the requests.
        """
        found = await asyncio.shield(asyncio.wrap_future(self._counts.ask()))  # others wait for it, too
        return Response(200, found, ("Content-Type", metrics.CONTENT_TYPE))


class Collection(Generic[T]):
    """Coalesces collections: one thread collects for all concurrent callers.

    Args:
        collect: Does it; may block.
        seconds: For how long what was collected is given to those who ask later.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self, collect: Callable[[], T], seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._collect = collect
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._latest: Future[T] | None = None
        self._until = 0.0

    def ask(self) -> Future[T]:
        """Returns what is being collected, or was a moment ago; begins if there is neither. Does not block."""
        with self._lock:
            if self._latest is None or self._clock() >= self._until:
                latest: Future[T] = Future()
                threading.Thread(target=self._run, args=(latest,), name="queuey-counts", daemon=True).start()
                self._latest, self._until = latest, math.inf
            return self._latest

    def _run(self, latest: Future[T]) -> None:
        try:
            found = self._collect()
        except Exception as error:  # noqa: BLE001 - those who ask get it
            self._end()
            latest.set_exception(error)
        else:
            self._end()
            latest.set_result(found)

    def _end(self) -> None:
        with self._lock:
            self._until = self._clock() + self._seconds


class WorkerCounts:
    """Metrics of all workers of the service.

    Args:
        own: Returns what this worker has counted.
        workers: This worker and the others.
    """

    def __init__(self, own: Callable[[], Snapshot], workers: Workers) -> None:
        self._own = own
        self._workers = workers
        self._collection = Collection(own)
        workers.handle(COUNTS, self._tell)

    def all(self) -> metrics.Workers:
        """Asks all workers; one that does not answer in time has None."""
        identity = self._workers.identity
        if identity.total == 1:
            return {"": self._own()}
        found = self._workers.ask_all(COUNTS, None, ANSWER_SECONDS) | {identity.number: self._own()}
        return {str(number): found[number] for number in sorted(found)}

    def _tell(self, _question: None, answer: Answer[Snapshot]) -> None:
        """Answers when a thread has asked the store, too."""
        self._collection.ask().add_done_callback(lambda found: answer(None if found.exception() else found.result()))


class ShownQueues:
    """Queues that operators want to see at ``/metrics``.

    Args:
        service: Has the queues.
        patterns: Applications, and patterns of their queues' names.
        what: What of them is shown, for the log.
    """

    def __init__(self, service: Service, patterns: Sequence[tuple[str, str]], what: str) -> None:
        self._service = service
        self._patterns = patterns
        self._what = what

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def queues(self) -> Iterator[Queue]:
        """Gives the queues that match, each once, as many as may be shown."""
        seen: set[tuple[str, str]] = set()
        for application, pattern in self._patterns:
            try:
                queues, more = self._service.queues.list(application, start="", limit=MAX_QUEUES, patterns=[pattern])
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
        log.warning("Metrics leave out %s from %s/%s on: %s", self._what, queue.application, queue.name, why)


class Backlogs:
    """Looks at the backlogs of some queues.

    Args:
        service: Has the queues.
        patterns: Applications, and patterns of their queues' names.
        clock: Monotonic seconds.
    """

    def __init__(
        self, service: Service, patterns: Sequence[tuple[str, str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._service = service
        self._shown = ShownQueues(service, patterns, "backlogs")
        self._collection = Collection(lambda: list(self._look()), INTERVAL, clock)

    def look(self) -> list[QueueBacklog]:
        """Returns the backlogs as they were a moment ago; blocks. Queues that cannot be asked now are left out."""
        return self._collection.ask().result() if self._shown else []

    def _look(self) -> Iterator[QueueBacklog]:
        left = MAX_PARTITIONS
        for queue in self._shown.queues():
            left -= queue.partitions
            if left < 0:
                self._shown.leave_out_from(queue, "too many queues")
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


class GroupLags:
    """Looks at the lag of all consumer groups in some queues; arguments are those of :class:`Backlogs`."""

    def __init__(
        self, service: Service, patterns: Sequence[tuple[str, str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._service = service
        self._shown = ShownQueues(service, patterns, "lags")
        self._collection = Collection(lambda: list(self._measure()), INTERVAL, clock)

    def measure(self) -> list[GroupLag]:
        """Returns the lags as they were a moment ago; blocks. Queues that cannot be asked now are left out."""
        return self._collection.ask().result() if self._shown else []

    def _measure(self) -> Iterator[GroupLag]:
        remaining = MAX_PARTITIONS
        for queue in self._shown.queues():
            try:
                access = self._service.enter(queue, lambda _queue: None)
                for group in self._service.offsets.groups(access):
                    remaining -= queue.partitions
                    if remaining < 0:
                        self._shown.leave_out_from(queue, "too many groups")
                        return
                    yield self._service.offsets.standing(access, group)
            except QueueyError as error:  # The queue is gone, or the store is away.
                log.debug("The lag of groups in %s/%s cannot be shown: %s", queue.application, queue.name, error)


def includeme(config: Any) -> None:  # noqa: ANN401 - Pyramid's objects have no types
    """Adds the operations resources."""
    app: App = config.registry.app
    backlogs, lags = Backlogs(app.service, app.shown_backlogs), GroupLags(app.service, app.shown_lags)
    views = OpsViews(app.service, backlogs=backlogs.look, lags=lags.measure)
    resources: list[tuple[str, str, Handler]] = [
        ("ops.heartbeat", "/__heartbeat__", views.heartbeat),
        ("ops.lbheartbeat", "/__lbheartbeat__", views.lbheartbeat),
        ("ops.version", "/__version__", views.version),
    ]
    if app.publish_metrics:
        # Where a facade has all other paths, a queue may be called metrics.
        path = "/metrics" if app.own_api else "/__metrics__"
        resources.append(("ops.metrics", path, views.metrics))
    for name, path, view in resources:
        config.add_resource(name, path + "{_:/?}", {"GET": view}, operation=True)
