"""A bare WSGI callable: the minimal work of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

ANSWER = (
    b'{"status":"ok","messages":[{"key":"00000000000011f080808080808080ff",'
    b'"timestamp":"1700000000.0000000","partition":1}]}'
)
HEADERS = [("Content-Type", "application/json"), ("Content-Length", str(len(ANSWER)))]


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0))
    start_response("201 Created", HEADERS)
    return (ANSWER,)
