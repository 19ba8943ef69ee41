"""A way to the service on which a test can have writes fail."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import httpx2

Answer = Callable[[httpx2.Request], httpx2.Response | None]


class Door(httpx2.AsyncBaseTransport):
    """Passes requests on.

    Attributes:
        answer: Answers in the service's place, unless it gives None; may raise.
        shut: Requests of this method wait until it is opened.
        methods: What was asked, in order.
    """

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.shut: str | None = None
        self._opened = asyncio.Event()
        self.methods: list[str] = []
        self._inner = httpx2.AsyncHTTPTransport(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Passes it on."""
        await request.aread()
        self.methods.append(request.method)
        if self.shut == request.method:
            await self._opened.wait()
        if self.answer is not None and (answer := self.answer(request)) is not None:
            return answer
        return await self._inner.handle_async_request(request)

    def open(self) -> None:
        """Lets everything through."""
        self.shut = None
        self._opened.set()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._inner.aclose()


def refused(method: str, status: int = 503) -> Answer:
    """Gives what refuses all requests of a method."""

    def answer(request: httpx2.Request) -> httpx2.Response | None:
        if request.method != method:
            return None
        return httpx2.Response(status, json={"status": "error", "error_msg": {"StoreUnavailable": "away"}})

    return answer
