"""Requests: received from a connection, and read by views: path, query, headers and body, within limits.

Headers with values that are not ASCII are dropped. If such a header would change what the request does, the request is
refused: a message key must not be lost, because it picks the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote_plus

from queuey.model.errors import InvalidRequest, QueueyError, TooLarge, UnknownCoding
from queuey.model.rights import Caller
from queuey.model.texts import did_you_mean
from queuey.storage import bridge
from queuey.web import validators
from queuey.web.admission.event_streams import EventSource, stream_events
from queuey.web.admission.long_polls import LongPoll, PollClient, Receive
from queuey.web.admission.scheduling import MAX_SMALL_BODY, Share
from queuey.web.responses import EVENT_HEADERS, Exchange, Header, Response, accepts

T = TypeVar("T")

MAX_SHORT_BODY = 64 * 1024
"""Max bytes of a body that is parsed on the event loop."""
BODY_TIMEOUT = 120
OWN_HEADER_PREFIX = "x-header-"
"""Prefix of headers that are stored with a message."""

_REQUIRED_ASCII = frozenset(
    b"authorization content-encoding content-length content-type transfer-encoding x-ttl x-partition x-message-key "
    b"x-delay x-after x-encoding idempotency-key".split()
)
PROXY_PREFIXES = (
    *("forwarded", "via", "x-forwarded", "x-original-", "x-real-", "x-remote-", "x-proxy", "wl-proxy-"),
    *("proxy-client-ip", "client-ip", "x-client", "x-cluster-client-ip", "true-client-ip", "cdn-loop", "cf-"),
    *("do-connecting-ip", "fastly-", "fly-", "akamai-", "cloudfront-", "x-amz-cf-", "x-amzn-trace-id"),
    *("x-appengine-", "x-arr-", "x-azure-", "x-envoy-", "x-nf-", "x-varnish", "x-vercel-"),
)
"""Beginnings of the names of headers that proxies, balancers and content networks add."""
_DECODED_NAMES = {
    name.encode(): name
    for name in (
        *("accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host"),
        *("user-agent", "x-message-key", "x-partition", "x-ttl"),
    )
}


class RequestServices(Protocol):
    """Services of the server for a request.

    Attributes:
        beat: Seconds between two keep-alives of a stream.
    """

    beat: float

    def make_long_poll(self, request: Request, seconds: float) -> LongPoll:
        """Returns a long poll for the request, whose view must be declared with ``ends_with_client``."""


class PathProtocol(Protocol):
    """The protocol of some paths other than version 1: a facade, or the console."""

    def prepare(self, request: Request) -> bool:
        """Prepares a request of this protocol: its credential, and the form of its errors. Returns False for others."""

    def error_response(self, request: Request, error: Exception, status: int, text: str) -> Response:
        """Makes the response for an error.

        Args:
            request: The request that failed.
            error: What happened.
            status: The status of version 1 for this error.
            text: The text for the caller; of an internal error it has only the id.
        """

    def application_of(self, caller: Caller, /) -> str:
        """Returns the application for whose queues a caller's requests are counted."""


