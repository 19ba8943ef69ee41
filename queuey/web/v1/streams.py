"""Views of streams: messages of one or many queues as they come, as server-sent events (WHATWG HTML, 9.2).

A stream is a request whose view is tried again and again, as that of a long poll; each try gives the events that have
come since. ``id`` of an event is the cursor behind it: a reader that sends the last one that it has got
(``Last-Event-ID``) goes on from there, on any process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

from queuey.api.reads import StreamAsked, StreamFields, StreamQuery
from queuey.errors import InvalidRequest, QueueyError
from queuey.service import QueueAccess, Service
from queuey.service.reading import SHORT_BYTES
from queuey.service.streams import Cursor, Event, Stream
from queuey.service.unread.mark_news import MarkNews
from queuey.web import validators
from queuey.web.authorization import Authorization
from queuey.web.endpoint import Match
from queuey.web.errors import error_texts
from queuey.web.requests import Request, bad_json, read_query, wants_events
from queuey.web.responses import Response, body_of, encode, event
from queuey.web.v1.message_json import EARLY, render_messages
from queuey.web.v1.ranges import take_partitions
from queuey.web.v1.unread import unread_fields
from queuey.web.v1.views import Views
from queuey.web.validators import Errors

LAST_EVENT = "last_event_id"
HEADERS = (
    ("Content-Type", "text/event-stream; charset=utf-8"),
    ("Cache-Control", "no-cache, no-store"),
    # Of nginx and those that follow it: events are passed on as they come.
    ("X-Accel-Buffering", "no"),
)
WAITS = 1.0
"""Timeout that lets a try wait, in seconds; the gateway decides for how long."""
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
        is_stream = request.stream is not None or wants_events(request)
        return await (self.one if is_stream else self._page)(request, match)

    async def one(self, request: Request, match: Match) -> Response:
        access = await self._authorization.admit(request, match, "read")
        stream, first = request.stream, request.stream is None
        if stream is None:
            given = read_query(request, self.fields(StreamFields).names)
            stream, marks = self._begin(request, StreamFields, given, access.queue.name)
            if marks:
                await self._watch_marks(request, stream, match["app"])
        stream.admit(access)
        return await self._next(request, stream, first=first, named=False)

    async def many(self, request: Request, match: Match) -> Response:
        """Streams the named queues, or all that the caller may read."""
        stream, first, marks = request.stream, request.stream is None, False
        if stream is None:
            await self._authorization.identify(request)
            given = self._asked(request)
            names = self._names(given.get("queues"))
            stream, marks = self._begin(request, StreamAsked, given, None)
            stream.is_of_all = names is None
        else:
            names = None if stream.is_of_all else list(stream.queues)
        failed: list[tuple[str, QueueyError]] = []
        assert request.poll is not None  # noqa: S101 - a stream waits
        if (stream.looks_again and stream.may_look) or request.poll.may_be_any:
            admitted = partial(self._admit, request, stream, match["app"], names)
            failed = await request.in_thread(admitted)
            if failed and first:
                raise failed[0][1]
        if marks:
            await self._watch_marks(request, stream, match["app"])
        return await self._next(request, stream, first=first, named=True, failed=failed)

    async def _watch_marks(self, request: Request, stream: Stream, application: str) -> None:
        """Makes a stream report its reader's marks."""
        await self._authorization.identify(request)
        assert request.poll is not None  # noqa: S101 - a stream waits
        reader = self._authorization.reader(request, application)
        stream.follow_marks(MarkNews(self._service.unread, reader, request.poll.wake))

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
        self._check_number(len(asked))
        return list(dict.fromkeys(asked))

    def _check_number(self, count: int) -> None:
        if count > self._limits.max_queues_per_stream:
            text = (
                f"Longer than maximum length {self._limits.max_queues_per_stream}: name fewer, or use several streams"
            )
            raise InvalidRequest({"queues": text})

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

    def _admit(
        self, request: Request, stream: Stream, application: str, names: Sequence[str] | None
    ) -> list[tuple[str, QueueyError]]:
        """Admits the caller to queues, in a thread; returns those that it may not read, or that do not exist."""
        self._service.queues.require_application(application)
        stream.look()
        most = self._limits.max_queues_per_stream
        asked = self._authorization.readable(request, application, most + 1) if names is None else names
        self._check_number(len(asked))
        failed: list[tuple[str, QueueyError]] = []
        for name in asked:
            access = self._authorization.enter_to_read(request, application, name)
            if isinstance(access, QueueAccess):
                stream.admit(access)
            elif names is not None or name in stream.queues:
                failed.append((name, access))
        for name in set(stream.queues).difference(asked):
            stream.drop(name)
        return failed

    async def _next(
        self,
        request: Request,
        stream: Stream,
        *,
        first: bool,
        named: bool,
        failed: Sequence[tuple[str, QueueyError]] = (),
    ) -> Response:
        """Returns the events since the last try."""
        assert request.poll is not None  # noqa: S101 - a stream waits
        pieces = [event(identity=stream.text)] if first else []
        for name, _ in failed:
            stream.drop(name)
        in_thread = partial(request.in_thread, computes=True, page=True)
        found, lost = await stream.read(WAITS, request.poll, in_thread, short=request.reserve_at_once(SHORT_BYTES))
        if lost and not named:
            raise lost[0][1]
        pieces += _rendered(found, named=named)
        for name, error in (*failed, *lost):
            stream.drop(name)
            pieces.append(event("gone", {"queue_name": name, "error_msg": error_texts(error)}, stream.text))
        for name, unread in await stream.new_marks(partial(request.in_thread, computes=True)):
            pieces.append(event("read", {**({"queue_name": name} if named else {}), **unread_fields(unread)}))
        request.stream = stream
        return Response(200, body_of(pieces), *HEADERS)


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
