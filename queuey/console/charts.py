"""The present figures of a queue and charts of its last hour. A stream updates them: each event has the whole hour."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from queuey.access.authorization import Authorization
from queuey.access.issued_credentials import UserLogin
from queuey.access.queue_access import QueueAccess
from queuey.api.claims import Backlog
from queuey.app.service import Service
from queuey.console import cookies, pages
from queuey.model import ids
from queuey.model.errors import ClaimsRefused, NoCredential, QueueyError, StoreClosed, TooManyRequests
from queuey.model.time_parsing import format_duration
from queuey.operations.queue_activity import CELL_SECONDS, UNKNOWN_DEPTH, Cells, History
from queuey.web.admission.long_polls import LongPoll
from queuey.web.endpoint import Match
from queuey.web.errors import error_response
from queuey.web.requests import Request, read_query
from queuey.web.responses import Body, Response, make_event

SAMPLE_INTERVAL = 60.0
"""Interval between two counts of recently used queues, in seconds."""
SPAN_SECONDS = {"5m": 300, "1h": 3600}
"""Seconds that charts show, by name in the address."""
TABLE_ROWS = 10
MAX_COUNTED = 1000
"""Max jobs that are counted; more are estimated."""
FIELDS = frozenset({"tiles"})
RATE_CELLS = 6
"""Number of finished cells over which a rate is averaged: one minute."""
MIN_WHOLE = 10
"""Min messages a second that are shown without decimals."""
MAX_LIVE = 20
"""Max chart streams of one key in this process: each uses one of the application's long polls."""
log = logging.getLogger("queuey")


class Figures(NamedTuple):
    """The backlog of a queue, and the messages a second that are sent and taken."""

    backlog: Backlog
    sent: float
    taken: float

    def tiles(self) -> dict[str, str]:
        backlog, about = self.backlog, "" if self.backlog.exact else "about "
        return {
            "waiting": f"{about}{backlog.waiting:,}",
            "claimed": f"{backlog.claimed:,}",
            "retrying": f"{backlog.retrying:,}",
            "dead": f"{backlog.dead:,}",
            "oldest": "none"
            if backlog.oldest is None
            else format_duration(max(0, round(time.time() - backlog.oldest))),
            "sent": rate_text(self.sent),
            "taken": rate_text(self.taken),
        }


async def measure_figures(service: Service, access: QueueAccess, cells: Cells) -> Figures:
    return Figures(await count_backlog(service, access), *mean_rates(cells))


async def count_backlog(service: Service, access: QueueAccess) -> Backlog:
    """Counts the jobs of a queue, above :data:`MAX_COUNTED` by estimate.

    In a queue that takes no claims, all messages count as waiting, roughly.
    """
    try:
        return await service.claims.overview.backlog(access, MAX_COUNTED)
    except ClaimsRefused:
        parts = await service.queues.inspect_partitions(access.queue, rough=True) or ()
    return Backlog(
        waiting=sum(part.count for part in parts),
        exact=all(part.exact for part in parts),
        delayed=0,
        claimed=0,
        failed=0,
        dead=0,
        oldest=min((ids.ticks_to_seconds(part.oldest[0]) for part in parts if part.oldest is not None), default=None),
        due=None,
    )


def rate_text(rate: float) -> str:
    """Formats a rate, given in messages a second, for people.

    Example:
        >>> rate_text(1234.5), rate_text(2.25), rate_text(0.1), rate_text(0)
        ('1,234/s', '2.2/s', '6/min', '0/s')
    """
    if rate and rate < 1:
        return f"{rate * 60:.0f}/min"
    return f"{rate:,.0f}/s" if rate >= MIN_WHOLE or not rate else f"{rate:.1f}/s"


