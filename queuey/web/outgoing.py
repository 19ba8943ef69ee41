"""Answers on their way to the client, as granian's event loop takes them (ASGI).

A long answer goes in pieces; the next is handed over when the server has taken the one before. Until the last one is
taken, the answer counts for its application. (Those of one piece do not: the number of connections bounds them.) A
client that takes no piece for a while, or is far too slow, is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any

from queuey.web.answers import JSON, PIECE, TEXT, Answer, Body, Header

Send = Callable[[dict[str, Any]], Awaitable[None]]
"""Takes the next part of an answer, as ASGI has it."""

STALL = 20.0
"""Seconds within which a client has to take a piece."""
SLOWEST = 32 * 1024
"""Bytes a second that a client has to take in the mean, after the first ``STALL`` seconds."""


def _raw(header: Header) -> tuple[bytes, bytes]:
    return header[0].encode("latin-1"), header[1].encode("latin-1")


_USUAL: dict[tuple[Header, ...], list[tuple[bytes, bytes]]] = {(header,): [_raw(header)] for header in (JSON, TEXT)}
_NO_BODY = (b"content-length", b"0")


class Outlet:
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
            change: Notes that a holder has more or fewer bytes than before.
            pause: Is awaited before each further piece, with the holder.
            stall: Seconds within which a client has to take a piece.
        """
        self._change = change
        self._pause = pause
        self._stall = stall

    async def send(self, answer: Answer, send: Send, holder: str, kept: int = 0, *, head: bool) -> None:
        """Sends an answer; without its body if the request was a HEAD, whose answer says how long that would be.

        Args:
            answer: What to send.
            send: The server's.
            holder: Whom it counts for.
            kept: Bytes that it has been counted with already.
            head: Whether the request was a HEAD.
        """
        headers = _USUAL.get(answer.headers) or [_raw(header) for header in answer.headers]
        size = 0 if head else answer.size
        if head and answer.size:  # made here; the WSGI application leaves the body out and says its length
            headers = [*headers, (b"content-length", str(answer.size).encode())]
        elif not size and not head:
            headers = [*headers, _NO_BODY]
        if size > PIECE:
            headers = [*headers, (b"content-length", str(size).encode())]
            self._change(holder, size - kept)
            try:
                await send({"type": "http.response.start", "status": answer.status, "headers": headers})
                await self._send_pieces(answer, send, holder)
            finally:
                self._change(holder, -size)
            return
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body if size else b"", "more_body": False})

    async def _send_pieces(self, answer: Answer, send: Send, holder: str) -> None:
        """Sends a body piece by piece; without its end, the server drops the answer and the connection."""
        left = answer.size
        seconds = self._stall + left / SLOWEST
        with suppress(TimeoutError):
            for piece in _pieces(answer.body):
                if left < answer.size:
                    await self._pause(holder)
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
