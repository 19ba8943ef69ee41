"""Requests for httpx2 and its errors: none of them gets past here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from queuey.client.calls.call import Call, Times
from queuey.client.errors import (
    AnswerTimeout,
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    InvalidAnswer,
    InvalidArgument,
    Timeout,
    TransportError,
)
from queuey.client.http.servers import Server

CONNECT_SECONDS = 5.0
"""Timeout in seconds of a connection, so that another server is asked soon."""

# The most specific first. A pool without a free connection has sent nothing either; what a proxy refuses neither.
_FAILURES: tuple[tuple[type[httpx2.HTTPError], type[TransportError]], ...] = (
    (httpx2.ConnectTimeout, ConnectTimeout),
    (httpx2.PoolTimeout, ConnectTimeout),
    (httpx2.TimeoutException, AnswerTimeout),
    (httpx2.ConnectError, ConnectionFailed),
    (httpx2.ProxyError, ConnectionFailed),
)

_TEXTS = {
    ConnectTimeout: "no connection in time",
    AnswerTimeout: "no answer in time",
    ConnectionFailed: "no connection",
    ConnectionLost: "the connection broke",
}


def request_of(call: Call[Any], times: Times, authorization: str | None) -> dict[str, Any]:
    headers = dict(call.headers)
    if authorization is not None:
        headers["authorization"] = authorization
    return {
        "content": call.content,
        "params": list(call.params) or None,
        "headers": headers,
        "timeout": httpx2.Timeout(times.step, connect=min(times.step, CONNECT_SECONDS)),
    }


@contextmanager
def translated(server: Server, *, closed: bool) -> Iterator[None]:
    if closed:
        raise InvalidArgument("the client is closed")
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{error.object!r:.100} has no UTF-8 form") from error
    except httpx2.DecodingError as error:
        raise InvalidAnswer(f"the answer's encoding is broken: {error}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
        kind = next((ours for theirs, ours in _FAILURES if isinstance(error, theirs)), ConnectionLost)
        detail = "" if issubclass(kind, Timeout) or not str(error) else f" ({error})"
        hint = ". Start the service: queuey serve" if server.local and kind is ConnectionFailed else ""
        if "SSL" in detail:
            hint = "" if "CERTIFICATE" in detail else ". A server without TLS has an address that begins with http://"
        raise kind(_TEXTS[kind] + detail + hint, server.root) from error
