"""What both clients do with httpx2: their connections, requests and answers. None of its errors gets past here.

An attempt at a call is bounded in seconds whatever the server does, and in bytes of its answer. The timeouts of httpx2
hold for one step. A server that sends a byte now and then, or one interim answer after another, begins a new step each
time, so every step here gets what is left of the whole.
"""

from __future__ import annotations

import os
import ssl
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from math import inf
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2

import queuey
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
from queuey.client.forks import begin_in_children
from queuey.client.http.servers import Server

C = TypeVar("C", httpx2.Client, httpx2.AsyncClient)

# -- connections

CONNECTIONS = 500
"""Max connections of a client; a process often may have no more than 1,024 files."""
_inherited: list[httpx2.Client] = []
"""Clients of a parent process. To drop them would close the parent's connections."""
_PROXIES = frozenset({"all_proxy", "http_proxy", "https_proxy"})


class Connections:
    """The connections of a client for threads. A child process that was forked opens its own."""

    def __init__(
        self,
        servers: tuple[Server, ...],
        verify: bool | str | Path | ssl.SSLContext,  # noqa: FBT001 - passed on
        transport: httpx2.BaseTransport | None,
        network: type[Wrapper],
    ) -> None:
        self._make = partial(_made, httpx2.Client, network, transport=transport, **_options(servers, verify))
        self._client = self._make()
        self._forked = False
        self._lock = Lock()
        begin_in_children(self)

    def begin_in_child(self) -> None:
        self._forked = True
        self._lock = Lock()

    @property
    def client(self) -> httpx2.Client:
        if self._forked:
            with self._lock:
                if self._forked:
                    _inherited.append(self._client)
                    self._client = self._make()
                    self._forked = False
        return self._client


class AsyncConnections:
    """The connections of a client for async code."""

    def __init__(
        self,
        servers: tuple[Server, ...],
        verify: bool | str | Path | ssl.SSLContext,  # noqa: FBT001 - passed on
        transport: httpx2.AsyncBaseTransport | None,
        network: type[Wrapper],
    ) -> None:
        self.client = _made(httpx2.AsyncClient, network, transport=transport, **_options(servers, verify))


def _options(
    servers: tuple[Server, ...],
    verify: bool | str | Path | ssl.SSLContext,  # noqa: FBT001 - passed on
) -> dict[str, Any]:
    """Returns what both kinds of httpx2 client are made with."""
    headers = {
        "user-agent": f"queuey-client/{queuey.__version__}",
        "accept": "application/json, application/problem+json",
        "accept-encoding": "gzip",
    }
    hosts = {_pattern(server): None for server in servers if server.local}
    return {
        "headers": headers,
        "verify": _context(servers, verify),
        "trust_env": not _all_plain_and_local(servers),
        # A proxy has no business between a client and its own machine.
        "mounts": hosts,
        "follow_redirects": False,
        # Renewals do not wait for those who wait for messages, however many these are.
        "limits": httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
    }


def _made(kind: type[C], network: type[Wrapper], **options: Any) -> C:  # noqa: ANN401 - of either kind
    """Makes a client of httpx2, which reads the environment's proxies.

    Raises:
        InvalidArgument: It cannot use them.
    """
    try:
        client = kind(**options)
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        proxies = sorted(name for name in os.environ if name.lower() in _PROXIES and os.environ[name])
        if not proxies:
            raise
        text = f"the proxy of the environment cannot be used ({', '.join(proxies)}): {error}"
        raise InvalidArgument(f"{text}. Name a proxy whose address begins with http://, or unset it") from error
    _bound(client, network)
    return client


def _bound(client: httpx2.Client | httpx2.AsyncClient, network: type[Wrapper]) -> None:
    """Makes every step of a client's connections obey :func:`ends_in`, those through proxies included.

    httpx2 offers no public way to give its pools another network; a pool asks for a connection when it needs one.

    Raises:
        AttributeError: httpx2 has other names for that than those known here, so calls would have no limit.
    """
    for transport in (client._transport, *client._mounts.values()):  # noqa: SLF001
        if isinstance(transport, httpx2.HTTPTransport | httpx2.AsyncHTTPTransport):
            pool: Any = transport._pool  # noqa: SLF001
            if not isinstance(pool._network_backend, network):  # noqa: SLF001
                pool._network_backend = network(pool._network_backend)  # noqa: SLF001


