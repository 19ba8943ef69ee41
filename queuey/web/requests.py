"""Requests: taken in from a connection, and read by views: paths, queries and bodies, never more than allowed.

Headers whose values are not ASCII are left out. Where such a header would have meant something, the request is refused:
a key that picks the partition must not be taken for none. Trailers of a chunked body would be lost, so they are
refused, too.
"""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import unquote_plus

from queuey.access import Caller
from queuey.errors import InvalidRequest, QueueyError, TooLarge, UnknownCoding
from queuey.service.core import Call
from queuey.web import validators
from queuey.web.admission.event_streams import Source, stream_events
from queuey.web.admission.long_polls import Client, LongPoll, Receive
from queuey.web.admission.scheduling import ANONYMOUS, SharedQuota, Turn
from queuey.web.responses import Exchange, Header, Response, accepts

T = TypeVar("T")

SMALL_BODY = 16 * 1024
"""Max bytes of a small body: the number of connections bounds these."""
SHORT_BODY = 64 * 1024
"""Max bytes of a body that is read in the loop's thread."""
BODY_TIMEOUT = 120
"""Timeout for a body to arrive, in seconds."""
OWN_HEADER = "x-header-"
"""Begins the names of headers that are kept with a message."""

_MEANT = frozenset(
    b"authorization content-encoding content-length content-type transfer-encoding x-ttl x-partition x-message-key "
    b"x-delay x-after x-encoding idempotency-key".split()
)
_OF_PROXIES = ("forwarded", "via", "x-forwarded-")
_HEADERS = {
    name.encode(): name
    for name in (
        *("accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host"),
        *("user-agent", "x-message-key", "x-partition", "x-ttl"),
    )
}
"""Names of headers that most requests have."""


class Server(typing.Protocol):
    """Services of the server for a request.

    Attributes:
        beat: Seconds between two signs of life of a stream.
    """

    beat: float

    async def in_pool(self, request: Request, work: Callable[[], T], *, computes: bool, page: bool) -> T:
        """See :meth:`Request.in_pool`."""

    async def reserve(self, request: Request, size: int) -> None:
        """See :meth:`Request.reserve`."""

    def reserve_at_once(self, request: Request, size: int) -> bool:
        """See :meth:`Request.reserve_at_once`."""

    def waiting(self, request: Request, seconds: float) -> LongPoll:
        """See :meth:`Request.waiting`."""


class Protocol(typing.Protocol):
    """Another protocol below some paths: a facade, or the console."""

    def admit(self, request: Request) -> bool:
        """Prepares a request if it is one of its own: its credential, and the form of its errors."""

    def error_response(self, request: Request, error: Exception, status: int, text: str) -> Response:
        """Makes the answer of an error.

        Args:
            request: The one that failed.
            error: What happened.
            status: What version 1 would answer.
            text: For the caller; it says nothing of a defect but an id.
        """

    def application_of(self, caller: Caller, /) -> str:
        """Returns the application for whose queues a caller's requests are counted."""


