"""Responses: what a view returns, and how they are sent.

A :class:`Response` has a status, headers and the whole body, nothing else. Pyramid takes any object that provides
``IResponse``; this one costs a fifth of a general response object.

A response may go on after its head: its owner sends more whenever it likes (:class:`Connection`).

:class:`ResponseSender` sends a long body in pieces: the next one when the server has taken the one before. Until the
last is taken, the body counts for its tenant. (Responses of one piece do not: the number of connections bounds them.) A
client that takes no piece for a while, or is far too slow, is given up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from pyramid.interfaces import IResponse
from zope.interface import implementer

if TYPE_CHECKING:
    from queuey.web.gateway.long_polls import Client

Environ = dict[str, Any]
Header = tuple[str, str]
Body = bytes | list[bytes]
StartResponse = Callable[[str, list[Header]], object]

STATUS_LINES = {int(status): f"{int(status)} {status.phrase}" for status in HTTPStatus}

# Clients that find no charset guess one, and guess wrong: the original client lets its HTTP library do that.
JSON: Header = ("Content-Type", "application/json; charset=utf-8")
PROBLEM: Header = ("Content-Type", "application/problem+json")
NO_CONTENT = 204
TEXT: Header = ("Content-Type", "text/plain; charset=utf-8")
NO_STORE: Header = ("Cache-Control", "no-store")
"""Is added to every response without a Cache-Control: caches may otherwise keep messages, which a key protects."""

PIECE = 64 * 1024
"""Bytes of a long body that are made, and sent, together."""

encode = msgspec.json.Encoder().encode


@implementer(IResponse)
class Response:
    """A response, ready to be sent. ``headers`` has no Content-Length.

    A long body is a list of pieces: to join them would keep all other threads of the process waiting. A response with
    an ``owner`` goes on for as long as that likes: it is called once the head is sent, in the loop's thread.
    """

    __slots__ = ("body", "headers", "owner", "size", "status")

    def __init__(self, status: int, body: Body, *headers: Header, owner: Owner | None = None) -> None:
        self.status = status
        self.body = body
        self.owner = owner
        self.size = sum(map(len, body)) if isinstance(body, list) else len(body)
        self.headers = headers

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answers the server, as WSGI wants it."""
        headers = [*with_cache_control(self.headers), ("Content-Length", str(self.size))]
        start_response(STATUS_LINES[self.status], headers)
        if environ["REQUEST_METHOD"] == "HEAD":
            return ()
        return self.body if isinstance(self.body, list) else (self.body,)


def with_cache_control(headers: tuple[Header, ...]) -> tuple[Header, ...]:
    """Returns headers that say whether the response may be kept."""
    return headers if any(name.lower() == "cache-control" for name, _ in headers) else (*headers, NO_STORE)


def body_of(pieces: list[bytes]) -> Body:
    """Returns the body that pieces make up: as one if it is short."""
    return b"".join(pieces) if sum(map(len, pieces)) <= PIECE else pieces


def json_response(content: object, status: int = 200) -> Response:
    """Answers with a struct or plain data as JSON."""
    return Response(status, encode(content), JSON)


def text_response(text: str, status: int = 200) -> Response:
    """Answers with plain text."""
    return Response(status, text.encode(), TEXT)


Send = Callable[[dict[str, Any]], Awaitable[None]]
"""Takes the next part of a response, as ASGI has it."""

MOST_PENDING = 256 * 1024
"""Bytes that may wait for a client whose response goes on, beside the last piece."""
STALL = 20.0
"""Seconds within which a client has to take a piece."""
SLOWEST = 32 * 1024
"""Bytes a second that a client has to take in the mean, after the first ``STALL`` seconds."""


def _raw(header: Header) -> tuple[bytes, bytes]:
    return header[0].lower().encode("latin-1"), header[1].encode("latin-1")


_USUAL: dict[tuple[Header, ...], list[tuple[bytes, bytes]]] = {
    headers: [_raw(kind), _raw(NO_STORE)] for kind in (JSON, TEXT) for headers in ((kind,), (kind, NO_STORE))
}


def _raw_headers(response: Response) -> list[tuple[bytes, bytes]]:
    return _USUAL.get(response.headers) or [_raw(header) for header in with_cache_control(response.headers)]


def _content_length(size: int) -> tuple[bytes, bytes]:
    return b"content-length", str(size).encode()


