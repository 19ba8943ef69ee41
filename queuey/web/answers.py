"""What a view gives back: a status, headers and the whole body, nothing else.

Pyramid takes any object that provides ``IResponse``. This one costs a fifth of a general response object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

import msgspec
from pyramid.interfaces import IResponse
from zope.interface import implementer

Environ = dict[str, Any]
Header = tuple[str, str]
Body = bytes | list[bytes]
StartResponse = Callable[[str, list[Header]], object]

OWN_HEADER = "HTTP_X_HEADER_"
"""Begins the names of headers that are kept with a message."""
NO_OWN_HEADERS = "queuey.no_own_headers"
"""Set by a server that has seen all headers and found none of these, which saves the search."""

STATUS_LINES = {int(status): f"{int(status)} {status.phrase}" for status in HTTPStatus}

# Clients that find no charset guess one, and guess wrong: the original client lets its HTTP library do that.
JSON: Header = ("Content-Type", "application/json; charset=utf-8")
PROBLEM: Header = ("Content-Type", "application/problem+json")
TEXT: Header = ("Content-Type", "text/plain; charset=utf-8")

PIECE = 64 * 1024
"""Bytes of a long body that are made, and sent, together."""

encode = msgspec.json.Encoder().encode


@implementer(IResponse)
class Answer:
    """An answer, ready to be sent. ``headers`` has no Content-Length.

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
        start_response(STATUS_LINES[self.status], [*self.headers, ("Content-Length", str(self.size))])
        if environ["REQUEST_METHOD"] == "HEAD":
            return ()
        return self.body if isinstance(self.body, list) else (self.body,)


def body_of(pieces: list[bytes]) -> Body:
    """Returns the body that pieces make up: as one if it is short."""
    return b"".join(pieces) if sum(map(len, pieces)) <= PIECE else pieces


def json_answer(content: object, status: int = 200) -> Answer:
    """Answers with a struct or plain data as JSON."""
    return Answer(status, encode(content), JSON)


def text_answer(text: str, status: int = 200) -> Answer:
    """Answers with plain text."""
    return Answer(status, text.encode(), TEXT)