class Request:
    """A request to a view.

    Attributes:
        server: What it came to.
        method: In capitals.
        path: Percent-decoded.
        query: As it was sent.
        scheme: ``http`` or ``https``.
        headers: By name in small letters; values are ASCII, those of a name given twice joined by commas.
        body: As it was taken in whole; None: that was not done.
        has_own_headers: There are some that are kept with a message.
        tenant: The application that it counts for.
        present: Whether it is counted as waiting or running.
        held: Bytes with which its body is counted.
        reserved: Bytes with which its response is counted.
        turn: Its turn of the loop, while it has one.
        blocked: A thread works for it, which does not end sooner if it is given up.
        turn_began: Start of the part of it that runs now, by the monotonic clock.
        call: That part, or None until it has had to wait for something.
        is_paused: It waits for messages, without anything that others could use.
        client: The client that waits for the answer, or None if that is of no interest.
        counted: Headers that say how many more requests the caller may make.
        facade: The protocol that it speaks; None: ours.
        verify: Checks the signature that proves who the caller is; None, if that is done or not needed.
        refused: Why the caller's credential was not accepted. It is not checked again.
        batch: How many messages it is to store, once that is known.
        in_doubt: Something of it may have been done before it failed, so that the error has the outcome ``unknown``.
        known: What its facade has found out about it.
        address: That its connection comes from, without the port; blank: not known.
        ignored: What means nothing in it, by kind.
    """

    # Of most requests these stay as they are.
    body: bytes | None = None
    has_own_headers = False
    tenant = ANONYMOUS
    present = False
    held = 0
    reserved = 0
    turn: Turn | None = None
    blocked = False
    turn_began = 0.0
    call: Call | None = None
    is_paused = False
    client: Client | None = None
    counted: tuple[Header, ...] = ()
    facade: Protocol | None = None
    verify: Callable[[Request], None] | None = None
    refused: QueueyError | None = None
    batch = 0
    in_doubt = False
    known: object = None
    address = ""
    ignored: Mapping[str, Ignored] = MappingProxyType({})

    def __init__(
        self, server: Server, method: str, path: str, query: str, scheme: str, headers: dict[str, str]
    ) -> None:
        self.server = server
        self.method = method
        self.path = path
        self.query = query
        self.scheme = scheme
        self.headers = headers

    @property
    def is_left(self) -> bool:
        """True if its client is known to be gone."""
        return self.client is not None and self.client.has_left

    @property
    def can_be_given_up(self) -> bool:
        """False while it waits for messages or a thread works for it: these have limits of their own."""
        return not self.blocked and not self.is_paused

    @property
    def origin(self) -> str:
        """The scheme and host by which the client reaches the service, also through a proxy."""
        scheme = self.headers.get("x-forwarded-proto", "")
        return f"{scheme if scheme in {'http', 'https'} else self.scheme}://{self.headers.get('host', 'localhost')}"

    async def in_pool(self, work: Callable[[], T], *, computes: bool = False, page: bool = False) -> T:
        """Does work that may block or take long in a thread; returns its result or raises its error.

        Use cases, which do not have the request, call :meth:`queuey.service.core.Core.in_thread`, which leads here.

        Args:
            work: What to do.
            computes: It reads and makes an answer, and does not wait for the store's writer.
            page: The response may have a page of messages, for which memory is reserved first.

        Raises:
            TooManyRequests, StoreUnavailable: No thread or not enough memory was free in time.
        """
        return await self.server.in_pool(self, work, computes=computes, page=page)

    async def reserve(self, size: int) -> None:
        """Waits until so many bytes of memory are there for the response.

        Raises:
            TooManyRequests, StoreUnavailable: They were not free in time.
        """
        if not self.server.reserve_at_once(self, size):
            await self.server.reserve(self, size)

    def reserve_at_once(self, size: int) -> bool:
        """Reserves so many bytes of memory for the response if they are free; returns whether they are."""
        return self.server.reserve_at_once(self, size)

    def waiting(self, seconds: float) -> LongPoll:
        """Returns what the request awaits its turns with, if it has to wait for messages; its view ``reads``."""
        return self.server.waiting(self, seconds)

    async def until_found(
        self, seconds: float, attempt: Callable[[LongPoll | None], Awaitable[T]], *may_pass: type[QueueyError]
    ) -> T:
        """Attempts something, again and again until there is a result or the time is over.

        Args:
            seconds: Time to wait for a result; 0: only one attempt is made.
            attempt: Returns a result, which is false if it is empty. It gets what it may be woken by, or None if the
                request does not wait, and checks the caller's rights again.
            may_pass: Errors after which another attempt may succeed.

        Raises:
            QueueyError: As the attempt does; or there is no place to wait, or the request did not get its turn in time.
        """
        if not seconds:
            return await attempt(None)
        async with self.waiting(seconds) as turn:
            while True:
                try:
                    if (result := await attempt(turn)) or not await turn.next():
                        return result
                except may_pass:
                    if not await turn.next():
                        raise

    async def stream(self, source: Source, caller: Caller | None, *headers: Header) -> Response:
        """Returns a response that goes on with the events of a source as they come.

        Args:
            source: The events.
            caller: The reader, whose credential may have an end.
            headers: Headers of the response.

        Raises:
            QueueyError: There are no first events, or no place for a stream.
        """
        pieces = stream_events(self.waiting(0.0), source, caller, self.server.beat)
        first = await anext(pieces)
        if self.method == "HEAD":
            await pieces.aclose()
            return Response(200, first, *headers)
        return Response(200, first, *headers, pieces=pieces)

    async def read(self, work: Callable[[], T]) -> T:
        """Does work that takes the body apart; in a thread if that is long."""
        return work() if len(self.body or b"") <= SHORT_BODY else await self.in_pool(work)


