"""Resources for operators: health, version and metrics. They need no credential."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from queuey import __version__, metrics
from queuey.errors import StoreUnavailable
from queuey.metrics import QueueBacklog
from queuey.service import Service
from queuey.service.workers.counts import Collection, Told
from queuey.time_parsing import clock_warning
from queuey.web.endpoint import Handler, Match
from queuey.web.ops.backlogs import Backlogs
from queuey.web.parts import App
from queuey.web.requests import Request
from queuey.web.responses import Response, json_response, text_response

HEARTBEAT_INTERVAL = 1.0
"""Interval between two heartbeats to the store, in seconds; counts of a scrape are reused for as long."""


class OpsViews:
    """Views of the operations resources."""

    def __init__(
        self,
        service: Service,
        clock: Callable[[], float] = time.monotonic,
        backlogs: Callable[[], Iterable[QueueBacklog]] = tuple,
    ) -> None:
        self._service = service
        told = Told(lambda: metrics.snapshot(service.metrics, service.statistics()), service.workers)
        self._counts = Collection(lambda: metrics.exposition(told.all(), backlogs()), HEARTBEAT_INTERVAL, clock)
        self._clock = clock
        self._looking = threading.Lock()
        self._health: StoreUnavailable | None = None
        self._warning: str | None = None
        self._looked: float | None = None

    async def heartbeat(self, request: Request, match: Match) -> Response:
        """Returns whether the store can write and read, and why not; at most ``HEARTBEAT_INTERVAL`` seconds old."""
        if self._looked is None or (self._due() and not self._looking.locked()):
            await request.in_pool(self._look)
        return self._say()

    def _say(self) -> Response:
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
            self._service.store.ping()
            self._warning = clock_warning(self._service.store.ids_ahead())
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


def includeme(config: Any) -> None:  # noqa: ANN401 - Pyramid's objects have no types
    """Adds the operations resources."""
    app: App = config.registry.app
    views = OpsViews(app.service, backlogs=Backlogs(app.service, app.shown_backlogs).look)
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