def _pattern(server: Server) -> str:
    host = urlsplit(server.root).hostname or ""
    return f"all://[{host}]" if ":" in host else f"all://{host}"


def _context(
    servers: tuple[Server, ...],
    verify: bool | str | Path | ssl.SSLContext,  # noqa: FBT001 - passed on
) -> bool | ssl.SSLContext:
    if isinstance(verify, str | Path):
        try:
            path = Path(verify)
            if path.is_dir():
                return ssl.create_default_context(capath=path)
            return ssl.create_default_context(cafile=path)
        except OSError as error:
            raise InvalidArgument(f"the certificates {str(verify)!r} cannot be loaded: {error}") from error
    if verify is True and _all_plain_and_local(servers):
        # Nothing will be encrypted, so the authorities need not be loaded, which takes longer than a call. This context
        # would trust no server.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return verify


def _all_plain_and_local(servers: tuple[Server, ...]) -> bool:
    return all(server.local and server.root.startswith("http://") for server in servers)


# -- requests, and errors of httpx2

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


# -- bounds

_PIECE = 64 << 10
"""Max bytes that are written in one step."""
_ANY_HEADER = zlib.MAX_WBITS | 32  # gzip or zlib

_end: ContextVar[float] = ContextVar("end", default=inf)


@contextmanager
def ends_in(seconds: float) -> Iterator[None]:
    """Ends every step on the network inside within ``seconds`` from now."""
    token = _end.set(monotonic() + seconds)
    try:
        yield
    finally:
        _end.reset(token)


class Content:
    """Collects the bytes of an answer, up to a limit before and after decoding.

    Args:
        encoding: The answer's Content-Encoding.
        limit: Max bytes.
    """

    def __init__(self, encoding: str, limit: int) -> None:
        self._encoding = encoding.strip().lower()
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> None:
        """Appends bytes.

        Raises:
            InvalidAnswer: They are too many.
        """
        self._size += len(part)
        if self._size > self._limit:
            raise self._too_large()
        self._parts.append(part)

    def whole(self) -> bytes:
        """Returns the decoded whole.

        Raises:
            InvalidAnswer: It is too large, or its encoding is broken or another than was asked for.
        """
        data = b"".join(self._parts)
        if not data or self._encoding in {"", "identity"}:
            return data
        if self._encoding not in {"gzip", "x-gzip", "deflate"}:
            raise InvalidAnswer(f"the answer's encoding {self._encoding!r} was not asked for")
        decoder = zlib.decompressobj(_ANY_HEADER)
        try:
            data = decoder.decompress(data, self._limit + 1)
        except zlib.error as error:
            raise InvalidAnswer(f"the answer's encoding is broken: {error}") from error
        if len(data) > self._limit:
            raise self._too_large()
        if not decoder.eof:
            raise InvalidAnswer("the answer's encoding is broken: it ends too early")
        return data

    def _too_large(self) -> InvalidAnswer:
        return InvalidAnswer(
            f"the answer is larger than {self._limit:,} bytes. Ask for less (limit=) or allow more (max_answer=)"
        )


def time_left(timeout: float | None, error: type[httpx2.TimeoutException]) -> float:
    left = _end.get() - monotonic()
    if left <= 0:
        raise error("the time for the whole call is used up")
    return left if timeout is None else min(timeout, left)


class Wrapper:
    """A stream or a network of httpcore2 with some methods of our own."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - a stream or a network
        self._inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it has
        return getattr(self._inner, name)


def pieces(buffer: bytes) -> Iterator[bytes]:
    return (buffer[start : start + _PIECE] for start in range(0, len(buffer), _PIECE))
