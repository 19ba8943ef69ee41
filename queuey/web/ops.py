"""Resources for operators: health, version and metrics. They need no credential."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from queuey import __version__, metrics
from queuey.errors import StoreUnavailable
from queuey.service import Service
from queuey.web.endpoint import Begun, EarlyHandler, Endpoint, Handler, Match, WouldBlock
from queuey.web.gateway.workers import Collection, Told
from queuey.web.responses import Environ, Response, json_response, text_response

LOOK_EVERY = 1.0
"""Seconds between two writes of the heartbeat to the store, and for which the counts of a scrape are given again."""


class OpsViews:
    """Views of the operations resources."""

    def __init__(self, service: Service, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        told = Told(lambda: metrics.snapshot(service.metrics, service.statistics()), service.workers)
        self._counts = Collection(lambda: metrics.exposition(told.all()), LOOK_EVERY, clock)
        self._clock = clock
        self._looking = threading.Lock()
        self._health: StoreUnavailable | None = None
        self._looked: float | None = None

    def heartbeat(self, environ: Environ, match: Match) -> Response:
        """Says whether the store can write and read, and why not, as it was at most ``LOOK_EVERY`` seconds ago."""
        if self._looking.acquire(blocking=self._looked is None):
            try:
                self._look()
            finally:
                self._looking.release()
        return self._say()

    def heartbeat_at_once(self, environ: Environ, match: Match) -> Response:
        """Answers a heartbeat from memory. Once a second, a thread checks again.

        Raises:
            WouldBlock: A check of the store is due, and none is running.
        """
        if self._looked is None or (self._due() and not self._looking.locked()):
            raise WouldBlock
        return self._say()

    def _say(self) -> Response:
        error = self._health
        if error is None:
            return text_response("OK")
        response = text_response(f"{error.code}: {error}", 503)
        response.headers += (("Retry-After", str(error.retry_after)),)
        return response

    def _due(self) -> bool:
        return self._looked is None or self._clock() >= self._looked + LOOK_EVERY

    def _look(self) -> None:
        """Writes to the store, unless that was done a moment ago, because any caller may ask for it."""
        if not self._due():
            return
        try:
            self._service.store.ping()
            self._health = None
        except StoreUnavailable as error:
            self._health = error.with_traceback(None)
        self._looked = self._clock()

    def lbheartbeat(self, environ: Environ, match: Match) -> Response:
        """Says whether this process takes requests; load balancers stop sending them when it is about to end."""
        if self._service.stopping.is_set():
            response = text_response("stopping", 503)
            response.headers += (("Retry-After", "1"),)
            return response
        return text_response("OK")

    def version(self, environ: Environ, match: Match) -> Response:
        """Says what runs here."""
        return json_response({"name": "queuey", "version": __version__, "store": self._service.store.name})

    def metrics(self, environ: Environ, match: Match) -> Response:
        """Writes what all workers had done at most ``LOOK_EVERY`` seconds ago, for Prometheus."""
        return _exposed(self._counts.ask().result())

    def metrics_at_once(self, environ: Environ, match: Match) -> Begun:
        """Does that without a thread of the requests, however many ask and however long other workers take."""
        return _counted(self._counts), _exposed


async def _counted(counts: Collection[bytes]) -> bytes:
    found: bytes = await asyncio.shield(asyncio.wrap_future(counts.ask()))  # others wait for it, too
    return found


def _exposed(found: bytes) -> Response:
    return Response(200, found, ("Content-Type", metrics.CONTENT_TYPE))


def includeme(config: Any) -> None:  # noqa: ANN401 - Pyramid's objects have no types
    """Adds the operations resources."""
    service: Service = config.registry.service
    views = OpsViews(service)
    # Name, path, what answers in a thread, and what answers without one.
    resources: list[tuple[str, str, Handler, EarlyHandler]] = [
        ("ops.heartbeat", "/__heartbeat__", views.heartbeat, views.heartbeat_at_once),
        ("ops.lbheartbeat", "/__lbheartbeat__", views.lbheartbeat, views.lbheartbeat),
        ("ops.version", "/__version__", views.version, views.version),
    ]
    if config.registry.publish_metrics:
        # Where a facade has all other paths, a queue may be called metrics.
        path = "/metrics" if config.registry.served.only is None else "/__metrics__"
        resources.append(("ops.metrics", path, views.metrics, views.metrics_at_once))
    # Answered at once by their exact path, with a slash at its end or not.
    config.registry.operations = {}
    for name, path, handler, at_once in resources:
        endpoint = Endpoint(name, service.metrics, {"GET": handler}, dict.fromkeys(("GET", "HEAD"), at_once))
        config.registry.operations |= dict.fromkeys((path, f"{path}/"), endpoint)
        config.add_route(name, path + "{_:/?}")
        config.add_view(endpoint, route_name=name)
