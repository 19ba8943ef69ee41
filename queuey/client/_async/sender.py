"""Sends requests with httpx2 and reads their answers, within bounds."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx2

from queuey.client._async.authorization import AsyncAuthorizationHeader
from queuey.client.calls.call import Call, HttpAnswer, Times
from queuey.client.errors import ClientError, NotAuthenticated
from queuey.client.http.attempts import Attempts
from queuey.client.http.bounds import Content, ends_in
from queuey.client.http.connections import AsyncConnections
from queuey.client.http.requests import request_of, translated
from queuey.client.http.servers import Server

T = TypeVar("T")

OK = 200
SILENCE = 60.0
"""Timeout in seconds of a stream without a byte; the service writes at least every 25."""


class AsyncSender:
    """Sends calls and waits for their answers. For async code, in one event loop.

    Args:
        servers: All servers that it will be asked to send to.
        verify: False: do not check certificates; a path: check by these authorities; or an SSL context.
        max_answer: Max bytes of an answer, before and after decoding.
        transport: Stands in for the network, in tests.
    """

    def __init__(
        self,
        servers: Iterable[Server],
        verify: bool | str | Path | ssl.SSLContext,  # noqa: FBT001 - the usual name
        max_answer: int,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._max_answer = max_answer
        self._connections = AsyncConnections(servers, verify, transport)

    async def send_until_answered(
        self,
        call: Call[T],
        attempts: Attempts[T],
        authorization: AsyncAuthorizationHeader,
        sleep: Callable[[float], Awaitable[None]],
    ) -> T:
        """Sends a call until it is answered or may not be sent again, and returns the answer's value.

        Raises:
            ClientError: As :meth:`send`, and that of the last answer.
        """
        renewed = False
        while True:
            with attempts.in_doubt():
                header = await authorization.header()
            try:
                answer = await self.send(call, attempts.server, attempts.url, attempts.times, header)
                return attempts.read(answer)
            except NotAuthenticated:
                # This attempt was not carried out, whatever the call is.
                with attempts.in_doubt():
                    if renewed or not await authorization.renew(header):
                        raise
                renewed = True
                continue
            except ClientError as error:
                pause = attempts.pause_after(error)
                if pause is None:
                    raise
            if pause:
                await sleep(pause)

    async def send(
        self, call: Call[Any], server: Server, url: str, times: Times, authorization: str | None
    ) -> HttpAnswer:
        """Sends a call once.

        Raises:
            TransportError: No whole answer came.
            InvalidAnswer: The answer is too large, or its encoding is broken.
        """
        client = self._connections.client
        with translated(server, closed=client.is_closed), ends_in(times.whole):
            async with client.stream(call.method, url, **request_of(call, times, authorization)) as response:
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
        """Sends a call whose answer has no end; yields its bytes as they come.

        Raises:
            ClientError: It was refused, or there was no answer, or it broke off.
        """
        client = self._connections.client
        request = request_of(call, Times(SILENCE, inf), authorization)
        with translated(attempts.server, closed=client.is_closed):
            async with client.stream(call.method, attempts.url, **request) as response:
                if response.status_code != OK:
                    attempts.read(await self._whole(response))
                yield aiter(cast("httpx2.AsyncByteStream", response.stream))

    async def close(self) -> None:
        """Closes the connections."""
        await self._connections.client.aclose()
