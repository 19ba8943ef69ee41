"""Replacements for the httpcore2 pool of a sync or async client: this process answers the requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import quote

import httpcore2

from queuey.embedded.exchange import AnswerStart, BrokenOff, Part
from queuey.embedded.service import EmbeddedService, RunningRequest
from queuey.storage.deadlines import LoopCalls
from queuey.web.http.heads import HeadForm, RequestHead

_DROPPED_HEADERS = frozenset({b"accept-encoding", b"authorization", b"host", b"user-agent"})
"""Headers that are useless without a network, and ``authorization``, which is replaced."""


class InProcessPool(httpcore2.ConnectionInterface):
    """A pool whose requests are answered by a service in this process. Thread-safe.

    Args:
        service: The service. Closing the pool closes it.
        application: The caller. Requests have all rights of the application's owner.
    """

    def __init__(self, service: EmbeddedService, application: str) -> None:
        self.service = service
        self._caller = _make_caller_header(application)

    def handle_request(self, request: httpcore2.Request) -> httpcore2.Response:
        """Sends a request to the service and returns when the answer begins.

        Raises:
            InvalidArgument: The service is closed, or belongs to a parent process.
            ReadTimeout: The answer takes longer than the request's timeout.
            RemoteProtocolError: The answer ended before it was complete.
        """
        parts: SimpleQueue[Part] = SimpleQueue()
        answering = self.service.begin(_head_of(request, self._caller), _body_of(request), parts.put)
        answer = _BlockingBody(answering, parts, _timeout_of(request))
        start = answer.next_part()
        assert isinstance(start, AnswerStart)  # noqa: S101 - the first part of every answer
        content = answer if start.body is None else start.body
        return httpcore2.Response(start.status, headers=start.headers, content=content)

    def close(self) -> None:
        self.service.close()


class _BlockingBody:
    """Iterates over the pieces of an answer's body."""

    def __init__(self, answering: RunningRequest, parts: SimpleQueue[Part], timeout: float | None) -> None:
        self._answering = answering
        self._parts = parts
        self._timeout = timeout

    def next_part(self) -> Part:
        """Returns the start of the answer, then the pieces of its body, then None. A timeout ends the request.

        Raises:
            ReadTimeout: No part came within the timeout.
            RemoteProtocolError: The answer ended before it was complete.
        """
        try:
            piece = self._parts.get(timeout=self._timeout)
        except BaseException as error:
            self._answering.leave()
            if isinstance(error, Empty):
                raise httpcore2.ReadTimeout("the service did not answer in time") from None
            raise
        if isinstance(piece, BrokenOff):
            raise httpcore2.RemoteProtocolError("the answer broke off")
        return piece

    def __iter__(self) -> Iterator[bytes]:
        while isinstance(piece := self.next_part(), bytes):
            self._answering.record_read(len(piece))
            yield piece

    def close(self) -> None:
        self._answering.leave()


class AsyncInProcessPool(httpcore2.AsyncConnectionInterface):
    """:class:`InProcessPool` for async code. The event loop may change between requests."""

    def __init__(self, service: EmbeddedService, application: str) -> None:
        self.service = service
        self._caller = _make_caller_header(application)
        self._calls: LoopCalls | None = None

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response:
        loop = asyncio.get_running_loop()
        calls = self._calls
        if calls is None or calls.loop is not loop:
            calls = self._calls = LoopCalls(loop)
        parts: asyncio.Queue[Part] = asyncio.Queue()

        def put(piece: Part) -> None:
            calls(parts.put_nowait, piece)

        answering = self.service.begin(_head_of(request, self._caller), _body_of(request), put)
        answer = _AsyncBody(answering, parts, _timeout_of(request))
        start = await answer.next_part()
        assert isinstance(start, AnswerStart)  # noqa: S101 - as above
        content = answer if start.body is None else start.body
        return httpcore2.Response(start.status, headers=start.headers, content=content)

    async def aclose(self) -> None:
        await asyncio.to_thread(self.service.close)


class _AsyncBody:
    """Async variant of :class:`_BlockingBody`."""

    def __init__(self, answering: RunningRequest, parts: asyncio.Queue[Part], timeout: float | None) -> None:
        self._answering = answering
        self._parts = parts
        self._timeout = timeout

    async def next_part(self) -> Part:
        try:
            async with asyncio.timeout(self._timeout):
                piece = await self._parts.get()
        except BaseException as error:
            self._answering.leave()
            if isinstance(error, TimeoutError):
                raise httpcore2.ReadTimeout("the service did not answer in time") from None
            raise
        if isinstance(piece, BrokenOff):
            raise httpcore2.RemoteProtocolError("the answer broke off")
        return piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(piece := await self.next_part(), bytes):
            self._answering.record_read(len(piece))
            yield piece

    async def aclose(self) -> None:
        self._answering.leave()


def _make_caller_header(application: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Process {quote(application)}".encode()


def _head_of(request: httpcore2.Request, caller: tuple[bytes, bytes]) -> RequestHead:
    path, _, query = request.url.target.partition(b"?")
    fields = [(name, value) for name, value in request.headers if name not in _DROPPED_HEADERS]
    fields.append(caller)
    return RequestHead(request.method.decode(), path, query, HeadForm(fields))


def _body_of(request: httpcore2.Request) -> bytes:
    stream: Any = request.stream
    return b"".join(stream) if isinstance(stream, Iterable) else b""


def _timeout_of(request: httpcore2.Request) -> float | None:
    seconds: float | None = request.extensions.get("timeout", {}).get("read")
    return seconds
