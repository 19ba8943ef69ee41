"""A request from this process in the gateway's interface. The answer has the same parts as over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from queuey.web.http.connection import DISCONNECTED
from queuey.web.responses import Response

MAX_UNREAD = 256 * 1024
"""Max bytes of an answer that its reader has not read yet. With more, sending waits."""


class AnswerStart(NamedTuple):
    """The first part of an answer.

    Attributes:
        status: HTTP status.
        headers: Headers with lower-case names.
        body: The complete body, or None if it follows in pieces.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes | None


class BrokenOff(NamedTuple):
    """The last part of an incomplete answer."""


Part = AnswerStart | bytes | BrokenOff | None
"""The start of an answer, a piece of its body, or its end (None)."""


class InProcessExchange:
    """A request and its answer. See :class:`~queuey.web.responses.Exchange`. Use it only in the loop's thread.

    The body is passed on whole and once; then ``take_whole`` returns None.

    Args:
        loop: The service's event loop.
        body: The body of the request.
        put: Passes a part of the answer to the caller's thread. Must not block.

    Attributes:
        has_ended: The answer is complete.
    """

    scheme = "http"
    peer = ""

    def __init__(self, loop: asyncio.AbstractEventLoop, body: bytes, put: Callable[[Part], object]) -> None:
        self._loop = loop
        self._body: bytes | None = body
        self._put = put
        self._unread = 0
        self._has_left = False
        self._leaving: asyncio.Future[dict[str, Any]] | None = None
        self._room: asyncio.Future[None] | None = None
        self.has_ended = False

    def take_whole(self, size: int) -> bytes | None:  # noqa: ARG002 - the whole body is in memory
        body, self._body = self._body, None
        return body

    def receive(self) -> Awaitable[dict[str, Any]]:
        """Returns the whole body the first time; later calls wait until the client leaves."""
        event = self._loop.create_future()
        if self._body is not None:
            event.set_result({"type": "http.request", "body": self._body, "more_body": False})
            self._body = None
        elif self._has_left:
            event.set_result(DISCONNECTED)
        else:
            self._leaving = event
        return event

    def send_response(self, response: Response, *, head: bool) -> None:
        _, body = response.length_and_body(head=head)
        self.has_ended = True
        self._put(AnswerStart(response.status, _encode_headers(response), body))

    async def send_head(self, response: Response, size: int | None) -> None:  # noqa: ARG002 - the last part marks the end
        self._put(AnswerStart(response.status, _encode_headers(response), None))

    async def send_piece(self, piece: bytes, *, more: bool) -> None:
        """Hands a piece to the client; waits while more than ``MAX_UNREAD`` bytes are unread."""
        if piece:
            self._unread += len(piece)
            self._put(piece)
        if not more:
            self.has_ended = True
            self._put(None)
        elif self._unread > MAX_UNREAD and not self._has_left:
            self._room = self._loop.create_future()
            await self._room

    def record_read(self, size: int) -> None:
        """Records that the client has read ``size`` bytes; may let a waiting :meth:`send_piece` go on."""
        self._unread -= size
        if self._room is not None and self._unread <= MAX_UNREAD and not self._room.done():
            self._room.set_result(None)

    def end(self) -> None:
        """Ends the answer: tells the client that it has broken off, unless it is complete."""
        if not self.has_ended:
            self._put(BrokenOff())

    def leave(self) -> None:
        """Tells the service that the client has left, and ends its waits. Idempotent."""
        self._has_left = True
        if self._leaving is not None and not self._leaving.done():
            self._leaving.set_result(DISCONNECTED)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


def _encode_headers(response: Response) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
