"""Answers on their way to the client, as granian's event loop takes them (ASGI)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from queuey.web.answers import JSON, TEXT, Answer, Header

Send = Callable[[dict[str, Any]], Awaitable[None]]
"""Takes the next part of an answer, as ASGI has it."""


def _raw(header: Header) -> tuple[bytes, bytes]:
    return header[0].encode("latin-1"), header[1].encode("latin-1")


_USUAL = {header: _raw(header) for header in (JSON, TEXT)}
_NO_BODY = (b"content-length", b"0")


async def send_answer(answer: Answer, send: Send, *, head: bool) -> None:
    """Sends a whole answer; without its body if the request was a HEAD, whose answer says how long that would be."""
    body = b"" if head else answer.body
    headers = [_USUAL.get(header) or _raw(header) for header in answer.headers]
    if not body and not head:
        headers.append(_NO_BODY)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