class Ignored(NamedTuple):
    """The first names of what means nothing in a request, cut, and the number of all."""

    names: Sequence[str]
    total: int


class Fields(NamedTuple):
    """The header fields of a request.

    Attributes:
        headers: By name in small letters.
        own: There are some that are kept with a message.
        foreign: Names of those that cannot be read.
    """

    headers: dict[str, str]
    own: bool
    foreign: list[str]


def read_headers(fields: Iterable[tuple[bytes, bytes]]) -> Fields:
    """Returns headers, given their names in small letters and their values.

    Headers whose names hold an underscore are left out: to views of WSGI, ``X_User`` and ``X-User`` are the same.
    """
    headers: dict[str, str] = {}
    foreign = []
    own = False
    for raw_name, raw in fields:
        name = _HEADERS.get(raw_name)
        if name is None:
            if b"_" in raw_name:
                continue
            name = raw_name.decode("latin-1")
            own = own or name.startswith(OWN_HEADER)
        if not raw.isascii():
            if raw_name in _MEANT or name.startswith(OWN_HEADER):
                foreign.append(name)
            elif name.startswith(_OF_PROXIES):
                headers.setdefault(name, "")  # It tells of a proxy, whatever its value.
            continue
        value = raw.decode()
        if name in headers:
            value = f"{headers[name]}{'; ' if name == 'cookie' else ','}{value}"
        headers[name] = value
    return Fields(headers, own, foreign)


def wants_events(request: Request) -> bool:
    """Returns whether a request asks for server-sent events."""
    accept = request.headers.get("accept")
    return accept is not None and accepts(accept, "text/event-stream")


def refuse_unreadable(names: list[str]) -> NoReturn:
    """Raises the error of headers that cannot be read."""
    raise InvalidRequest(dict.fromkeys(names, "Is not ASCII; a batch takes any text"))


def announced_length(request: Request) -> int | None:
    """Returns the length that a body is said to have, None if it is chunked.

    Raises:
        InvalidRequest: It is encoded in some other way, or its length is not a number.
    """
    length = request.headers.get("content-length")
    if length is not None:
        if not (length.isascii() and length.isdigit()) or len(length) > _DIGITS:
            raise InvalidRequest({"Content-Length": f'"{length[:40]}" is not a number'})
        return int(length)
    coding = request.headers.get("transfer-encoding")
    if coding is None:
        return 0
    if coding.strip().lower() != "chunked":
        raise InvalidRequest({"Transfer-Encoding": "Only chunked is understood"})
    return None