class Request:
    """A request to a view.

    Attributes:
        server: The server that received it.
        method: The method, in capitals.
        path: The percent-decoded path.
        query: The query as it was sent.
        scheme: ``http`` or ``https``.
        headers: ASCII values by lower-case name; repeated headers are joined by commas, cookies by semicolons.
        share: What it holds of all that requests share.
        body: The whole body, or None if it has not been received.
        length: Bytes of the body as the headers announce it, or None if it is chunked.
        has_own_headers: Some headers are stored with a message.
        must_end: The request records what it does, so it is not given up.
        waits_for: The future that it waits for.
        is_given_up: It was told to end, because its client has left or its deadline is over.
        exchange: Its connection if its view only reads, so that it ends when its client leaves; otherwise None.
        client: The client that waits for the answer, or None if nobody watches it.
        rate_headers: Response headers about the caller's rate limit.
        facade: The protocol of the request, or None for version 1.
        verify: Checks the signature that authenticates the caller, or None if that is done or not needed.
        credential_error: Why the caller's credential was not accepted. It is not checked again.
        batch: Number of messages that the request stores, once that is known.
        in_doubt: Part of the request may have been done before it failed, so the error has the outcome ``unknown``.
        facade_state: What the facade has read from the request.
        address: The client's address without the port; blank if unknown.
        refuses_unknown: An unknown field is an error, unless the query says ``strict=0``.
        ignored: Names in the request that have no meaning, by kind.
    """

    # Defaults of the class: most requests never change these.
    share: Share
    body: bytes | None = None
    length: int | None = 0
    has_own_headers = False
    must_end = False
    waits_for: asyncio.Future[Any] | None = None
    is_given_up = False
    exchange: Exchange | None = None
    client: PollClient | None = None
    rate_headers: tuple[Header, ...] = ()
    facade: PathProtocol | None = None
    verify: Callable[[Request], None] | None = None
    credential_error: QueueyError | None = None
    batch = 0
    in_doubt = False
    facade_state: object = None
    address = ""
    refuses_unknown = False
    ignored: Mapping[str, Ignored] = MappingProxyType({})

    def __init__(
        self, server: RequestServices, method: str, path: str, query: str, scheme: str, headers: dict[str, str]
    ) -> None:
        self.server = server
        self.method = method
        self.path = path
        self.query = query
        self.scheme = scheme
        self.headers = headers

    def give_up(self) -> None:
        """Ends the running view, unless it waits for messages or a thread, which have their own limits, or must end."""
        if not (self.must_end or self.share.has_thread or self.share.is_paused):
            self.is_given_up = True
            if self.waits_for is not None:
                self.waits_for.cancel()

    @property
    def origin(self) -> str:
        """Scheme and host of the request: ``X-Forwarded-Proto`` precedes the connection; the host is not checked."""
        scheme = self.headers.get("x-forwarded-proto", "")
        return f"{scheme if scheme in {'http', 'https'} else self.scheme}://{self.headers.get('host', 'localhost')}"

    async def in_thread(self, work: Callable[[], T], *, computes: bool = False, page: bool = False) -> T:
        """Runs blocking work, or work that computes much, in a thread; returns its result or raises its error.

        Use cases, which do not have the request, call :meth:`queuey.runtime.event_loop.Core.in_thread`, which leads
        here.

        Args:
            work: What to do.
            computes: The work reads or computes much, and does not wait for the store's writer.
            page: The response may have a page of messages, for which memory is reserved first.

        Raises:
            TooManyRequests, StoreUnavailable: No thread or not enough memory was free in time.
        """
        if computes and self.exchange is not None and not self.must_end:
            work = partial(self._run_if_present, work)
        return await self.share.run_in_thread(work, computes=computes, page=page)

    def _run_if_present(self, work: Callable[[], T]) -> T:
        if self.client is not None:
            self.client.require_present()
        return work()

    async def read_in_thread(self, work: Callable[[], Coroutine[Any, Any, T]], *, page: bool = False) -> T:
        """Runs a coroutine that awaits only the store in one thread, because it reads much or renders a long response.

        Its store calls share one deadline. See :meth:`in_thread`.
        """
        return await self.in_thread(lambda: bridge.run(work(), as_one=True), computes=True, page=page)

    def make_long_poll(self, seconds: float) -> LongPoll:
        return self.server.make_long_poll(self, seconds)

    def until_found(
        self, seconds: float, attempt: Callable[[LongPoll | None], Awaitable[T]], *may_pass: type[QueueyError]
    ) -> Awaitable[T]:
        """Calls ``attempt`` until it has a result or the time is over; returns the last result.

        Args:
            seconds: Max time to wait for a result. With 0, there is one attempt.
            attempt: Returns a result, which is false if it is empty. It checks the caller's rights again. Its argument
                is the long poll that may be woken, or None if the request does not wait.
            may_pass: Errors after which another attempt may succeed; the last one is raised when the time is over.

        Raises:
            QueueyError: The attempt failed, there is no place to wait, or the request did not get its turn in time.
        """
        return self._repeat(seconds, attempt, *may_pass) if seconds else attempt(None)

    async def _repeat(
        self, seconds: float, attempt: Callable[[LongPoll | None], Awaitable[T]], *may_pass: type[QueueyError]
    ) -> T:
        async with self.make_long_poll(seconds) as poll:
            while True:
                try:
                    if (result := await attempt(poll)) or not await poll.next():
                        return result
                except may_pass:
                    if not await poll.next():
                        raise

    async def stream(self, source: EventSource, caller: Caller | None, *headers: Header) -> Response:
        """Returns a response that continues with the events of a source; for HEAD, it ends after the first.

        Args:
            source: The events.
            caller: The reader, whose credential may expire.
            headers: Headers besides ``EVENT_HEADERS``, which replace headers of the same name.

        Raises:
            QueueyError: The source failed before its first events, or there is no place for a stream.
        """
        headers = tuple({**dict(headers), **EVENT_HEADERS}.items())
        pieces = stream_events(self.make_long_poll(0.0), source, caller, self.server.beat)
        first = await anext(pieces)
        if self.method == "HEAD":
            await pieces.aclose()
            return Response(200, first, *headers)
        return Response(200, first, *headers, pieces=pieces)

    async def parse_body(self, parse: Callable[[], T]) -> T:
        """Returns the parsed body. A long one is parsed in a thread."""
        return parse() if len(self.body or b"") <= MAX_SHORT_BODY else await self.in_thread(parse)