def choose_span(name: str, cells: Cells) -> str:
    """Returns the span that charts show: the chosen one, else the shorter one if nothing is known before it, else all.

    An unknown name counts as none.
    """
    if name in SPAN_SECONDS:
        return name
    short, whole = SPAN_SECONDS
    before = slice(0, -SPAN_SECONDS[short] // CELL_SECONDS)
    is_short = not any(cells.sent[before]) and not any(cells.taken[before])
    return short if is_short and set(cells.depth[before]) <= {UNKNOWN_DEPTH} else whole


class Interval(NamedTuple):
    """The messages sent and taken in a part of the hour, and the depth at its end."""

    begin: float
    sent: int
    taken: int
    depth: int | None


def make_table(cells: Cells, seconds: int) -> list[Interval]:
    """Returns the counts of the last ``seconds`` in :data:`TABLE_ROWS` equal parts, the latest first.

    The depth is the last known one of each part, or None.
    """
    step = seconds // CELL_SECONDS // TABLE_ROWS
    rows = []
    for end in range(len(cells.sent), len(cells.sent) - seconds // CELL_SECONDS, -step):
        interval = slice(end - step, end)
        depths = [depth for depth in cells.depth[interval] if depth != UNKNOWN_DEPTH]
        begin = (cells.last - len(cells.sent) + 1 + end - step) * CELL_SECONDS
        rows.append(
            Interval(begin, sum(cells.sent[interval]), sum(cells.taken[interval]), depths[-1] if depths else None)
        )
    return rows


class ChartView:
    """Streams charts to pages, and counts the streams of each key and user."""

    def __init__(self, service: Service, authorization: Authorization, history: History) -> None:
        self._service = service
        self._authorization = authorization
        self._history = history
        self._streams: list[tuple[bytes | UserLogin, LongPoll]] = []
        """Streams with the key or user of each. Used only in the loop's thread."""

    async def live(self, request: Request, match: Match) -> Response:
        """Streams the last hour, and with ``tiles`` the figures, at once and at each heartbeat.

        Checks the rights each time; an error ends the stream. Once admitted, errors are sent as text, not as pages.

        Raises:
            NoCredential: The request has no session.
            NotAllowed: The caller may not measure the queue.
            TooManyRequests: The key or user has :data:`MAX_LIVE` streams.
        """
        tiles = "tiles" in read_query(request, FIELDS)
        if (await self._authorization.identify(request)).is_anonymous:
            raise NoCredential("Log in to see this page.")
        await self._authorization.admit(request, match, "measure")
        token = cookies.read(request, cookies.SESSION_COOKIE) or ""
        holder = (await self._service.sessions.find(token)).holder
        request.headers["accept"] = "text/event-stream"  # Errors are sent as events from here on.
        source = ChartEvents(self, request, match, holder, tiles=tiles)
        return await request.stream(source, self._authorization.known_caller(request), *pages.HEADERS)

    def count_stream(self, holder: bytes | UserLogin, poll: LongPoll) -> None:
        """Counts a stream that is about to begin for its key or user, and forgets ended streams.

        Raises:
            TooManyRequests: This key or user has too many streams.
        """
        self._streams = [(other, stream) for other, stream in self._streams if not stream.closed]
        if sum(other == holder for other, _ in self._streams) >= MAX_LIVE:
            raise TooManyRequests(
                f"This key or user has {MAX_LIVE} open pages with live charts, the maximum. Close one of them."
            )
        self._streams.append((holder, poll))

    async def read_figures(self, request: Request, match: Match, *, tiles: bool) -> dict[str, object]:
        """Returns the last hour of a queue, and its figures if ``tiles``. Also counts the messages, and records that.

        An unknown depth is None.

        Raises:
            NotAllowed: The caller may no longer see the queue.
        """
        access = await self._authorization.admit(request, match, "measure")
        count = await self._service.queues.count(access.queue)
        if count is not None:
            self._history.record_depth(access.queue, count)
        cells = await self._history.read(access.queue)
        first = cells.last - len(cells.sent) + 1
        return {
            "at": [(first + index) * CELL_SECONDS for index in range(len(cells.sent))],
            "sent": [count / CELL_SECONDS for count in cells.sent],
            "taken": [count / CELL_SECONDS for count in cells.taken],
            "depth": [None if depth == UNKNOWN_DEPTH else depth for depth in cells.depth],
            "tiles": (await measure_figures(self._service, access, cells)).tiles() if tiles else {},
        }


class ChartEvents:
    """Sends the last hour of a queue at each heartbeat (:class:`queuey.web.admission.event_streams.EventSource`).

    The first event counts the stream for its key or user, which may raise TooManyRequests.
    """

    queue_count = 0
    has_more = False
    needs_polling = True

    def __init__(
        self, view: ChartView, request: Request, match: Match, holder: bytes | UserLogin, *, tiles: bool
    ) -> None:
        self._view = view
        self._tiles = tiles
        self._request = request
        self._match = match
        self._holder = holder

    async def read_first(self, poll: LongPoll) -> list[bytes]:
        self._view.count_stream(self._holder, poll)
        return await self.read_next(poll, woken=True)

    async def read_next(self, poll: LongPoll, *, woken: bool) -> list[bytes]:
        return [make_event("chart", await self._view.read_figures(self._request, self._match, tiles=self._tiles))]

    def choose_poll_interval(self, beat: float) -> float:
        return beat

    def render_error(self, error: Exception) -> Body:
        return error_response(error, self._request).body


def mean_rates(cells: Cells) -> tuple[float, float]:
    sent, taken = (sum(ring[-RATE_CELLS - 1 : -1]) / (RATE_CELLS * CELL_SECONDS) for ring in (cells.sent, cells.taken))
    return sent, taken


def sample_depths(service: Service, history: History, wait: Callable[[float], bool]) -> None:
    """Records the depths of recently used queues at intervals, until ``wait`` returns True or the store is closed."""
    with suppress(StoreClosed):
        while not wait(SAMPLE_INTERVAL):
            service.core.run(_record_depths(service, history))


async def _record_depths(service: Service, history: History) -> None:
    for application, name in history.recently_used():
        try:
            queue = await service.find(application, name)
            history.record_depth(queue, await service.queues.count(queue) or 0)
        except StoreClosed:
            raise
        except QueueyError as error:  # The queue was deleted, or the store cannot be used.
            log.debug("The messages of %s/%s cannot be counted: %s", application, name, error)