class BodyReader:
    """Receives bodies, with limits on the length of one, on the bytes of all at a time, and on the time.

    Used in the loop's thread alone.
    """

    def __init__(self, most: int, memory: SharedQuota, *, arrival: int = BODY_TIMEOUT) -> None:
        """Prepares.

        Args:
            most: Bytes of the longest body that any view takes; longer ones are not read.
            memory: What bodies are taken from.
            arrival: Seconds within which a body has to arrive.
        """
        self._most = most
        self._memory = memory
        self._arrival = arrival
        self._arriving: dict[asyncio.Task[Any], int] = {}
        self._seconds = 0

    def take_at_once(self, request: Request, exchange: Exchange) -> bool:
        """Takes a body that is short and here, or notes that there is none; False: see :meth:`take`.

        Raises:
            InvalidRequest: Its length cannot be read.
        """
        announced = announced_length(request)
        if announced == 0:
            request.body = b""
        elif announced is not None and announced <= SMALL_BODY and announced <= self._most:
            request.body = exchange.take_whole(announced)
        return request.body is not None

    async def take(self, request: Request, exchange: Exchange, loop: asyncio.AbstractEventLoop) -> None:
        """Reads the body into the request unless it is longer than any view takes.

        Afterwards, in any case, the caller releases what the request has ``held``.

        Raises:
            InvalidRequest: It broke off, or did not arrive in time.
            TooManyRequests, StoreUnavailable: Not enough memory is free now.
        """
        if not self.take_at_once(request, exchange):
            announced = announced_length(request)
            # A view refuses a body that is too long by its length alone, so that one is left unread.
            if announced is None or announced <= self._most:
                await self._receive(request, exchange.receive, loop, announced)

    async def _receive(
        self, request: Request, receive: Receive, loop: asyncio.AbstractEventLoop, announced: int | None
    ) -> None:
        """Reads a body that has not come yet; see :meth:`take`."""
        task = asyncio.current_task(loop)
        if task is not None:
            self._arriving[task] = self._seconds + self._arrival
        try:
            if announced is not None and announced > SMALL_BODY:
                self._hold(request, announced)
            message = await receive()
            body: bytes = message.get("body", b"")
            if len(body) != announced or message["type"] != "http.request":
                body = await self._take_pieces(request, message, receive, announced)
        except asyncio.CancelledError:
            if task is None or self._arriving[task] > self._seconds or task.uncancel():
                raise  # The server has cancelled it.
            raise InvalidRequest({"body": "Has not arrived in time"}) from None
        finally:
            if task is not None:
                del self._arriving[task]
        request.body = body

    async def _take_pieces(
        self, request: Request, message: dict[str, Any], receive: Receive, announced: int | None
    ) -> bytes:
        """Reads the rest of a body after its first message; ends once it is longer than any view takes."""
        body: bytes | bytearray = b""
        while True:
            if message["type"] != "http.request":
                raise InvalidRequest({"body": "Broke off, or is malformed"})
            piece: bytes = message["body"]
            more: bool = message["more_body"]
            if not piece and more:
                raise InvalidRequest({"body": "Has trailers"})
            if not body:
                body = piece
            elif piece:
                # Many small pieces would weigh far more in a list.
                body = body if isinstance(body, bytearray) else bytearray(body)
                body += piece
            if announced is None:
                self._hold(request, len(body))
            if announced is not None and not more and len(body) != announced:
                raise InvalidRequest({"body": f"Ends after {len(body)} of {announced} bytes"})
            if not more or len(body) > self._most or len(body) == announced:
                return bytes(body)
            message = await receive()

    def _hold(self, request: Request, size: int) -> None:
        """Reserves memory for a body of this size.

        Raises:
            TooManyRequests, StoreUnavailable: There is none.
        """
        if size <= SMALL_BODY or size <= request.held:
            return
        # Quota is taken in steps, so that a body in small pieces is not counted at each of them.
        held = request.held
        weight = size if held == 0 else max(size, min(2 * held, self._most))
        if not self._memory.take(request.tenant, weight - held):
            raise self._memory.refusal(request.tenant, weight - held)
        request.held = weight

    def give_up_late(self) -> None:
        """Ends the reading of bodies that have not arrived in time. Is called every second."""
        self._seconds += 1
        for task, deadline in list(self._arriving.items()):
            if deadline > self._seconds:
                break
            task.cancel()


MAX_NAMES, MAX_NAME = 10, 60
"""Max ignored names in a warning, and max characters of each."""
MAX_FIELDS = 200
_DIGITS = 18

STRICT = "strict"
"""The field of any query that has unknown fields refused."""


class BodyWanted(Exception):
    """A view asks for a body that was not read yet; the caller is authorized."""


