"""A service whose answers a test gives, one by one, and a clock that only the test moves."""

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
"""Timeout in seconds for a request that must come."""


class Asked:
    """A request that waits for its answer."""

    def __init__(self, request: httpx2.Request, body: Any) -> None:  # noqa: ANN401 - any JSON value
        self.body = body
        self.returns = request.url.params.get("return")
        self._answered: asyncio.Future[httpx2.Response] = asyncio.get_running_loop().create_future()

    def answer(self, status: int = 200, **fields: object) -> None:
        """Gives an answer."""
        form = "application/json" if status < 400 else "application/problem+json"
        content = json.dumps({"status": "ok" if status < 400 else status, **fields}).encode()
        self._answered.set_result(httpx2.Response(status, content=content, headers={"content-type": form}))

    def beat(self, **fields: object) -> None:
        """Answers a heartbeat: by default there is nothing to do, and the session lasts its full length."""
        self.answer(200, **{"epoch": 1, "session": SESSION, "wait": WAIT, **fields})

    def refuse(self, status: int, code: str, **fields: object) -> None:
        """Gives an error for an answer."""
        self.answer(status, code=code, errors={code: f"{code} was scripted"}, **fields)

    def drop(self) -> None:
        """Loses the answer."""
        self._answered.set_exception(httpx2.ReadError("the answer is lost"))

    async def answered(self) -> httpx2.Response:
        """Waits for the answer."""
        return await self._answered


def response(status: int, content: dict[str, object]) -> httpx2.Response:
    """An answer of the service."""
    form = "application/json" if status < 400 else "application/problem+json"
    return httpx2.Response(status, content=json.dumps(content).encode(), headers={"content-type": form})


class ScriptedService(httpx2.AsyncBaseTransport):
    """The transport of a client.

    Attributes:
        joined: Status and body of the answer to a join.
        store: The id that the service says.
        group: Status and body of the answer to each read of a group, or of the list of groups.
        group_reads: How many there were.
    """

    def __init__(self) -> None:
        self.joined: tuple[int, dict[str, object]] = (
            200,
            {"status": "ok", "member": MEMBER, "number": 1, "session": SESSION, "wait": WAIT},
        )
        self.store = STORE
        self.group: tuple[int, dict[str, object]] = (200, {})
        self.group_reads = 0
        self._asked: dict[str, asyncio.Queue[Asked]] = {each: asyncio.Queue() for each in ("POST", "PUT", "DELETE")}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Has a join and a hello answered at once, everything else by the test."""
        body = json.loads(await request.aread() or b"null")
        if request.url.path == "/v1/":
            return httpx2.Response(200, json={"version": "0", "store": "sqlite", "id": self.store})
        if request.method == "GET":
            self.group_reads += 1
            return response(*self.group)
        if request.url.path.endswith("/members"):
            return response(*self.joined)
        asked = Asked(request, body)
        await self._asked[request.method].put(asked)
        return await asked.answered()

    async def _next(self, method: str) -> Asked:
        async with asyncio.timeout(PATIENCE):
            return await self._asked[method].get()

    async def heartbeat(self) -> Asked:
        """Waits for the next heartbeat."""
        return await self._next("POST")

    async def commit(self) -> Asked:
        """Waits for the next commit."""
        return await self._next("PUT")

    async def leave(self) -> Asked:
        """Waits for a member to leave."""
        return await self._next("DELETE")


class HandClock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        """Returns them."""
        return self.seconds
