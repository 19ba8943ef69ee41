"""Responses: what a view returns, and how they are sent.

A :class:`Response` has a status, headers and the whole body, nothing else. It is sent over an :class:`Exchange`: one of
our own connections, or a server of another kind.

A response may go on after its head: what it has more comes from an iterator, as soon as the client takes it.

:class:`ResponseSender` sends a long body in pieces: the next one when the server has taken the one before. Until the
last is taken, the body counts for its tenant. (Responses of one piece do not: the number of connections bounds them.) A
client that takes no piece for a while, or is far too slow, is given up.
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

# Clients that find no charset guess one, and guess wrong: the original client lets its HTTP library do that.
JSON: Header = ("Content-Type", "application/json; charset=utf-8")
PROBLEM: Header = ("Content-Type", "application/problem+json")
WITHOUT_BODY = frozenset({204, 304})
"""Statuses whose responses have no body, so no length."""
_NO_WEIGHT = re.compile(r"q\s*=\s*0(\.0*)?")
TEXT: Header = ("Content-Type", "text/plain; charset=utf-8")
NO_STORE: Header = ("Cache-Control", "no-store")
"""Default Cache-Control of a response: otherwise caches may keep messages, which a key protects."""

PIECE_SIZE = 64 * 1024
"""Max bytes of a long body that are built and sent together."""

encode = msgspec.json.Encoder().encode


class Response:
    """A response, ready to be sent. ``headers`` has no Content-Length.

    A long body is a list of pieces: to join them would keep all other threads of the process waiting. A response with
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

    def at_hand(self, *, head: bool) -> tuple[int | None, bytes]:
        """Returns the length to announce, or None, and the bytes to send of a response of one piece.

        Args:
            head: Only the head was asked for, which says how long the body would be.
        """
        # A HEAD that Pyramid has answered says its length already, and has no body.
        size = None if self.status in WITHOUT_BODY or (head and not self.size) else self.size
        if head:
            return size, b""
        return size, self.body if isinstance(self.body, bytes) else b"".join(self.body)


class Exchange(Protocol):
    """A request's connection, as the gateway uses it.

    Attributes:
        scheme: ``http`` or ``https``.
        peer: The address of the other end, without the port, or blank if it is not known.
    """

    scheme: str
    peer: str

    def receive(self) -> Awaitable[dict[str, Any]]:
        """Returns the next piece of the body, or says that the client is gone, as in ASGI."""

    def take_whole(self, size: int) -> bytes | None:
        """Returns the body if all its bytes, whose number the head announces, have come already."""

    def respond(self, response: Response, *, head: bool) -> None:
        """Sends a response of one piece.

        Args:
            response: The response.
            head: Only its head is asked for.
        """

    async def begin(self, response: Response, size: int | None) -> None:
        """Sends the head of a response whose body follows in pieces.

        Args:
            response: The response.
            size: Bytes of its body, or None if it goes on.
        """

    async def send(self, piece: bytes, *, more: bool) -> None:
        """Sends a piece, and waits until there is room for the next."""


def with_cache_control(headers: tuple[Header, ...]) -> tuple[Header, ...]:
    """Returns headers that say whether the response may be kept."""
    return headers if any(name.lower() == "cache-control" for name, _ in headers) else (*headers, NO_STORE)


def body_of(pieces: list[bytes]) -> Body:
    """Returns the body that pieces make up: as one if it is short."""
    return b"".join(pieces) if sum(map(len, pieces)) <= PIECE_SIZE else pieces


def json_response(content: object, status: int = 200) -> Response:
    """Answers with a struct or plain data as JSON."""
    return Response(status, encode(content), JSON)


def event(name: str = "", data: object = None, identity: str = "") -> bytes:
    r"""Returns a server-sent event (WHATWG HTML, 9.2).

    Args:
        name: Its type; nothing: ``message``.
        data: As JSON, or bytes that are JSON; None: it only says how far the client has come.
        identity: What the client sends when it comes again.

    Example:
        >>> event("gone", {"a": 1}, "7")
        b'event: gone\nid: 7\ndata: {"a":1}\n\n'
    """
    lines = [f"event: {name}\n".encode()] if name else []
    if identity:
        lines.append(f"id: {identity}\n".encode())
    if data is not None:
        text = data if isinstance(data, bytes) else encode(data)
        if b"\n" in text or b"\r" in text:  # JSON may have them between its parts, where any white space will do.
            text = text.replace(b"\r", b" ").replace(b"\n", b" ")
        lines.append(b"data: %b\n" % text)
    return b"".join((*lines, b"\n"))


def text_response(text: str, status: int = 200) -> Response:
    """Answers with plain text."""
    return Response(status, text.encode(), TEXT)


SEND_TIMEOUT = 20.0
"""Timeout for a client to receive a piece, in seconds."""
MIN_RATE = 32 * 1024
"""Min mean rate of a client in bytes a second, after the first ``SEND_TIMEOUT`` seconds."""


class ResponseSender:
    """Sends answers. Used in the loop's thread alone."""

    def __init__(self, pause: Callable[[str], Awaitable[None]], *, stall: float = SEND_TIMEOUT) -> None:
        """Prepares.

        Args:
            pause: Is awaited before each further piece, with the tenant.
            stall: Seconds within which a client has to take a piece.
        """
        self._pause = pause
        self._stall = stall

    async def send(self, response: Response, exchange: Exchange, tenant: str) -> None:
        """Sends a long response piece by piece; without its end, the server drops it and the connection."""
        await exchange.begin(response, response.size)
        left = response.size
        seconds = self._stall + left / MIN_RATE
        with suppress(TimeoutError):
            for piece in _pieces(response.body):
                if left < response.size:
                    await self._pause(tenant)
                left -= len(piece)
                began = monotonic()
                async with asyncio.timeout(min(self._stall, seconds)):
                    await exchange.send(piece, more=left > 0)
                seconds -= monotonic() - began

    async def send_part(self, body: Body, exchange: Exchange) -> None:
        """Sends a part of a response that goes on.

        Raises:
            TimeoutError: The client has not taken it in time.
        """
        for piece in _pieces(body):
            async with asyncio.timeout(self._stall):
                await exchange.send(piece, more=True)

    async def end(self, exchange: Exchange) -> None:
        """Ends a response that went on; raises as :meth:`send_part` does."""
        async with asyncio.timeout(self._stall):
            await exchange.send(b"", more=False)


def _pieces(body: Body) -> Iterator[bytes]:
    """Cuts a body into pieces of about the same length."""
    gathered = b""
    for part in body if isinstance(body, list) else [body]:
        for at in range(0, len(part), PIECE_SIZE):
            piece = part[at : at + PIECE_SIZE]
            gathered = gathered + piece if gathered else piece
            if len(gathered) >= PIECE_SIZE:
                yield gathered
                gathered = b""
    if gathered:
        yield gathered


@lru_cache(maxsize=64)
def accepts(accept: str, kind: str) -> bool:
    """Returns whether a header ``Accept`` names a media type, in any case, with a weight other than 0."""
    for entry in accept.lower().split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        if name == kind and not any(map(_NO_WEIGHT.fullmatch, parameters)):
            return True
    return False
