"""Sends requests with httpx2, within bounds. None of its errors gets past here."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from math import inf
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import httpx2

import queuey
from queuey.client.calls.call import Call, HttpAnswer, Times
from queuey.client.credentials.authorization import AuthorizationHeader
from queuey.client.errors import (
    AnswerTimeout,
    ClientError,
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    InvalidAnswer,
    InvalidArgument,
    NotAuthenticated,
    Timeout,
    TransportError,
)
from queuey.client.forks import begin_in_children
from queuey.client.http.attempts import Attempts
from queuey.client.http.bounds import Content, bound, ends_in
from queuey.client.http.servers import Server

T = TypeVar("T")

C = TypeVar("C", httpx2.Client, httpx2.AsyncClient)

CONNECTIONS = 500
"""That a client has at most; a process often may have no more than 1,024 files."""
_left: list[httpx2.Client] = []
"""Clients of a parent. To drop them would close their connections."""
_PROXIES = frozenset({"all_proxy", "http_proxy", "https_proxy"})
OK = 200
SILENCE = 60.0
"""Seconds without a byte after which a stream counts as broken; the service writes at least every 25."""
CONNECT_SECONDS = 5.0
"""The longest that a connection may take, so that another server is asked soon."""

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


class Sender:
    """Sends calls and waits for their answers; safe to use from several threads.

    Args:
        servers: All servers that it will be asked to send to.
        verify: False: do not check certificates; a path: check by these authorities; or an SSL context.
        max_answer: Bytes of the largest answer to take, before and after decoding.
        transport: Stands in for the network, in tests.
    """

    def __init__(
        self,
        servers: Iterable[Server],
        verify: bool | str | Path | ssl.SSLContext,  # noqa: FBT001 - the usual name
        max_answer: int,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._max_answer = max_answer
        options = _options(servers, verify)
        self._make = partial(_made, httpx2.Client, transport=transport, **options)
        self._begin()
        begin_in_children(self)

    def _begin(self) -> None:
        self._client = self._make()
        bound(self._client)
        self._inherited: httpx2.Client | None = None
        self._lock = Lock()

    def begin_in_child(self) -> None:
        """Leaves the connections to the parent: they stay open, and are not used."""
        self._inherited = self._client
        self._lock = Lock()

    def _leave_inherited(self) -> None:
        """Makes connections of its own, in a child."""
        if self._inherited is not None:
            with self._lock:
                if self._inherited is not None:
                    _left.append(self._inherited)
                    self._begin()

    def send(self, call: Call[Any], server: Server, url: str, times: Times, authorization: str | None) -> HttpAnswer:
        """Sends a call.

        Args:
            call: What to send.
            server: The server, for errors.
            url: Where to.
            times: How long that may take.
            authorization: The header of that name; None: none.

        Raises:
            TransportError: No whole answer came.
            InvalidAnswer: One came that is too large, or its encoding is broken.
        """
        self._leave_inherited()
        with (
            _translated(server, closed=self._client.is_closed),
            ends_in(times.whole),
            self._client.stream(call.method, url, **_request(call, times, authorization)) as response,
        ):
            return self._whole(response)

    def _whole(self, response: httpx2.Response) -> HttpAnswer:
        content = Content(response.headers.get("content-encoding", ""), self._max_answer)
        for part in cast("httpx2.SyncByteStream", response.stream):
            content.add(part)
        return HttpAnswer(response.status_code, dict(response.headers), content.whole())

    @contextmanager
    def open(self, call: Call[None], attempts: Attempts[None], authorization: str | None) -> Iterator[Iterator[bytes]]:
        """Sends a call whose answer has no end; gives its bytes as they come.

        Raises:
            ClientError: It was refused, or there was no answer, or it broke off.
        """
        self._leave_inherited()
        request = _request(call, Times(SILENCE, inf), authorization)
        with (
            _translated(attempts.server, closed=self._client.is_closed),
            self._client.stream(call.method, attempts.url, **request) as response,
        ):
            if response.status_code != OK:
                attempts.read(self._whole(response))
            yield iter(cast("httpx2.SyncByteStream", response.stream))

    def send_until_answered(
        self, call: Call[T], attempts: Attempts[T], authorization: AuthorizationHeader, sleep: Callable[[float], None]
    ) -> T:
        """Sends a call until it is answered or may not be sent again, and returns what the answer says.

        Raises:
            ClientError: As :meth:`send`, and whatever the last answer says.
        """
        renewed = False
        while True:
            with attempts.noting():
                header = authorization.header()
            try:
                return attempts.read(self.send(call, attempts.server, attempts.url, attempts.times, header))
            except NotAuthenticated:
                # This attempt was not carried out, whatever the call is.
                with attempts.noting():
                    if renewed or not authorization.renew(header):
                        raise
                renewed = True
                continue
            except ClientError as error:
                pause = attempts.pause_after(error)
                if pause is None:
                    raise
            if pause:
                sleep(pause)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()


class AsyncSender:
    """:class:`Sender` for async code; arguments and errors are the same."""

    def __init__(
        self,
        servers: Iterable[Server],
        verify: bool | str | Path | ssl.SSLContext,  # noqa: FBT001 - the usual name
        max_answer: int,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._max_answer = max_answer
        self._client = _made(httpx2.AsyncClient, transport=transport, **_options(servers, verify))
        bound(self._client)

    async def send(
        self, call: Call[Any], server: Server, url: str, times: Times, authorization: str | None
    ) -> HttpAnswer:
        """Sends a call; see :meth:`Sender.send`."""
        with _translated(server, closed=self._client.is_closed), ends_in(times.whole):
            async with self._client.stream(call.method, url, **_request(call, times, authorization)) as response:
                return await self._whole(response)

    async def _whole(self, response: httpx2.Response) -> HttpAnswer:
        content = Content(response.headers.get("content-encoding", ""), self._max_answer)
        async for part in cast("httpx2.AsyncByteStream", response.stream):
            content.add(part)
        return HttpAnswer(response.status_code, dict(response.headers), content.whole())

    @asynccontextmanager
    async def open(
        self, call: Call[None], attempts: Attempts[None], authorization: str | None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Sends a call whose answer has no end; see :meth:`Sender.open`."""
        request = _request(call, Times(SILENCE, inf), authorization)
        with _translated(attempts.server, closed=self._client.is_closed):
            async with self._client.stream(call.method, attempts.url, **request) as response:
                if response.status_code != OK:
                    attempts.read(await self._whole(response))
                yield aiter(cast("httpx2.AsyncByteStream", response.stream))

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()


