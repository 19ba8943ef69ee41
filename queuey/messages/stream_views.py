"""Views of streams: new messages of one or many queues as server-sent events (WHATWG HTML, 9.2).

The ``id`` of an event is the cursor behind it. A reader that sends the last one it received (``Last-Event-ID``)
continues from there, on any process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import uniform
from time import monotonic
from typing import Any
from urllib.parse import unquote

from queuey.access.authorization import Authorization, QueueLister
from queuey.access.operations import APP, QUEUE, Views, declare
from queuey.access.queue_access import QueueAccess
from queuey.api.messages import RangeQuery, RangeRead, StreamAsked, StreamFields, StreamQuery
from queuey.messages.message_json import EARLY_FIELD, render_messages
from queuey.messages.message_views import MESSAGES_TAG
from queuey.messages.range_views import RangeViews, read_page, take_partitions
from queuey.messages.read_mark_views import show_unread
from queuey.messages.read_marks import MarkNews, UnreadUseCases
from queuey.messages.streams import Cursor, Event, OpenStreams, Stream, StreamRead
from queuey.model.errors import InvalidRequest, QueueyError
from queuey.queues.queues import Queues
from queuey.runtime.limits import Limits
from queuey.web import validators
from queuey.web.admission.long_polls import LongPoll
from queuey.web.endpoint import Match
from queuey.web.errors import as_unauthenticated, error_response, error_texts
from queuey.web.openapi import EVENTS, JSON, Content, ResponseSpec
from queuey.web.parameters import ANY_TEXT, header_parameter
from queuey.web.requests import Request, read_query
from queuey.web.responses import Body, Response, encode, make_event
from queuey.web.validators import Errors, bad_json

LAST_EVENT = "last_event_id"
LISTING_INTERVAL = 0.3
"""Interval before the next attempt of a stream that has to list its queues, in seconds."""
Refused = list[tuple[str, QueueyError]]
"""Names and errors of queues that cannot be read, or not any more."""


class StreamViews(Views):
    """Views of ``/v1/{app}/_stream``, and of ``GET /v1/{app}/{queue}`` for clients that accept events."""

    def __init__(
        self, authorization: Authorization, limits: Limits, streams: OpenStreams, unread: UnreadUseCases, queues: Queues
    ) -> None:
        super().__init__(authorization, limits)
        self._streams = streams
        self._unread = unread
        self._queues = queues

    async def stream_queue(self, request: Request, match: Match) -> Response:
        access = await self._authorization.admit(request, match, "read")
        query = read_query(request, self.fields(StreamFields).names)
        stream, marks = self._make_stream(request, StreamFields, query, access.queue.name)
        source = EventsOfOne(self._unread, self._authorization, request, match, stream, marks)
        return await request.stream(source, self._authorization.known_caller(request))

    async def stream_queues(self, request: Request, match: Match) -> Response:
        await self._authorization.identify(request)
        terms = self._read_terms(request)
        names = self._read_names(terms.get("queues"))
        stream, marks = self._make_stream(request, StreamAsked, terms, None)
        stream.may_grow = names is None
        source = EventsOfMany(
            self._unread,
            self._authorization,
            request,
            match,
            stream,
            marks,
            names=names,
            max_queues=self._limits.max_queues_per_stream,
            list_queues=self._queues.list,
            resumes=bool(request.headers.get("last-event-id") or terms.get(LAST_EVENT)),
        )
        return await request.stream(source, self._authorization.known_caller(request))

    def _read_terms(self, request: Request) -> dict[str, Any]:
        """Returns the fields of the body of a POST, or else of the query, in which ``queues`` is a comma list.

        Names in the list are quoted once more, so that they may have commas.
        """
        if request.method == "POST":
            return self.fields(StreamAsked).json(request, b"{}")
        query: dict[str, Any] = read_query(request, self.fields(StreamQuery).names)
        if query.get("queues"):
            query["queues"] = [unquote(name) for name in query["queues"].split(",")]
        return query

    def _read_names(self, names: object) -> list[str] | None:
        if names is None or names == "":
            return None
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise bad_json('"queues" is not a list of names')
        refuse_too_many(names, self._limits.max_queues_per_stream)
        return list(dict.fromkeys(names))

    def _make_stream(
        self, request: Request, kind: type[StreamFields], terms: Mapping[str, Any], queue: str | None
    ) -> tuple[Stream, bool]:
        errors = Errors()
        fields = self.fields(kind).read(terms, errors)
        partitions = take_partitions(terms.get("partitions"), errors, None)
        last = request.headers.get("last-event-id") or fields.last_event_id
        field = LAST_EVENT if last else "since"
        streams = self._streams
        cursor = errors.parse_field(field, _parse_cursor, last or fields.since, queue, streams.reader.now) or Cursor()
        errors.check()
        limit = fields.limit or self._limits.default_limit
        return Stream(streams, cursor, limit, partitions, queue, early=fields.early), fields.read_marks


class QueueEvents(ABC):
    """Events of one stream of queues (:class:`queuey.web.admission.event_streams.EventSource`).

    Args:
        stream: Progress of the stream.
        reports_marks: Whether the stream reports changes of the reader's marks.
    """

    named = True
    """Whether events name their queues."""
    resumes = False
    """Whether the stream goes on after an event, so that a queue may have been deleted meanwhile."""

    def __init__(
        self,
        unread: UnreadUseCases,
        authorization: Authorization,
        request: Request,
        match: Match,
        stream: Stream,
        reports_marks: bool,  # noqa: FBT001 - one of many
    ) -> None:
        self.request = request
        self._unread = unread
        self._authorization = authorization
        self._match = match
        self._stream = stream
        self._reports_marks = reports_marks
        self._listed_at = monotonic()
        self._beat = 0.0

    @property
    def queue_count(self) -> int:
        return len(self._stream.queues)

    @property
    def has_more(self) -> bool:
        return self._stream.more

    @property
    def needs_polling(self) -> bool:
        return self._stream.may_grow or self._stream.marks is not None

    def choose_poll_interval(self, beat: float) -> float:
        """Returns the seconds until the next attempt if nothing wakes the stream.

        That is ``beat``, or less for lists and marks. Also keeps ``beat``, which decides when queues are listed again.
        """
        self._beat = beat
        if self._stream.waits_for_list:
            return LISTING_INTERVAL
        pause = self._stream.mark_interval(beat) * uniform(0.6, 1)  # noqa: S311 - it only spreads the reads of marks
        return min(pause, self._listed_at + beat - monotonic()) if self._stream.may_grow else pause

    async def read_first(self, poll: LongPoll) -> list[bytes]:
        """Returns the first events, of which one only has the cursor, and begins to follow read marks.

        Raises if a queue cannot be read, unless the stream resumes. Later errors are sent as events with a problem.
        """
        refused = await self._admit(poll)
        if refused and not self.resumes:
            raise refused[0][1]
        if self._reports_marks:
            reader = await self._authorization.find_reader_name(self.request, self._match["app"])
            self._stream.follow_marks(MarkNews(self._unread, reader, poll.wake))
        events = [make_event(identity=self._stream.text), *await self._next_events(poll, refused)]
        self.request.headers["accept"] = "application/problem+json"  # From here on, errors are events with a problem.
        return events

    async def read_next(self, poll: LongPoll, *, woken: bool) -> list[bytes]:
        """Returns new events.

        A stream to which queues may be added lists them after each ``beat``, and whenever it was not woken.
        """
        if self._stream.may_grow and (not woken or monotonic() - self._listed_at >= self._beat):
            self._stream.must_list, self._listed_at = True, monotonic()
        return await self._next_events(poll, await self._admit(poll))

    def render_error(self, error: Exception) -> Body:
        return error_response(error, self.request).body

    @abstractmethod
    async def _admit(self, poll: LongPoll) -> Refused:
        """Authorizes the reader for the current queues. Returns queues that are gone or that it may not read."""

    async def _next_events(self, poll: LongPoll, refused: Refused) -> list[bytes]:
        """Returns events of new messages, lost queues and changed read marks.

        Queues that are lost are not followed any more. If events do not name their queue, its loss raises.
        """
        stream, request = self._stream, self.request
        for name, _ in refused:
            stream.drop(name)
        messages, lost = await self._read_messages(poll)
        if lost and not self.named:
            raise lost[0][1]
        events = _render_events(messages, named=self.named)
        for name, error in (*refused, *lost):
            stream.drop(name)
            events.append(make_event("gone", {"queue_name": name, "error_msg": error_texts(error)}, stream.text))
        if stream.marks is None:
            return events
        for event in messages:
            if not event.early:
                stream.marks.record_sent(event.queue, event.message)
        if due := stream.marks.take_due(stream.accesses):
            read = partial(stream.marks.read_news, due, stream.find_ends)
            for name, unread in await request.read_in_thread(read):
                fields = {**({"queue_name": name} if self.named else {}), **show_unread(unread)}
                events.append(make_event("read", fields, stream.text))
        return events

    async def _read_messages(self, poll: LongPoll) -> StreamRead:
        woken = poll.pop_woken()
        try:
            return await read_page(self.request, partial(self._stream.read, woken, poll))
        except BaseException:
            poll.record_wake(None)
            raise


class EventsOfOne(QueueEvents):
    """Events of the queue in the path. They do not name it. If the reader loses its right to read it, that raises."""

    named = False

    async def _admit(self, poll: LongPoll) -> Refused:
        self._stream.admit(await self._authorization.admit(self.request, self._match, "read"))
        return []


class EventsOfMany(QueueEvents):
    """Events of named queues, or of all that the reader may read.

    Its queues are authorized again only if they have to be listed or any of them may have changed, not at each attempt.

    Args:
        names: Names of the queues, or None for all. A lost one is followed again when it can be read.
        list_queues: Lists queues by the patterns that the reader may read.
        resumes: Whether the stream goes on after an event, so that a queue may have been deleted meanwhile.
    """

    def __init__(  # noqa: PLR0913 - what a stream of several queues is made of
        self,
        unread: UnreadUseCases,
        authorization: Authorization,
        request: Request,
        match: Match,
        stream: Stream,
        reports_marks: bool,  # noqa: FBT001 - one of many
        *,
        names: Sequence[str] | None,
        max_queues: int,
        list_queues: QueueLister,
        resumes: bool,
    ) -> None:
        super().__init__(unread, authorization, request, match, stream, reports_marks)
        self.names = names
        self.max_queues = max_queues
        self.list_queues = list_queues
        self.resumes = resumes

    async def _admit(self, poll: LongPoll) -> Refused:
        if not ((self._stream.must_list and self._stream.may_list) or poll.may_be_any):
            return []
        return await self._admit_each()

    async def _next_events(self, poll: LongPoll, refused: Refused) -> list[bytes]:
        if refused:
            self._stream.set_growing(may_grow=True)  # Before a read passes what a new queue of that name has.
        events = await super()._next_events(poll, refused)
        if self.names is not None:
            self._stream.set_growing(may_grow=len(self._stream.queues) < len(self.names))
        return events

    async def _admit_each(self) -> Refused:
        """Authorizes the reader for the named queues, or for the readable ones and those followed so far.

        Returns refused queues: at first the named ones, later the ones that were followed.

        Raises:
            InvalidRequest: The reader may read more queues than a stream may have, and has named none.
        """
        application, stream = self._match["app"], self._stream
        await self._authorization.require_application(application)
        stream.record_list()
        names = self.names
        if names is None:
            names = await self._authorization.list_readable_names(
                self.request, application, self.max_queues + 1, self.list_queues
            )
            refuse_too_many(names, self.max_queues)
        refused: Refused = []
        names = list(dict.fromkeys([*names, *stream.queues]))  # A queue that is not listed may still be there.
        admitted = await self._authorization.admit_to_each(self.request, application, names)
        for name, access in zip(names, admitted, strict=True):
            if isinstance(access, QueueAccess):
                stream.admit(access)
            elif name in stream.queues or not stream.may_grow:
                refused.append((name, access))
        return refused

    def render_error(self, error: Exception) -> Body:
        return super().render_error(as_unauthenticated(error))


def refuse_too_many(names: Sequence[str], limit: int) -> None:
    if len(names) > limit:
        raise InvalidRequest({"queues": f"Longer than maximum length {limit}: name fewer, or use several streams"})


def _parse_cursor(value: object, queue: str | None, now: Callable[[], int]) -> Cursor:
    try:
        return Cursor.parse(validators.parse_text(value), queue, now)
    except ValueError:
        raise validators.BadField(
            f'"{validators.show(value)}" is not the id of an event, a message id, an instant, a cursor or "now"'
        ) from None


def _render_events(events: Sequence[Event], *, named: bool) -> list[bytes]:
    pieces = []
    for cursor, queue, message, early in events:
        fields = [(b',"queue_name":' + encode(queue) if named else b"") + (EARLY_FIELD if early else b"")]
        pieces.append(make_event(identity=cursor, data=b"".join(render_messages([message], fields))))
    return pieces


LAST_EVENT_HEADER = header_parameter("Last-Event-ID", "For a stream: the `id` of the last event received", ANY_TEXT)
EVENT_STREAM: Content = {EVENTS: {}}
STREAM_TEXT = (
    "Events (WHATWG HTML, 9.2): `data` is a message, `id` the position to resume from. `read`: the caller's mark in a "
    "queue moved; `gone`: a queue was deleted, or may not be read any more; `expiring`: the credential expires soon; "
    "`bye`: the stream ends, with the reason. HEAD returns the headers only."
)
STREAM_OF_ALL_TEXT = (
    f"Without `queues`, follows all that the credential may read, up to {{max_queues_per_stream}}. {STREAM_TEXT}"
)
STREAMED: dict[str, Any] = {"about": STREAM_OF_ALL_TEXT, "parameters": (LAST_EVENT_HEADER,), "ends_with_client": True}
OPERATIONS = (
    declare(
        MESSAGES_TAG,
        f"GET {QUEUE}",
        "Read messages, or with `Accept: text/event-stream` follow the queue",
        {200: ResponseSpec({JSON: RangeRead, **EVENT_STREAM})},
        RangeViews.read,
        about="A stream takes `since` (also `now`), `partitions` (default: all), `limit` (messages per read), "
        f"`read_marks` and `last_event_id`. {STREAM_TEXT}",
        query=RangeQuery,
        parameters=(LAST_EVENT_HEADER,),
        ends_with_client=True,
    ),
    declare(
        MESSAGES_TAG,
        f"GET {APP}/_stream",
        "Follow queues",
        {200: ResponseSpec(EVENT_STREAM)},
        StreamViews.stream_queues,
        query=StreamQuery,
        **STREAMED,
    ),
    declare(
        MESSAGES_TAG,
        f"POST {APP}/_stream",
        "Follow many queues",
        {200: ResponseSpec(EVENT_STREAM)},
        StreamViews.stream_queues,
        body=StreamAsked,
        body_may_be_empty=True,
        **STREAMED,
    ),
)
