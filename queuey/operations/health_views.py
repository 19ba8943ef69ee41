"""Resources for operators: health, version and metrics. They need no credential.

The metrics are those of all workers of the service. They include the backlogs of queues and the lags of consumer groups
that operators have configured (:mod:`.lag_metrics`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

from queuey import __version__
from queuey.model.errors import StoreUnavailable
from queuey.model.time_parsing import clock_warning
from queuey.operations.lag_metrics import Collection
from queuey.runtime import metrics
from queuey.runtime.metrics import GroupLag, QueueBacklog, Snapshot
from queuey.storage import Store
from queuey.storage.deadlines import in_thread
from queuey.web.endpoint import Match
from queuey.web.requests import Request
from queuey.web.responses import Response, json_response, text_response

HEARTBEAT_INTERVAL = 1.0
"""Min interval between two heartbeats to the store, in seconds; the counts of a scrape are reused for as long."""


class OpsViews:
    """Views of the resources for operators.

    Args:
        store: The store.
        stopping: Set when the service ends.
        counts: Returns the metrics of all workers.
        backlogs, lags: Return the backlogs and lags that operators have configured.
        clock: The monotonic clock, in seconds.
    """

    def __init__(
        self,
        store: Store,
        stopping: threading.Event,
        counts: Callable[[], Awaitable[Mapping[str, Snapshot | None]]],
        *,
        backlogs: Callable[[], Awaitable[Iterable[QueueBacklog]]],
        lags: Callable[[], Awaitable[Iterable[GroupLag]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._stopping = stopping

        async def collect() -> bytes:
            return await in_thread(partial(metrics.make_exposition, await counts(), await backlogs(), await lags()))

        self.counts = Collection(collect, HEARTBEAT_INTERVAL, clock)
        self.clock = clock
        self._ping_lock = asyncio.Lock()
        self._health: StoreUnavailable | None = None
        self._warning: str | None = None
        self._pinged_at: float | None = None

    async def heartbeat(self, request: Request, match: Match) -> Response:
        """Reports whether the store can write and read, at most ``HEARTBEAT_INTERVAL`` seconds ago, or why not.

        While another request asks the store, it reports the previous result, however old that is.
        """
        if self._pinged_at is None or (self._is_due() and not self._ping_lock.locked()):
            await self._ping_if_due()
        error = self._health
        if error is None:
            return text_response("OK" if self._warning is None else f"OK, but: {self._warning}")
        response = text_response(f"{error.code}: {error}", 503)
        response.headers += (("Retry-After", str(error.retry_after)),)
        return response

    def _is_due(self) -> bool:
        return self._pinged_at is None or self.clock() >= self._pinged_at + HEARTBEAT_INTERVAL

    async def _ping_if_due(self) -> None:
        async with self._ping_lock:
            if self._is_due():
                await self._ping()

    async def _ping(self) -> None:
        try:
            await self._store.ping()
            self._warning = clock_warning(await self._store.ledger.ids_ahead())
            self._health = None
        except StoreUnavailable as error:
            self._health = error.with_traceback(None)
        self._pinged_at = self.clock()

    async def lbheartbeat(self, request: Request, match: Match) -> Response:
        if self._stopping.is_set():
            response = text_response("stopping", 503)
            response.headers += (("Retry-After", "1"),)
            return response
        return text_response("OK")

    async def version(self, request: Request, match: Match) -> Response:
        return json_response({"name": "queuey", "version": __version__, "store": self._store.name})

    async def metrics(self, request: Request, match: Match) -> Response:
        """Returns the metrics of all workers for Prometheus, at most ``HEARTBEAT_INTERVAL`` seconds old.

        However many scrapes there are, and however long other workers take, it uses no thread of the requests.
        """
        return Response(200, await self.counts.read(), ("Content-Type", metrics.CONTENT_TYPE))