class Ignored(NamedTuple):
    """Ignored names of one kind.

    Attributes:
        names: The first names, cut.
        total: Number of all ignored names.
    """

    names: Sequence[str]
    total: int


class ReceivedHeaders(NamedTuple):
    """The header fields of a request.

    Attributes:
        headers: Values by lower-case name.
        own: Some headers are stored with a message.
        unreadable: What is wrong with the values of headers that the service reads, by name.
        length: Bytes of the body that they announce, 0 without any, or None if it is chunked.
    """

    headers: dict[str, str]
    own: bool
    unreadable: dict[str, str]
    length: int | None


def read_headers(fields: Iterable[tuple[bytes, bytes]]) -> ReceivedHeaders:
    """Reads headers from lower-case names and values.

    Headers with an underscore in the name are dropped: WSGI views cannot tell ``X_User`` from ``X-User``. So are those
    with a value that is not ASCII; a proxy's header then stays, with a blank value.
    """
    headers: dict[str, str] = {}
    unreadable = {}
    own = False
    for raw_name, raw in fields:
        name = _DECODED_NAMES.get(raw_name)
        if name is None:
            if b"_" in raw_name:
                continue
            name = raw_name.decode("latin-1")
            own = own or name.startswith(OWN_HEADER_PREFIX)
        if not raw.isascii():
            if raw_name in _REQUIRED_ASCII or name.startswith(OWN_HEADER_PREFIX):
                unreadable[name] = "Is not ASCII; a batch takes any text"
            elif name.startswith(PROXY_PREFIXES):
                headers.setdefault(name, "")  # Any value shows that there is a proxy.
            continue
        value = raw.decode().strip(" \t")  # White space around a value is not part of it: RFC 9110.
        if name in headers:
            value = f"{headers[name]}{'; ' if name == 'cookie' else ','}{value}"
        headers[name] = value
    return ReceivedHeaders(headers, own, unreadable, _announced_length(headers, unreadable))


def _announced_length(headers: Mapping[str, str], unreadable: dict[str, str]) -> int | None:
    """Returns the length of the body, 0 if it is unreadable; see :class:`ReceivedHeaders`."""
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if length is not None:
        if length.isascii() and length.isdigit() and len(length) <= _MAX_LENGTH_DIGITS:
            return int(length)
        unreadable["Content-Length"] = f'"{length[:40]}" is not a number'
    elif coding is not None:
        if coding.strip().lower() == "chunked":
            return None
        unreadable["Transfer-Encoding"] = "Only chunked is supported"
    return 0


def wants_events(request: Request) -> bool:
    accept = request.headers.get("accept")
    return accept is not None and accepts(accept, "text/event-stream")


