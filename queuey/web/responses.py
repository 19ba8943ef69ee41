"""Responses: what a view returns, and how it is sent.

A :class:`Response` has a status, headers and the whole body. It is sent over an :class:`Exchange`: one of our own
connections, or another server's. A streaming response has further pieces, from an iterator that is awaited as fast as
the client receives them.

:class:`ResponseSender` sends a long body in pieces: the next one when the server has accepted the one before. Until the
last piece is accepted, the body counts for its tenant. (Responses of one piece do not: the number of connections bounds
them.) A client that accepts no piece for a while, or is far too slow, is given up.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from time import monotonic
from typing import Any, Protocol

import msgspec

Header = tuple[str, str]
Body = bytes | list[bytes]

STATUS_LINES = {int(status): f"{int(status)} {status.phrase}" for status in HTTPStatus}
# Python 3.13 renamed these.
STATUS_LINES |= {413: "413 Content Too Large", 414: "414 URI Too Long", 416: "416 Range Not Satisfiable"}
STATUS_LINES[422] = "422 Unprocessable Content"

# Without a charset, clients guess one, and guess wrong: the original client's HTTP library does.
JSON: Header = ("Content-Type", "application/json; charset=utf-8")
PROBLEM: Header = ("Content-Type", "application/problem+json")
BODILESS_STATUSES = frozenset({204, 304})
"""Statuses whose responses have no body and no Content-Length."""
_NO_WEIGHT = re.compile(r"q\s*=\s*0(\.0*)?")
TEXT: Header = ("Content-Type", "text/plain; charset=utf-8")
NO_STORE: Header = ("Cache-Control", "no-store")
"""Default Cache-Control: otherwise caches may keep messages, which a key protects."""

EVENT_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    # Without no-transform, proxies that compress responses hold events back.
    "Cache-Control": "no-cache, no-store, no-transform",
    # Makes nginx and compatible proxies pass events on without buffering.
    "X-Accel-Buffering": "no",
}
"""Headers of every stream of server-sent events."""

PIECE_SIZE = 64 * 1024
"""Max bytes of a body that are built and sent together."""

encode = msgspec.json.Encoder().encode


class Response:
    """A response, ready to be sent. ``headers`` has no Content-Length.

    A long body is a list of pieces: joining them would block all other threads of the process. A response with
    ``pieces`` has no length: they follow its body, until they end or its client leaves, which closes them.
    """

    __slots__ = ("body", "headers", "pieces", "size", "status")

    def __init__(
        self, status: int, body: Body, *headers: Header, pieces: AsyncGenerator[Body, None] | None = None
    ) -> None:
        self.status = status
        self.body = body
        self.pieces = pieces
        self.size = sum(map(len, body)) if isinstance(body, list) else len(body)
        self.headers = headers

    def length_and_body(self, *, head: bool) -> tuple[int | None, bytes]:
        """Returns the Content-Length and the bytes to send of a response of one piece.

        The length is None for a status without a body, and for a HEAD if the response has no body.

        Args:
            head: The request is a HEAD: the length is that of the body, which is not sent.
        """
        # A HEAD that Pyramid has answered has its length already, and no body.
        size = None if self.status in BODILESS_STATUSES or (head and not self.size) else self.size
        if head:
            return size, b""
        return size, self.body if isinstance(self.body, bytes) else b"".join(self.body)


class Exchange(Protocol):
    """A request's connection, as the gateway uses it.

    Attributes:
        scheme: ``http`` or ``https``.
        peer: The address of the other end, without the port; blank if unknown.
    """

    scheme: str
    peer: str

    def receive(self) -> Awaitable[dict[str, Any]]:
        """Returns the next ASGI message: a piece of the body, or the disconnect."""

    def take_whole(self, size: int) -> bytes | None:
        """Returns the body if all its bytes, whose number the head announces, have arrived."""

    def send_response(self, response: Response, *, head: bool) -> None:
        """Sends a response of one piece.

        Args:
            response: The response.
            head: Send only its head.
        """

    async def send_head(self, response: Response, size: int | None) -> None:
        """Sends the head of a response whose body follows in pieces.

        Args:
            response: The response.
            size: Bytes of its body, or None for a stream.
        """

    async def send_piece(self, piece: bytes, *, more: bool) -> None:
        """Sends a piece, and waits until there is room for the next."""


def with_cache_control(headers: tuple[Header, ...]) -> tuple[Header, ...]:
    for name, _ in headers:
        if name.lower() == "cache-control":
            return headers
    return (*headers, NO_STORE)


def body_of(pieces: list[bytes]) -> Body:
    return b"".join(pieces) if sum(map(len, pieces)) <= PIECE_SIZE else pieces


def json_response(content: object, status: int = 200) -> Response:
    return Response(status, encode(content), JSON)


def make_event(name: str = "", data: object = None, identity: str = "") -> bytes:
    r"""Returns a server-sent event (WHATWG HTML, 9.2).

    Args:
        name: The type of the event; empty for ``message``.
        data: A value for JSON, or bytes of JSON, or None for an event that only has an id.
        identity: The event id, which the client sends when it reconnects.

    Example:
        >>> make_event("gone", {"a": 1}, "7")
        b'event: gone\nid: 7\ndata: {"a":1}\n\n'
    """
    lines = [f"event: {name}\n".encode()] if name else []
    if identity:
        lines.append(f"id: {identity}\n".encode())
    if data is not None:
        text = data if isinstance(data, bytes) else encode(data)
        if b"\n" in text or b"\r" in text:  # In JSON these are only white space between tokens.
            text = text.replace(b"\r", b" ").replace(b"\n", b" ")
        lines.append(b"data: %b\n" % text)
    return b"".join((*lines, b"\n"))


def text_response(text: str, status: int = 200) -> Response:
    return Response(status, text.encode(), TEXT)


SEND_TIMEOUT = 20.0
"""Timeout for a client to accept a piece, in seconds."""
MIN_RATE = 32 * 1024
"""Min mean rate of a client, in bytes a second, after the first ``SEND_TIMEOUT`` seconds."""


class ResponseSender:
    """Sends responses. Used on the event loop only.

    Args:
        stall: Timeout for a client to accept a piece, in seconds.
    """

    def __init__(self, *, stall: float = SEND_TIMEOUT) -> None:
        self._stall = stall

    async def send(self, response: Response, exchange: Exchange, pause: Callable[[], Awaitable[None]]) -> None:
        """Sends a long response piece by piece, with a pause before each but the first.

        If it ends early, the server drops the connection.
        It ends early, without an error, if the client stalls or is slower than :data:`MIN_RATE`.
        """
        await exchange.send_head(response, response.size)
        remaining = response.size
        seconds = self._stall + remaining / MIN_RATE
        with suppress(TimeoutError):
            for piece in _split_into_pieces(response.body):
                if remaining < response.size:
                    await pause()
                remaining -= len(piece)
                began = monotonic()
                async with asyncio.timeout(min(self._stall, seconds)):
                    await exchange.send_piece(piece, more=remaining > 0)
                seconds -= monotonic() - began

    async def send_part(self, body: Body, exchange: Exchange) -> None:
        """Sends a part of a streaming response.

        Raises:
            TimeoutError: The client has not accepted it in time.
        """
        for piece in _split_into_pieces(body):
            async with asyncio.timeout(self._stall):
                await exchange.send_piece(piece, more=True)

    async def end(self, exchange: Exchange) -> None:
        async with asyncio.timeout(self._stall):
            await exchange.send_piece(b"", more=False)


def _split_into_pieces(body: Body) -> Iterator[bytes]:
    gathered = b""
    for part in body if isinstance(body, list) else [body]:
        for start in range(0, len(part), PIECE_SIZE):
            piece = part[start : start + PIECE_SIZE]
            gathered = gathered + piece if gathered else piece
            if len(gathered) >= PIECE_SIZE:
                yield gathered
                gathered = b""
    if gathered:
        yield gathered


@lru_cache(maxsize=64)
def accepts(accept: str, kind: str) -> bool:
    for entry in accept.lower().split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        if name == kind and not any(map(_NO_WEIGHT.fullmatch, parameters)):
            return True
    return False
