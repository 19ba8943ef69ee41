"""Views of streams: messages of one or many queues as they come, as server-sent events (WHATWG HTML, 9.2).

``id`` of an event is the cursor behind it: a reader that sends the last one that it has got
(``Last-Event-ID``) goes on from there, on any process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from random import uniform
from time import monotonic
from typing import Any
from urllib.parse import unquote

from queuey.api.messages import StreamAsked, StreamFields, StreamQuery
from queuey.errors import InvalidRequest, QueueyError
from queuey.service import QueueAccess, Service
from queuey.service.reading import SHORT_BYTES
from queuey.service.streams import Cursor, Event, Found, Stream
from queuey.service.unread import MarkNews
from queuey.web import validators
from queuey.web.admission.long_polls import LongPoll
from queuey.web.authorization import Authorization
from queuey.web.endpoint import Match
from queuey.web.errors import as_stranger_sees, error_response, error_texts
from queuey.web.requests import Request, read_query, wants_events
from queuey.web.responses import Body, Response, encode, event
from queuey.web.v1.message_json import EARLY, render_messages
from queuey.web.v1.ranges import take_partitions
from queuey.web.v1.unread import unread_fields
from queuey.web.v1.views import Views
from queuey.web.validators import Errors, bad_json

LAST_EVENT = "last_event_id"
HEADERS = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("Cache-Control", "no-cache, no-store"),
    # Of nginx and those that follow it: events are passed on as they come.
    ("X-Accel-Buffering", "no"),
)
LISTING_INTERVAL = 0.3
"""Interval before the next try of a stream that has to list its queues, in seconds."""
Refused = list[tuple[str, QueueyError]]
"""Names of queues that cannot be read, or not any more, with the errors."""
Page = Callable[[Request, Match], Awaitable[Response]]


class StreamViews(Views):
    """Views of ``GET /v1/{app}/{queue}``, and of ``/v1/{app}/_stream``.

    Args:
        service: Has the queues.
        authorization: Lets callers in.
        page: The view of a queue that gives a page.
    """

    def __init__(self, service: Service, authorization: Authorization, page: Page) -> None:
        super().__init__(service, authorization)
        self._page = page

    async def read(self, request: Request, match: Match) -> Response:
        """Streams one queue if the request accepts events, else reads a page of it."""
        return await (self.one if wants_events(request) else self._page)(request, match)

    async def one(self, request: Request, match: Match) -> Response:
        access = await self._authorization.admit(request, match, "read")
        given = read_query(request, self.fields(StreamFields).names)
        stream, marks = self._begin(request, StreamFields, given, access.queue.name)
        source = EventsOfOne(self._service, self._authorization, request, match, stream, marks)
        return await request.stream(source, self._authorization.seen(request), *HEADERS)

    async def many(self, request: Request, match: Match) -> Response:
        """Streams the named queues, or all that the caller may read."""
        await self._authorization.identify(request)
        given = self._asked(request)
        names = self._names(given.get("queues"))
        stream, marks = self._begin(request, StreamAsked, given, None)
        stream.is_of_all = names is None
        source = EventsOfMany(self._service, self._authorization, request, match, stream, marks)
        source.names = names
        return await request.stream(source, self._authorization.seen(request), *HEADERS)

    def _asked(self, request: Request) -> dict[str, Any]:
        if request.method == "POST":
            return self.fields(StreamAsked).json(request, b"{}")
        given: dict[str, Any] = read_query(request, self.fields(StreamQuery).names)
        if given.get("queues"):
            given["queues"] = [unquote(name) for name in given["queues"].split(",")]
        return given

    def _names(self, asked: object) -> list[str] | None:
        """Reads the names of queues; None: all."""
        if asked is None or asked == "":
            return None
        if not isinstance(asked, list) or not all(isinstance(name, str) and name for name in asked):
            raise bad_json('"queues" is no list of names')
        check_number(asked, self._limits.max_queues_per_stream)
        return list(dict.fromkeys(asked))

    def _begin(
        self, request: Request, kind: type[StreamFields], given: Mapping[str, Any], queue: str | None
    ) -> tuple[Stream, bool]:
        """Returns a new stream, and whether it reports read marks."""
        errors = Errors()
        asked = self.fields(kind).read(given, errors)
        partitions = take_partitions(given.get("partitions"), errors, None)
        last = request.headers.get("last-event-id") or asked.last_event_id
        field = LAST_EVENT if last else "since"
        streams = self._service.streams
        cursor = errors.take(field, _cursor, last or asked.since, queue, streams.reader.now) or Cursor()
        errors.check()
        limit = asked.limit or self._limits.default_limit
        return Stream(streams, cursor, limit, partitions, queue, early=asked.early), asked.read_marks


class QueueEvents(ABC):
    """Events of one stream of queues (:class:`queuey.web.admission.event_streams.Source`).

    Args:
        service: Has the queues.
        authorization: Lets the reader in.
        request: The request for the stream.
        match: The parts of its path.
        stream: Its progress.
        marks: Whether it reports its reader's marks.
    """

    named = True
    """Events name their queues."""

    def __init__(
        self,
        service: Service,
        authorization: Authorization,
        request: Request,
        match: Match,
        stream: Stream,
        marks: bool,  # noqa: FBT001 - one of many
    ) -> None:
        self.request = request
        self._service = service
        self._authorization = authorization
        self._match = match
        self._stream = stream
        self._marks = marks
        self._listed = monotonic()
        self._beat = 0.0

    @property
    def queues(self) -> int:
        return len(self._stream.queues)

    @property
    def more(self) -> bool:
        return self._stream.more

    @property
    def looks_unwoken(self) -> bool:
        return self._stream.is_of_all or self._stream.marks is not None

    def pause(self, beat: float) -> float:
        self._beat = beat
        if self._stream.rests:
            return LISTING_INTERVAL
        pause = self._stream.beat(beat) * uniform(0.6, 1)  # noqa: S311 - it only spreads the reads of marks
        return min(pause, self._listed + beat - monotonic()) if self._stream.is_of_all else pause

    async def first(self, turn: LongPoll) -> list[bytes]:
        refused = await self._admit(turn)
        if refused:
            raise refused[0][1]
        if self._marks:
            await self._authorization.identify(self.request)
            reader = self._authorization.reader(self.request, self._match["app"])
            self._stream.follow_marks(MarkNews(self._service.unread, reader, turn.wake))
        events = [event(identity=self._stream.text), *await self._next(turn, refused)]
        self.request.headers["accept"] = "application/problem+json"  # The form of errors from here on.
        return events

    async def further(self, turn: LongPoll, *, woken: bool) -> list[bytes]:
        if self._stream.is_of_all and (not woken or monotonic() - self._listed >= self._beat):
            self._stream.looks_again, self._listed = True, monotonic()
        return await self._next(turn, await self._admit(turn))

    def explain(self, error: Exception) -> Body:
        """Returns why the stream ends, as a problem (RFC 9457)."""
        return error_response(error, self.request).body

    @abstractmethod
    async def _admit(self, turn: LongPoll) -> Refused:
        """Admits the reader to the queues, as they are now. Returns queues that are gone, or that it may not read."""

    async def _next(self, turn: LongPoll, refused: Refused) -> list[bytes]:
        """Returns the events since the last try."""
        stream, request = self._stream, self.request
        for name, _ in refused:
            stream.drop(name)
        found, lost = await self._read(turn)
        if lost and not self.named:
            raise lost[0][1]
        events = _rendered(found, named=self.named)
        for name, error in (*refused, *lost):
            stream.drop(name)
            events.append(event("gone", {"queue_name": name, "error_msg": error_texts(error)}, stream.text))
        if stream.marks is not None and (due := stream.marks.due(stream.accesses)):
            for name, unread in await request.in_pool(partial(stream.marks.news, due), computes=True):
                events.append(event("read", {**({"queue_name": name} if self.named else {}), **unread_fields(unread)}))
        return events

    async def _read(self, turn: LongPoll) -> Found:
        """Returns new messages, and the queues that cannot be read any more."""
        woken = turn.take_woken()
        try:
            if self.request.reserve_at_once(SHORT_BYTES) and (found := await self._stream.read_short(turn)):
                return found
            read = partial(self._stream.read, woken, turn)
            return await self.request.in_pool(read, computes=True, page=True)
        except BaseException:
            turn.note_woken(None)
            raise


class EventsOfOne(QueueEvents):
    """Events of the queue in the path, which they do not name."""

    named = False

    async def _admit(self, turn: LongPoll) -> Refused:
        self._stream.admit(await self._authorization.admit(self.request, self._match, "read"))
        return []


class EventsOfMany(QueueEvents):
    """Events of named queues, or of all that the reader may read.

    Attributes:
        names: The queues, or None for all.
    """

    names: Sequence[str] | None = None

    async def _admit(self, turn: LongPoll) -> Refused:
        if not ((self._stream.looks_again and self._stream.may_look) or turn.may_be_any):
            return []
        return await self.request.in_pool(self._admit_each)

    async def _next(self, turn: LongPoll, refused: Refused) -> list[bytes]:
        events = await super()._next(turn, refused)
        if self.names is not None:  # Queues that are gone do not come back.
            self.names = list(self._stream.queues)
        return events

    def _admit_each(self) -> Refused:
        """Admits the reader to the queues, in a thread."""
        application, stream = self._match["app"], self._stream
        self._service.queues.require_application(application)
        stream.look()
        names = self.names
        if names is None:
            most = self._service.limits.max_queues_per_stream
            names = self._authorization.readable(self.request, application, most + 1)
            check_number(names, most)
        refused: Refused = []
        for name in names:
            access = self._authorization.enter_to_read(self.request, application, name)
            if isinstance(access, QueueAccess):
                stream.admit(access)
            elif self.names is not None or name in stream.queues:
                refused.append((name, access))
        for name in set(stream.queues).difference(names):
            stream.drop(name)
        return refused

    def explain(self, error: Exception) -> Body:
        return super().explain(as_stranger_sees(error))


def check_number(names: Sequence[str], most: int) -> None:
    """Refuses too many queues for one stream."""
    if len(names) > most:
        raise InvalidRequest({"queues": f"Longer than maximum length {most}: name fewer, or use several streams"})


def _cursor(value: object, queue: str | None, now: Callable[[], int]) -> Cursor:
    try:
        return Cursor.parse(validators.text(value), queue, now)
    except ValueError:
        raise validators.BadField(
            f'"{validators.show(value)}" is not the id of an event, a message id, an instant, a cursor or "now"'
        ) from None


def _rendered(events: Sequence[Event], *, named: bool) -> list[bytes]:
    pieces = []
    for cursor, queue, message, early in events:
        more = [(b',"queue_name":' + encode(queue) if named else b"") + (EARLY if early else b"")]
        pieces.append(event(identity=cursor, data=b"".join(render_messages([message], more))))
    return pieces