class BodyReader:
    """Receives bodies, with limits on the length of each, the memory of all, and the time.

    Used on the event loop only.

    Args:
        max_body: Bytes of the longest body that any view accepts; longer ones are not read.
        arrival: Timeout for a body to arrive, in seconds.
    """

    def __init__(self, max_body: int, *, arrival: int = BODY_TIMEOUT) -> None:
        self._max_body = max_body
        self._arrival = arrival
        self.arriving: dict[asyncio.Task[Any], int] = {}
        self._seconds = 0

    def take_received_body(self, request: Request, exchange: Exchange) -> bool:
        """Sets the request's body if it is empty, or small and already received; else returns False."""
        length = request.length
        if length == 0:
            request.body = b""
        elif length is not None and length <= MAX_SMALL_BODY and length <= self._max_body:
            request.body = exchange.take_whole(length)
        return request.body is not None

    async def receive_body(self, request: Request, exchange: Exchange, loop: asyncio.AbstractEventLoop) -> None:
        """Receives the body into the request, unless it is longer than any view accepts.

        Raises:
            InvalidRequest: The body broke off, or did not arrive in time.
            TooManyRequests, StoreUnavailable: Not enough memory is free now.
        """
        # Views refuse a body that is too long by its length alone, so it is not read.
        if not self.take_received_body(request, exchange) and (request.length or 0) <= self._max_body:
            await self._receive(request, exchange.receive, loop)

    async def _receive(self, request: Request, receive: Receive, loop: asyncio.AbstractEventLoop) -> None:
        """Receives the body, or raises InvalidRequest when it is late; holds memory unless it is small."""
        task = asyncio.current_task(loop)
        if task is not None:
            self.arriving[task] = self._seconds + self._arrival
        try:
            if request.length is not None:
                request.share.hold_body(request.length, self._max_body)
            message = await receive()
            body: bytes = message.get("body", b"")
            if len(body) != request.length or message["type"] != "http.request":
                body = await self._receive_pieces(request, message, receive)
        except asyncio.CancelledError:
            if task is None or self.arriving[task] > self._seconds or task.uncancel():
                raise  # The server has cancelled it.
            raise InvalidRequest({"body": "Has not arrived in time"}) from None
        finally:
            if task is not None:
                del self.arriving[task]
        request.body = body

    async def _receive_pieces(self, request: Request, message: dict[str, Any], receive: Receive) -> bytes:
        """Joins the pieces of a body up to its announced length, or until it is longer than any view accepts.

        Raises ``InvalidRequest`` if it breaks off or is too short.
        """
        announced = request.length
        body: bytes | bytearray = b""
        while True:
            if message["type"] != "http.request":
                raise InvalidRequest({"body": "Broke off, or is malformed"})
            piece: bytes = message["body"]
            more: bool = message["more_body"]
            if not body:
                body = piece
            elif piece:
                # Many small pieces would weigh far more in a list.
                body = body if isinstance(body, bytearray) else bytearray(body)
                body += piece
            if announced is None:
                request.share.hold_body(len(body), self._max_body)
            if announced is not None and not more and len(body) != announced:
                raise InvalidRequest({"body": f"Ends after {len(body)} of {announced} bytes"})
            if not more or len(body) > self._max_body or len(body) == announced:
                return bytes(body)
            message = await receive()

    def cancel_late(self) -> None:
        """Ends the arrival of bodies whose time is over. Called every second."""
        self._seconds += 1
        for task, deadline in list(self.arriving.items()):
            if deadline > self._seconds:
                break
            task.cancel()


MAX_WARNED_NAMES, MAX_WARNED_LENGTH = 10, 60
"""Max ignored names in a warning, and max characters of each."""
MAX_FIELDS = 200
MAX_QUERIES, MAX_QUERY = 1000, 200
"""Max cached queries of one kind, and max characters of each."""
_MAX_LENGTH_DIGITS = 18

STRICT_FIELD = "strict"
"""The query field that says whether unknown fields are an error."""


class BodyWanted(Exception):
    """A view needs the body, which has not been received yet; the caller is authorized."""


def read_body(request: Request, max_bytes: int) -> bytes:
    """Returns the body, sent plain or chunked.

    Raises:
        TooLarge: The body is longer than ``max_bytes`` bytes. The rest is left unread.
        UnknownCoding: The body is compressed.
        BodyWanted: The body has not been received.
    """
    if "content-encoding" in request.headers:
        _check_coding(request.headers["content-encoding"])
    if request.body is not None:
        if len(request.body) > max_bytes:
            raise too_large("body", max_bytes)
        return request.body
    if (request.length or 0) > max_bytes:
        raise too_large("body", max_bytes)
    raise BodyWanted


def _check_coding(coding: str) -> None:
    """Refuses a compressed body: it is stored as it is, and its readers would not know that it is compressed.

    Raises:
        UnknownCoding: The body is compressed.
    """
    if not {name.strip().lower() for name in coding.split(",")} <= {"", "identity"}:
        raise UnknownCoding(coding)


def too_large(field: str, limit: int, *, unit: str = "bytes") -> TooLarge:
    return TooLarge({field: f"Longer than maximum length {limit} {unit}"})


