"""The last hour of a queue as charts, kept fresh by a stream: each event has the whole hour."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from queuey.console import cookies, pages
from queuey.errors import NoCredential, QueueyError, StoreClosed, TooManyRequests
from queuey.service import QueueAccess, Service
from queuey.service.browsing.history import STEP, UNKNOWN, Cells, History
from queuey.service.operating.credentials import UserLogin
from queuey.web.admission.long_polls import LongPoll
from queuey.web.authorization import Authorization
from queuey.web.endpoint import Match
from queuey.web.errors import error_response
from queuey.web.requests import Request
from queuey.web.responses import Body, Response, event

SAMPLE_INTERVAL = 60.0
"""Interval between two counts of all queues, in seconds."""
RATE_CELLS = 6
"""Number of finished cells that a rate is the mean of: a minute."""
MAX_LIVE = 20
"""Max streams of charts of one key in this process: each takes a long poll of the key's application."""
HEADERS = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("X-Accel-Buffering", "no"),
    *pages.HEADERS,
)
log = logging.getLogger("queuey")


class ChartView:
    def __init__(self, service: Service, authorization: Authorization, history: History) -> None:
        self._service = service
        self._authorization = authorization
        self._history = history
        self._live: list[tuple[bytes | UserLogin, LongPoll]] = []
        """Keys and users, and their streams. Used in the loop's thread."""

    async def live(self, request: Request, match: Match) -> Response:
        """Streams the last hour, repeated after each silence; checks the rights each time."""
        if (await self._authorization.identify(request)).anonymous:
            raise NoCredential("Log in to see this page.")
        await self._authorization.admit(request, match, "measure")
        token = cookies.read(request, cookies.SESSION) or ""
        holder = await request.in_pool(lambda: self._service.sessions.find(token).holder)
        request.headers["accept"] = "text/event-stream"  # The form of errors from here on.
        source = ChartEvents(self, request, match, holder)
        return await request.stream(source, self._authorization.seen(request), *HEADERS)

    def count(self, holder: bytes | UserLogin, turn: LongPoll) -> None:
        """Counts a stream that is about to begin.

        Raises:
            TooManyRequests: There are too many of this key or user.
        """
        self._live = [(other, each) for other, each in self._live if not each.closed]
        if sum(other == holder for other, _ in self._live) >= MAX_LIVE:
            raise TooManyRequests(
                f"{MAX_LIVE} live charts of this key or user are open, the most that there may be. Close a page."
            )
        self._live.append((holder, turn))

    async def figures(self, request: Request, match: Match) -> dict[str, Sequence[float | None]]:
        """Returns the last hour of a queue.

        Raises:
            NotAllowed: The caller may no longer see it.
        """
        access = await self._authorization.admit(request, match, "measure")
        return await request.in_pool(lambda: self._figures(access), computes=True)

    def _figures(self, access: QueueAccess) -> dict[str, Sequence[float | None]]:
        """Returns the times of all cells, with messages a second and the depth."""
        count = self._service.queues.count(access.queue)
        if count is not None:
            self._history.note_depth(access.queue, count)
        cells = self._history.of(access.queue)
        first = cells.last - len(cells.sent) + 1
        return {
            "at": [(first + index) * STEP for index in range(len(cells.sent))],
            "sent": [each / STEP for each in cells.sent],
            "taken": [each / STEP for each in cells.taken],
            "depth": [None if each == UNKNOWN else each for each in cells.depth],
        }


class ChartEvents:
    """The last hour of a queue, again after each silence (:class:`queuey.web.admission.event_streams.Source`)."""

    queues = 0
    more = False
    looks_unwoken = True

    def __init__(self, view: ChartView, request: Request, match: Match, holder: bytes | UserLogin) -> None:
        self._view = view
        self._request = request
        self._match = match
        self._holder = holder

    async def first(self, turn: LongPoll) -> list[bytes]:
        self._view.count(self._holder, turn)
        return await self.further(turn, woken=True)

    async def further(self, turn: LongPoll, *, woken: bool) -> list[bytes]:
        return [event("chart", await self._view.figures(self._request, self._match))]

    def pause(self, beat: float) -> float:
        return beat

    def explain(self, error: Exception) -> Body:
        return error_response(error, self._request).body


def rates(cells: Cells) -> tuple[float, float]:
    """Returns the messages a second that were sent and taken in the last minute, without the unfinished cell."""
    sent, taken = (sum(ring[-RATE_CELLS - 1 : -1]) / (RATE_CELLS * STEP) for ring in (cells.sent, cells.taken))
    return sent, taken


def sample(service: Service, history: History, wait: Callable[[float], bool]) -> None:
    """Counts the messages of queues that were used lately, round after round, until ``wait`` returns True."""
    while not wait(SAMPLE_INTERVAL):
        for application, name in history.lately():
            try:
                queue = service.find(application, name)
                history.note_depth(queue, service.queues.count(queue) or 0)
            except StoreClosed:
                return
            except QueueyError as error:  # It is gone, or the store is away.
                log.debug("The messages of %s/%s cannot be counted: %s", application, name, error)
