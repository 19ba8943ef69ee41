"""The view of health: what ``queuey doctor`` finds, and what the service counts, for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from queuey import __version__
from queuey.errors import StoreUnavailable
from queuey.messages import Finding
from queuey.service import Service
from queuey.web.authorization import Authorization
from queuey.web.console import pages
from queuey.web.console.sessions import require_caller
from queuey.web.endpoint import Match
from queuey.web.gateway.workers import Collection
from queuey.web.requests import Request
from queuey.web.responses import Response

KEPT = 30.0
"""Seconds for which what was found is shown again, however many ask."""
Examine = Callable[[], list[Finding]]


class HealthView:
    """The view of ``/console/health``.

    Args:
        service: Has the store.
        authorization: Knows who asks.
        examine: Examines the store; blocks.
    """

    def __init__(self, service: Service, authorization: Authorization, examine: Examine) -> None:
        self._service = service
        self._authorization = authorization
        self._findings = Collection(lambda: [*examine(), self._try()], KEPT)

    async def show(self, request: Request, match: Match) -> Response:
        """Shows the health of the store; details only to operators."""
        caller = await request.in_thread(lambda: require_caller(self._authorization, request))
        # A thread of its own examines, for all who ask meanwhile.
        findings = await asyncio.shield(asyncio.wrap_future(self._findings.ask()))
        operates = any(grant.application is None for grant in caller.grants)
        statistics = await request.in_thread(self._service.statistics) if operates else {}
        return pages.render(
            request,
            "health.html",
            caller=caller,
            operates=operates,
            findings=findings if operates else findings[-1:],
            statistics=sorted(statistics.items()),
            store=self._service.store.name,
            version=__version__,
        )

    def _try(self) -> Finding:
        try:
            self._service.store.ping()
        except StoreUnavailable as error:
            return Finding("store", "fail", str(error), "The service's heartbeat is red for the same reason.")
        return Finding("store", "ok", "can be written and read")
