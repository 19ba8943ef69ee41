"""Responses: what a view returns, and how they are sent to granian (ASGI).

A :class:`Response` has a status, headers and the whole body, nothing else. Pyramid takes any object that provides
``IResponse``; this one costs a fifth of a general response object.

:class:`ResponseSender` sends a long body in pieces: the next one when the server has taken the one before. Until the
last is taken, the body counts for its tenant. (Responses of one piece do not: the number of connections bounds them.) A
client that takes no piece for a while, or is far too slow, is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from http import HTTPStatus
from time import monotonic
from typing import Any

import msgspec
from pyramid.interfaces import IResponse
from zope.interface import implementer

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

    A long body is a list of pieces: to join them would keep all other threads of the process waiting.
    """

    __slots__ = ("body", "headers", "size", "status")

    def __init__(self, status: int, body: Body, *headers: Header) -> None:
        self.status = status
        self.body = body
        self.size = sum(map(len, body)) if isinstance(body, list) else len(body)
        self.headers = headers

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answers the server, as WSGI wants it."""
        headers = [*_with_cache_control(self.headers), ("Content-Length", str(self.size))]
        start_response(STATUS_LINES[self.status], headers)
        if environ["REQUEST_METHOD"] == "HEAD":
            return ()
        return self.body if isinstance(self.body, list) else (self.body,)


def _with_cache_control(headers: tuple[Header, ...]) -> tuple[Header, ...]:
    return headers if any(name == NO_STORE[0] for name, _ in headers) else (*headers, NO_STORE)


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
    return _USUAL.get(response.headers) or [_raw(header) for header in _with_cache_control(response.headers)]


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
