"""The resource at the root of the service: its name, version and store, and links."""

from __future__ import annotations

from queuey import __version__
from queuey.api.queues import Hello
from queuey.service import Service
from queuey.web.endpoint import Match
from queuey.web.requests import Request
from queuey.web.responses import Response, json_response

LINKS = {
    "api": "/v1/",
    "application": "/v1/{application}",
    "openapi": "/v1/openapi.json",
    "docs": "/docs",
    "version": "/__version__",
    "health": "/__heartbeat__",
}


class HelloView:
    """View of ``/`` and of ``/v1/``."""

    def __init__(self, service: Service) -> None:
        self._store = service.store
        self._id: str | None = None

    def show(self, request: Request, match: Match) -> Response:
        """Returns what runs here. The store is asked once for its id."""
        if self._id is None:
            self._id = self._store.identity()
        return json_response(Hello(version=__version__, store=self._store.name, id=self._id, links=LINKS))