def parse_form(text: str, what: str) -> dict[str, str]:
    """Reads ``a=1&b=2``; if a name is repeated, the last value wins. A value without a name is dropped.

    Raises:
        InvalidRequest: The text is not percent-encoded UTF-8, or has too many fields.
    """
    if not text:
        return {}
    pairs = text.split("&")
    if len(pairs) > MAX_FIELDS:
        raise InvalidRequest({what: f"More than {MAX_FIELDS} fields"})
    fields = {}
    is_quoted = "%" in text or "+" in text or not text.isascii()
    for pair in pairs:
        name, _, value = pair.partition("=")
        if is_quoted:
            try:
                name, value = _unquote(name), _unquote(value)
            except UnicodeError:
                raise InvalidRequest({what: "Not percent-encoded UTF-8"}) from None
        if name:
            fields[name] = value
    return fields


def read_query(request: Request, known_names: frozenset[str] = frozenset()) -> dict[str, str]:
    """Returns the fields of the query, also unknown ones, for which the response gets a warning.

    Args:
        request: The request.
        known_names: Names of the known fields.

    Raises:
        InvalidRequest: The query is malformed, or has an unknown field that is an error here.
    """
    fields = parse_form(request.query, "query")
    if not known_names.issuperset(fields) and (
        unknown := [name for name in fields if name not in known_names and name != STRICT_FIELD]
    ):
        record_unknown_names(request, unknown, "field", "query", known_names)
    return fields


class Queries(Generic[T]):
    """Reads queries of one kind, each text once: clients send the same ones again and again.

    Args:
        read: Reads a request's query, and uses nothing else of the request. Requests share its result.
    """

    def __init__(self, read: Callable[[Request], T]) -> None:
        self._read = read
        self.cache: dict[str, T] = {}

    def read(self, request: Request) -> T:
        text = request.query
        parsed = self.cache.get(text)
        if parsed is None:
            ignored_before = request.ignored
            parsed = self._read(request)
            # A query with unknown fields is not cached, so that each response has its warning.
            if request.ignored is ignored_before and len(text) <= MAX_QUERY:
                if len(self.cache) >= MAX_QUERIES:
                    self.cache.clear()
                self.cache[text] = parsed
        return parsed


def record_unknown_names(request: Request, names: Sequence[str], what: str, place: str, allowed: Iterable[str]) -> None:
    """Records unknown names for a warning, where they are not an error.

    Args:
        request: The request.
        names: The names.
        what: ``field`` or ``header``.
        place: Where they are: ``query``, ``body`` or ``operation``.
        allowed: The names that are known there.

    Raises:
        InvalidRequest: They are an error: the resource refuses them, or the query has ``strict=1``.
    """
    first_names = [name[:MAX_WARNED_LENGTH] for name in names[:MAX_WARNED_NAMES]]
    strict = parse_form(request.query, "query").get(STRICT_FIELD)
    if validators.parse_boolean(strict) if strict else request.refuses_unknown:
        hint = did_you_mean(first_names, allowed)
        others = f"The {what}s are: {', '.join(sorted(allowed))}." if allowed else "There are none."
        raise InvalidRequest(
            dict.fromkeys(map(validators.show, names[:MAX_FIELDS]), f"No {what} of this {place}{hint} {others}")
        )
    request.ignored = {**request.ignored, f"{what}s of this {place}": Ignored(first_names, len(names))}


def _unquote(text: str) -> str:
    """Decodes a name or value. Servers pass raw bytes of a query as Latin-1, so these are decoded as UTF-8."""
    if not text.isascii():
        text = text.encode("latin-1").decode("utf-8")
    return unquote_plus(text, errors="strict")


def read_fields(request: Request, max_bytes: int) -> dict[str, Any]:
    """Reads the fields of a form or of a JSON object, by the Content-Type; an empty body has none.

    Raises:
        InvalidRequest: The body is neither a form nor JSON, or is malformed.
    """
    body = read_body(request, max_bytes)
    if not body:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        request.refuses_unknown = True  # The original API reads forms alone.
        return validators.read_object(body)
    if kind not in {"", "application/x-www-form-urlencoded"}:
        raise InvalidRequest({"Content-Type": f'"{kind[:100]}" is neither a form nor application/json'})
    return dict(parse_form(body.decode("latin-1"), "body"))
