"""A transport on which a test can hold back answers, let calls fail, and see the requests."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from typing import Any

import httpx2

PATIENCE = 60.0
"""Timeout in seconds of the waits in tests."""

Answer = Callable[[httpx2.Request], httpx2.Response | None]


class ControlledTransport(httpx2.AsyncBaseTransport):
    """Passes requests on.

    Attributes:
        methods, paths: HTTP methods and paths of all requests, in order.
        answer: Answers a request in the service's place, unless it returns None; may raise.
        hold: Requests of this method get no answer.
        reads: The bodies of all reads, in order.
        fail: Answers a read in the service's place, unless it returns None.
        heal: Reads, and may change, the service's answer to a read.
        store: The store id that the service reports; empty for a service without one, None for its own.
    """

    def __init__(self) -> None:
        self.methods: list[str] = []
        self.paths: list[str] = []
        self.answer: Answer | None = None
        self.hold: str | None = None
        self.reads: list[dict[str, Any]] = []
        self.fail: Answer | None = None
        self.heal: Callable[[Any, Any], None] | None = None
        self.store: str | None = None
        self.inner = httpx2.AsyncHTTPTransport(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        self._open = asyncio.Event()
        self._open.set()
        self._news = asyncio.Event()
        self.held = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        content = await request.aread()
        self.methods.append(request.method)
        self.paths.append(request.url.path)
        if self.hold == request.method:
            await asyncio.Event().wait()
        if self.answer is not None and (answer := self.answer(request)) is not None:
            return answer
        if request.url.path == "/v1/" and self.store is not None:
            hello = {"version": "0", "store": "sqlite", "id": self.store}
            return httpx2.Response(200 if self.store else 404, json=hello)
        if not request.url.path.endswith("/_read"):
            return await self.inner.handle_async_request(request)
        query = json.loads(content)
        self.reads.append(query)
        self._news.set()
        if self.fail is not None and (answer := self.fail(request)) is not None:
            return answer
        response = await self.inner.handle_async_request(request)
        if self._open.is_set() and self.heal is None:
            return response
        content = await response.aread()
        await response.aclose()
        self.held += 1
        self._news.set()
        try:
            await self._open.wait()
        finally:
            self.held -= 1
        if self.heal is not None:
            notified = json.loads(content)
            self.heal(query, notified)
            content = json.dumps(notified).encode()
        return httpx2.Response(response.status_code, content=content, headers={"content-type": "application/json"})

    async def aclose(self) -> None:
        await self.inner.aclose()

    def hold_reads(self) -> None:
        """Holds the answers to reads back from now on, also to reads under way."""
        self._open.clear()

    def release_reads(self) -> None:
        self._open.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._news.clear()
                await self._news.wait()


def refuse_method(method: str, status: int = 503) -> Answer:
    def answer(request: httpx2.Request) -> httpx2.Response | None:
        if request.method != method:
            return None
        return httpx2.Response(status, json={"status": "error", "error_msg": {"StoreUnavailable": "away"}})

    return answer


def asked_waits(transport: ControlledTransport) -> list[float]:
    return [read.get("wait", 0) for read in transport.reads]


def polling(transport: ControlledTransport) -> bool:
    return bool(transport.reads) and asked_waits(transport)[-1] > 0