def short_messages(response: Response, *, head: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the start and the body of a response of one piece, as ASGI has them.

    Without its body if the request was a HEAD, whose answer says how long that would be.
    """
    headers = _raw_headers(response)
    # A HEAD that Pyramid has answered says its length already, and has no body.
    if response.status != NO_CONTENT and (response.size or not head):
        headers = [*headers, _content_length(response.size)]
    start = {"type": "http.response.start", "status": response.status, "headers": headers}
    return start, {"type": "http.response.body", "body": b"" if head else response.body, "more_body": False}


class Connection:
    """The rest of a response that its owner goes on with. Used in the loop's thread alone.

    Args:
        loop: The loop.
        change: Notes that more or fewer bytes wait for the client than before.

    Attributes:
        ended: Done when nobody listens any more: the client has left or takes nothing, the owner or the service ends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, change: Callable[[int], None]) -> None:
        self.ended: asyncio.Future[None] = loop.create_future()
        self._change = change
        self._pieces: deque[bytes] = deque()
        self._pending = 0
        self._is_dropped = False
        self._news = asyncio.Event()

    def send(self, data: bytes) -> bool:
        """Sends more, as soon as the client takes it; never waits. Returns whether anybody listens.

        A client for whom more than ``MOST_PENDING`` bytes wait is given up.
        """
        if self._pending > MOST_PENDING:
            self.drop()
        if self.ended.done():
            return False
        self._pieces.append(data)
        self._count(len(data))
        self._news.set()
        return True

    def end(self) -> None:
        """Ends the response, after what was sent before."""
        if not self.ended.done():
            self.ended.set_result(None)
            self._news.set()

    def drop(self) -> None:
        """Ends it at once: nobody takes what was sent. Whoever does after all sees that it broke off."""
        self._is_dropped = True
        self._count(-self._pending)
        self._pieces.clear()
        self.end()

    def _count(self, difference: int) -> None:
        self._pending += difference
        self._change(difference)

    async def carry(self, send: Send, stall: float) -> None:
        """Sends what comes, until the end. Without the last message, the server drops the connection."""
        try:
            while self._pieces or not self.ended.done():
                await self._news.wait()
                self._news.clear()
                while self._pieces:
                    piece = self._pieces.popleft()
                    self._count(-len(piece))
                    async with asyncio.timeout(stall):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not self._is_dropped:
                async with asyncio.timeout(stall):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            pass
        finally:
            self.drop()


Owner = Callable[[Connection], None]
"""Goes on with a response. It keeps the connection, and sends to it whenever there is something to send."""


class ResponseSender:
    """Sends answers. Used in the loop's thread alone."""

    def __init__(
        self,
        change: Callable[[str, int], None],
        pause: Callable[[str], Awaitable[None]],
        *,
        stall: float = STALL,
    ) -> None:
        """Prepares.

        Args:
            change: Notes that a tenant has more or fewer bytes than before.
            pause: Is awaited before each further piece, with the tenant.
            stall: Seconds within which a client has to take a piece.
        """
        self._change = change
        self._pause = pause
        self._stall = stall
        self.open: dict[Connection, None] = {}
        """Those whose owners go on."""

    async def send(self, response: Response, send: Send, tenant: str, reserved: int = 0) -> None:
        """Sends a long response.

        Args:
            response: What to send.
            send: The server's.
            tenant: The tenant that it counts for.
            reserved: Bytes that it has been counted with already.
        """
        self._change(tenant, response.size - reserved)
        try:
            headers = [*_raw_headers(response), _content_length(response.size)]
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            await self._send_pieces(response, send, tenant)
        finally:
            self._change(tenant, -response.size)

    async def own(self, response: Response, send: Send, tenant: str, client: Client) -> None:
        """Sends the head of a response, and what its owner goes on with.

        Args:
            response: Has an owner.
            send: The server's.
            tenant: The tenant that it counts for.
            client: Its other end.
        """
        assert response.owner is not None  # noqa: S101 - see above
        await send({"type": "http.response.start", "status": response.status, "headers": _raw_headers(response)})
        connection = Connection(asyncio.get_running_loop(), partial(self._change, tenant))
        self.open[connection] = None
        client.leaving = connection.drop
        client.listen()
        try:
            response.owner(connection)
            if client.is_leaving:
                connection.drop()
            await connection.carry(send, self._stall)
        finally:
            del self.open[connection]
            client.forget()

    async def _send_pieces(self, response: Response, send: Send, tenant: str) -> None:
        """Sends a body piece by piece; without its end, the server drops the response and the connection."""
        left = response.size
        seconds = self._stall + left / SLOWEST
        with suppress(TimeoutError):
            for piece in _pieces(response.body):
                if left < response.size:
                    await self._pause(tenant)
                left -= len(piece)
                began = monotonic()
                async with asyncio.timeout(min(self._stall, seconds)):
                    await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
                seconds -= monotonic() - began


def _pieces(body: Body) -> Iterator[bytes]:
    """Cuts a body into pieces of about the same length."""
    gathered = b""
    for part in body if isinstance(body, list) else [body]:
        for at in range(0, len(part), PIECE):
            piece = part[at : at + PIECE]
            gathered = gathered + piece if gathered else piece
            if len(gathered) >= PIECE:
                yield gathered
                gathered = b""
    if gathered:
        yield gathered