def read_body(request: Request, most: int) -> bytes:
    """Returns the body, plain or chunked.

    Raises:
        TooLarge: It is longer than ``most`` bytes. The rest is left unread.
        UnknownCoding: It is compressed.
        BodyWanted: It was not taken in.
    """
    if "content-encoding" in request.headers:
        _check_coding(request.headers["content-encoding"])
    if request.body is not None:
        if len(request.body) > most:
            raise too_large("body", most)
        return request.body
    announced = announced_length(request)
    if announced is not None and announced > most:
        raise too_large("body", most)
    raise BodyWanted


def _check_coding(coding: str) -> None:
    """Refuses a body that would have to be decoded: stored as it is, its readers would not know that it is compressed.

    Raises:
        UnknownCoding: It is compressed.
    """
    if not {name.strip().lower() for name in coding.split(",")} <= {"", "identity"}:
        raise UnknownCoding(coding)


def too_large(field: str, most: int, *, unit: str = "bytes") -> TooLarge:
    """Returns the error of something longer than allowed."""
    return TooLarge({field: f"Longer than maximum length {most} {unit}"})


def parse_form(text: str, what: str) -> dict[str, str]:
    """Reads ``a=1&b=2``; if a name is repeated, the last value wins.

    Raises:
        InvalidRequest: It is not percent-encoded UTF-8, or has too many fields.
    """
    if not text:
        return {}
    pairs = text.split("&")
    if len(pairs) > MAX_FIELDS:
        raise InvalidRequest({what: f"More than {MAX_FIELDS} fields"})
    found = {}
    quoted = "%" in text or "+" in text or not text.isascii()
    for pair in pairs:
        name, _, value = pair.partition("=")
        if quoted:
            try:
                name, value = _unquote(name), _unquote(value)
            except UnicodeError:
                raise InvalidRequest({what: "Not percent-encoded UTF-8"}) from None
        if name:
            found[name] = value
    return found


def read_query(request: Request, known: frozenset[str] = frozenset()) -> dict[str, str]:
    """Reads the fields of the query. Unknown fields are ignored, and noted for a warning.

    Args:
        request: The request.
        known: Names of the known fields.

    Raises:
        InvalidRequest: The query is malformed, or names an unknown field and asks for ``strict``.
    """
    given = parse_form(request.query, "query")
    if not known.issuperset(given) and (unknown := [name for name in given if name not in known and name != STRICT]):
        note_unknown(request, unknown, "field", "query", known)
    return given


def note_unknown(request: Request, names: Sequence[str], what: str, place: str, allowed: Iterable[str]) -> None:
    """Records names that mean nothing, for a warning.

    Args:
        request: The request.
        names: The names.
        what: ``field`` or ``header``.
        place: Where they stand: ``query``, ``body`` or ``operation``.
        allowed: The names that mean something there.

    Raises:
        InvalidRequest: The request asks for ``strict``.
    """
    if validators.boolean(parse_form(request.query, "query").get(STRICT, "")):
        others = f"The {what}s are: {', '.join(sorted(allowed))}." if allowed else "There are none."
        errors = dict.fromkeys(map(validators.show, names[:MAX_FIELDS]), f"No {what} of this {place}. {others}")
        raise InvalidRequest(errors)
    shown = [name[:MAX_NAME] for name in names[:MAX_NAMES]]
    request.ignored = {**request.ignored, f"{what}s of this {place}": Ignored(shown, len(names))}


def _unquote(text: str) -> str:
    """Decodes one name or value. Servers pass raw bytes of a query as Latin-1, so these are read as UTF-8 too."""
    if not text.isascii():
        text = text.encode("latin-1").decode("utf-8")
    return unquote_plus(text, errors="strict")


def read_fields(request: Request, most: int) -> dict[str, Any]:
    """Reads the fields of a form or of a JSON object, by the Content-Type.

    Raises:
        InvalidRequest: It is neither, or broken.
    """
    body = read_body(request, most)
    if not body:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return validators.read_object(body)
    if kind not in {"", "application/x-www-form-urlencoded"}:
        raise InvalidRequest({"Content-Type": f'"{kind[:100]}" is neither a form nor application/json'})
    return dict(parse_form(body.decode("latin-1"), "body"))
