"""A service whose answers a test gives one by one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2

STORE = "0c5b5c3aa3d54f9d8a8c4d5f2b1e6f70"
MEMBER = f"1-{'0' * 32}"
SESSION = 10.0
WAIT = 5.0
PATIENCE = 20.0
"""Timeout in seconds for the arrival of a request."""


class PendingRequest:
    """A request that waits for its answer."""

    def __init__(self, request: httpx2.Request, body: Any) -> None:  # noqa: ANN401 - any JSON value
        self.body = body
        self.returns = request.url.params.get("return")
        self._answered: asyncio.Future[httpx2.Response] = asyncio.get_running_loop().create_future()

    def answer(self, status: int = 200, **fields: object) -> None:
        self._answered.set_result(response(status, {"status": "ok" if status < 400 else status, **fields}))

    def beat(self, **fields: object) -> None:
        """Answers a heartbeat: by default with nothing to do, and a session of full length."""
        self.answer(200, **{"epoch": 1, "session": SESSION, "wait": WAIT, **fields})

    def refuse(self, status: int, code: str, **fields: object) -> None:
        self.answer(status, code=code, errors={code: f"{code} was scripted"}, **fields)

    def drop(self) -> None:
        self._answered.set_exception(httpx2.ReadError("the answer is lost"))

    async def await_answer(self) -> httpx2.Response:
        return await self._answered


def response(status: int, content: dict[str, object]) -> httpx2.Response:
    form = "application/json" if status < 400 else "application/problem+json"
    return httpx2.Response(status, content=json.dumps(content).encode(), headers={"content-type": form})


class ScriptedService(httpx2.AsyncBaseTransport):
    """The transport of a client.

    Attributes:
        joined: Status and body of the answer to a join.
        store: The store id that the service reports.
        group: Status and body of the answer to each read of a group, or of the list of groups.
        group_reads: The number of these reads.
    """

    def __init__(self) -> None:
        self.joined: tuple[int, dict[str, object]] = (
            200,
            {"status": "ok", "member": MEMBER, "number": 1, "session": SESSION, "wait": WAIT},
        )
        self.store = STORE
        self.group: tuple[int, dict[str, object]] = (200, {})
        self.group_reads = 0
        self._asked: dict[str, asyncio.Queue[PendingRequest]] = {
            each: asyncio.Queue() for each in ("POST", "PUT", "DELETE")
        }

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answers a hello, a join and each read at once; leaves everything else to the test."""
        body = json.loads(await request.aread() or b"null")
        if request.url.path == "/v1/":
            return httpx2.Response(200, json={"version": "0", "store": "sqlite", "id": self.store})
        if request.method == "GET":
            self.group_reads += 1
            return response(*self.group)
        if request.url.path.endswith("/members"):
            return response(*self.joined)
        pending = PendingRequest(request, body)
        await self._asked[request.method].put(pending)
        return await pending.await_answer()

    async def _next(self, method: str) -> PendingRequest:
        async with asyncio.timeout(PATIENCE):
            return await self._asked[method].get()

    async def heartbeat(self) -> PendingRequest:
        return await self._next("POST")

    async def commit(self) -> PendingRequest:
        return await self._next("PUT")

    async def wait_for_leave(self) -> PendingRequest:
        return await self._next("DELETE")
