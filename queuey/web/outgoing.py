"""Answers on their way to the client, as granian's event loop takes them (ASGI).

A long answer goes in pieces; the next is handed over when the server has taken the one before. Until the last one is
taken, the answer counts for its application. A client that takes no piece for a while, or is far too slow, is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from queuey.web.answers import JSON, TEXT, Answer, Header

Send = Callable[[dict[str, Any]], Awaitable[None]]
"""Takes the next part of an answer, as ASGI has it."""

PIECE = 64 * 1024
"""Bytes that are handed over together. Shorter answers are not counted: the number of connections bounds them."""
STALL = 20.0
"""Seconds within which a client has to take a piece."""
SLOWEST = 32 * 1024
"""Bytes a second that a client has to take in the mean, after the first ``STALL`` seconds."""


def _raw(header: Header) -> tuple[bytes, bytes]:
    return header[0].encode("latin-1"), header[1].encode("latin-1")


_USUAL = {header: _raw(header) for header in (JSON, TEXT)}
_NO_BODY = (b"content-length", b"0")


class Outlet:
    """Sends answers. Used in the loop's thread alone."""

    def __init__(self, change: Callable[[str, int], None], *, stall: float = STALL) -> None:
        """Prepares.

        Args:
            change: Notes that a holder has more or fewer bytes than before.
            stall: Seconds within which a client has to take a piece.
        """
        self._change = change
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
        body = b"" if head else answer.body
        headers = [_USUAL.get(header) or _raw(header) for header in answer.headers]
        if head and answer.body:  # made here; the WSGI application leaves the body out and says its length
            headers.append((b"content-length", str(len(answer.body)).encode()))
        elif not body and not head:
            headers.append(_NO_BODY)
        if len(body) > PIECE:
            headers.append((b"content-length", str(len(body)).encode()))
            self._change(holder, len(body) - kept)
            try:
                await send({"type": "http.response.start", "status": answer.status, "headers": headers})
                await self._send_pieces(body, send)
            finally:
                self._change(holder, -len(body))
            return
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _send_pieces(self, body: bytes, send: Send) -> None:
        """Sends a body piece by piece; without its end, the server drops the answer and the connection."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._stall + len(body) / SLOWEST):
                for at in range(0, len(body), PIECE):
                    more = at + PIECE < len(body)
                    async with asyncio.timeout(self._stall):
                        await send({"type": "http.response.body", "body": body[at : at + PIECE], "more_body": more})
