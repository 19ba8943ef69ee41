"""The health page: the findings of ``queuey doctor``, and the service's counters, for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from queuey import __version__
from queuey.console.sessions import Asks
from queuey.errors import StoreUnavailable
from queuey.messages import Finding
from queuey.web.endpoint import Match
from queuey.web.ops import Collection
from queuey.web.requests import Request
from queuey.web.responses import Response

MAX_AGE = 30.0
"""Max age of findings that are shown again, in seconds."""
Examine = Callable[[], list[Finding]]


class HealthView:
    """The view of ``/console/health``.

    Args:
        asks: Knows who asks.
        examine: Examines the store; blocks.
    """

    def __init__(self, asks: Asks, examine: Examine) -> None:
        self._asks = asks
        self._store = asks.service.store
        self._findings = Collection(lambda: [*examine(), self._try()], MAX_AGE)

    async def show(self, request: Request, match: Match) -> Response:
        """Shows the health of the store; details only to operators."""
        ask = await request.in_pool(lambda: self._asks.of(request, match, {}))
        # A thread of its own examines, for all who ask meanwhile.
        findings = await asyncio.shield(asyncio.wrap_future(self._findings.ask()))
        operates = any(grant.application is None for grant in ask.caller.grants)
        statistics = await request.in_pool(ask.service.statistics) if operates else {}
        return ask.render(
            "health.html",
            "Health",
            operates=operates,
            findings=findings if operates else findings[-1:],
            statistics=sorted(statistics.items()),
            store=self._store.name,
            version=__version__,
        )

    def _try(self) -> Finding:
        try:
            self._store.ping()
        except StoreUnavailable as error:
            return Finding("store", "fail", str(error), "The service's heartbeat is red for the same reason.")
        return Finding("store", "ok", "can be written and read")
