"""Sends calls with httpcore2: retries within the policy's limits, and authenticates with a valid token."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from copy import copy
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpcore2
from msgspec.structs import replace

from queuey.client.calls.call import MAX_ANSWER, Call, HttpAnswer, Timeouts
from queuey.client.credentials.lookup import Credential
from queuey.client.credentials.tokens import AsyncLock, KeptToken, TokenSource
from queuey.client.errors import ClientError, NotAuthenticated, TokenError
from queuey.client.http.attempts import AsyncTiming, Attempts, RetryPolicy, ServerChoice
from queuey.client.http.connections import (
    Connections,
    Content,
    Wrapper,
    headers_of,
    is_pool,
    limit_total_time,
    make_httpx_request,
    make_request,
    pieces,
    time_left,
    translate_errors,
)
from queuey.client.http.servers import Server

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

OK = 200
STREAM_TIMEOUT = 60.0
"""Timeout of a stream without a byte, in seconds. The service writes at least every 25 s."""


class AsyncSender:
    """Sends calls and waits for their answers. For async code, in one event loop.

    Args:
        servers: The servers to choose from.
        credential: The credential for all servers.
        policy: The retry policy.
        timing: The clock, the sleep function and the random numbers.
        timeout: Seconds to wait for the server at every step.
        verify: False does not check certificates; a path names the authorities to check against; or an SSL context.
        max_answer: Max bytes of an answer, before and after decoding.
        transport: An httpx2 transport, or an httpcore2 pool, to use instead of the network.
    """

    def __init__(
        self,
        servers: tuple[Server, ...],
        credential: Credential,
        policy: RetryPolicy,
        timing: AsyncTiming,
        timeout: float,
        *,
        verify: bool | str | Path | ssl.SSLContext = True,
        max_answer: int = MAX_ANSWER,
        transport: httpx2.AsyncBaseTransport | httpcore2.AsyncConnectionPool | None = None,
    ) -> None:
        self.policy = policy
        self.timing = timing
        self.servers = servers
        self.verify = verify if transport is None else None
        """How certificates are checked. None with a custom transport."""
        self.authorization = AsyncAuthorizationHeader(credential)
        self._timeout = timeout
        self._choice = ServerChoice(servers, cool_down=policy.cool_down, clock=timing.clock, draw=timing.draw)
        self._max_answer = max_answer
        pool = transport if transport is None or is_pool(transport) else AsyncTransportPool(transport)
        self._connections = Connections(servers, verify, _make_pool, pool)

    async def run(self, call: Call[T], within: float | None = None) -> T:
        """Sends a call until it is answered or may not be repeated, and returns the answer's value.

        After a 401, sends any call once more if the token source gives another token.

        Args:
            call: The call.
            within: Max seconds, in place of the policy's deadline.

        Raises:
            ClientError: The error of the last attempt.
        """
        with call.span or nullcontext():
            attempts, renewed = self.make_attempts(call, within), False
            while True:
                try:
                    header = await self.authorization.header()
                    try:
                        return attempts.read(await self._send_once(attempts, header))
                    except NotAuthenticated:
                        # The server did not carry out this attempt, so any call may be repeated.
                        if renewed or not await self.authorization.renew(header):
                            raise
                        renewed = True
                        continue
                except ClientError as error:
                    pause = attempts.pause_after(error)
                    if pause is None:
                        raise
                if pause:
                    await self.timing.sleep(pause)

    def make_attempts(self, call: Call[T], within: float | None = None) -> Attempts[T]:
        """Returns the attempts at a call.

        They end after ``within`` seconds, or else at the policy's deadline, not counting the call's ``wait``.
        """
        return Attempts(call, self._choice, self.policy, self.timing, self._timeout, within)

    def with_policy(self, policy: RetryPolicy) -> AsyncSender:
        """Returns a sender with the same connections and another policy."""
        other = copy(self)
        other.policy = policy
        other.__dict__.pop("once", None)
        return other

    @cached_property
    def once(self) -> AsyncSender:
        """A sender with the same connections that does not pause to try again, for loops that do."""
        return self.with_policy(replace(self.policy, deadline=0.0))

    async def _send_once(self, attempts: Attempts[Any], authorization: str | None) -> HttpAnswer:
        """Sends a call once.

        Raises:
            TransportError: No complete answer came.
            InvalidAnswer: The answer is too large, or cannot be decoded.
        """
        call, times = attempts.call, attempts.times
        with translate_errors(attempts.server, closed=self._connections.is_closed), limit_total_time(times.total):
            endpoint = self._connections.endpoint_of(attempts.server)
            response = await endpoint.pool.handle_async_request(make_request(endpoint, call, times, authorization))
            try:
                return await self._read_whole(response)
            finally:
                await response.aclose()

    async def _read_whole(self, response: httpcore2.Response) -> HttpAnswer:
        headers = headers_of(response)
        content = Content(headers.get("content-encoding", ""), self._max_answer)
        async for chunk in response.aiter_stream():
            content.add(chunk)
        return HttpAnswer(response.status, headers, content.whole())

    @asynccontextmanager
    async def open(self, attempts: Attempts[None], authorization: str | None) -> AsyncIterator[AsyncIterator[bytes]]:
        """Sends a call with an endless answer once, without a retry, and yields its bytes as they arrive.

        Raises:
            ClientError: The call was refused or not answered, or the connection broke.
        """
        times = Timeouts(STREAM_TIMEOUT, inf)
        with translate_errors(attempts.server, closed=self._connections.is_closed):
            endpoint = self._connections.endpoint_of(attempts.server)
            request = make_request(endpoint, attempts.call, times, authorization)
            response = await endpoint.pool.handle_async_request(request)
            try:
                if response.status != OK:
                    attempts.read(await self._read_whole(response))
                yield response.aiter_stream()
            finally:
                await response.aclose()

    async def close(self) -> None:
        for pool in self._connections.close():
            await pool.aclose()


class AsyncAuthorizationHeader:
    """Makes the ``Authorization`` header and keeps its token valid.

    Args:
        credential: The client's credential.
        clock: Seconds since 1970.

    Attributes:
        scheme: See :attr:`AsyncClient.scheme <queuey.client.AsyncClient.scheme>`.
    """

    def __init__(self, credential: Credential, clock: Callable[[], float] = time.time) -> None:
        self.scheme = credential.visible_scheme
        self._fixed = credential.header
        self._source: TokenSource | None = credential.source
        self._kept = KeptToken(credential.scheme, clock)
        self._lock = AsyncLock()

    async def header(self) -> str | None:
        """Returns the header, or None if the client has no credential.

        First fetches a token if none is kept, the kept one expires soon, or the source has a new one.

        Raises:
            TokenError: The source gave no token.
        """
        if self._source is None:
            return self._fixed
        seen = self._kept.answer_count
        if self._kept.is_due() or self._source.has_changed():
            await self._ask(self._source, seen)
        return self._kept.result()

    async def renew(self, refused: str | None) -> bool:
        """Fetches a new token after a 401, unless it was already replaced. Returns whether the header has changed.

        Returns False without a token source.

        Args:
            refused: The header that the server refused.

        Raises:
            TokenError: The source gave no token.
        """
        if self._source is None or refused is None:
            return False
        seen = self._kept.answer_count
        if self._kept.header == refused:
            await self._ask(self._source, seen, refused)
        return self._kept.result() != refused

    async def _ask(self, source: TokenSource, seen: int, refused: str | None = None) -> None:
        """Fetches a token, unless another caller has fetched one since ``seen`` answers of the source.

        Keeps the token, or records a TokenError instead of raising it.
        """
        async with self._lock:
            if self._kept.answer_count != seen:
                return
            try:
                self._kept.keep(await source.ask_async())
            except TokenError as error:
                self._kept.record_failure(error, refused=self._kept.header == refused)


class AsyncTimedStream(Wrapper):
    """An httpcore2 stream in which each step may take the time that is left of the whole call, and no longer."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore2's
        data: bytes = await self._inner.read(max_bytes, timeout=time_left(timeout, httpcore2.ReadTimeout))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore2's
        for piece in pieces(buffer):
            await self._inner.write(piece, timeout=time_left(timeout, httpcore2.WriteTimeout))

    async def start_tls(self, *args: Any, timeout: float | None = None, **options: Any) -> AsyncTimedStream:  # noqa: ANN401, ASYNC109 - passed on
        remaining = time_left(timeout, httpcore2.ConnectTimeout)
        return AsyncTimedStream(await self._inner.start_tls(*args, timeout=remaining, **options))


class AsyncNetwork(Wrapper):
    """An httpcore2 network backend that connects within the time left of a call, as :class:`AsyncTimedStream`."""

    async def connect_tcp(self, *args: Any, timeout: float | None = None, **options: Any) -> AsyncTimedStream:  # noqa: ANN401, ASYNC109 - passed on
        remaining = time_left(timeout, httpcore2.ConnectTimeout)
        return AsyncTimedStream(await self._inner.connect_tcp(*args, timeout=remaining, **options))


def _make_pool(**options: Any) -> httpcore2.AsyncConnectionPool:  # noqa: ANN401 - passed on
    return httpcore2.AsyncConnectionPool(network_backend=AsyncNetwork(httpcore2.AnyIOBackend()), **options)  # type: ignore[arg-type] # it has all methods


class AsyncTransportPool:
    """An httpx2 transport with the interface of an httpcore2 pool."""

    def __init__(self, transport: Any) -> None:  # noqa: ANN401 - of httpx2
        self._transport = transport

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response:
        answer = await self._transport.handle_async_request(make_httpx_request(request))
        return httpcore2.Response(answer.status_code, headers=answer.headers.raw, content=answer.stream)

    async def aclose(self) -> None:
        await self._transport.aclose()