def _options(
    servers: Iterable[Server],
    verify: bool | str | Path | ssl.SSLContext,  # noqa: FBT001 - passed on
) -> dict[str, Any]:
    """Returns what both kinds of httpx2 client are made with."""
    servers = tuple(servers)
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


def _made(kind: type[C], **options: Any) -> C:  # noqa: ANN401 - of either kind
    """Makes a client of httpx2, which reads the environment's proxies.

    Raises:
        InvalidArgument: It cannot use them.
    """
    try:
        return kind(**options)
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        proxies = sorted(name for name in os.environ if name.lower() in _PROXIES and os.environ[name])
        if not proxies:
            raise
        text = f"the proxy of the environment cannot be used ({', '.join(proxies)}): {error}"
        raise InvalidArgument(f"{text}. Name a proxy whose address begins with http://, or unset it") from error


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


def _all_plain_and_local(servers: Iterable[Server]) -> bool:
    return all(server.local and server.root.startswith("http://") for server in servers)


def _request(call: Call[Any], times: Times, authorization: str | None) -> dict[str, Any]:
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
def _translated(server: Server, *, closed: bool) -> Iterator[None]:
    if closed:
        raise InvalidArgument("the client is closed")
    try:
        yield
    except httpx2.DecodingError as error:
        raise InvalidAnswer(f"the answer's encoding is broken: {error}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
        kind = next((ours for theirs, ours in _FAILURES if isinstance(error, theirs)), ConnectionLost)
        detail = "" if issubclass(kind, Timeout) or not str(error) else f" ({error})"
        hint = ". Start the service: queuey serve" if server.local and kind is ConnectionFailed else ""
        if "SSL" in detail:
            hint = "" if "CERTIFICATE" in detail else ". A server without TLS has an address that begins with http://"
        raise kind(_TEXTS[kind] + detail + hint, server.root) from error
