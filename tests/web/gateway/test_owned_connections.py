"""Responses that go on for as long as their owners like."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuey.web.endpoint import Match, View
from queuey.web.gateway.asgi import Gateway
from queuey.web.requests import Request as Asked
from queuey.web.responses import MOST_PENDING, TEXT, Connection, Response
from tests.web.gateway_calls import Request, Stub, running, until


class Owning(Stub):
    """An application whose responses go on."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[Connection] = []

    def views(self) -> dict[str, View]:
        """Has one resource."""
        return {"GET": View(self.own), "HEAD": View(self.own)}

    async def own(self, _request: Asked, _match: Match) -> Response:
        """Goes on."""
        return Response(200, b"", TEXT, owner=self.open.append)


class Listening(Request):
    """A client that takes what comes, while it likes to."""

    def __init__(self) -> None:
        super().__init__("GET", "/v1/a/q")
        self.takes = asyncio.Event()
        self.takes.set()
        self.leaves = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        """Says when it leaves."""
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Takes a part."""
        await self.takes.wait()
        await super().send(message)


async def begun(gateway: Gateway, app: Owning, client: Listening) -> tuple[asyncio.Task[None], Connection]:
    """Begins a request; returns it, and its connection."""
    before = len(app.open)
    task = asyncio.create_task(gateway(client.scope, client.receive, client.send))
    await until(lambda: len(app.open) > before)
    return task, app.open[-1]


def test_an_owner_goes_on() -> None:
    """What is sent now and then comes at once and in order, until the owner ends; HEAD has no owner."""
    app = Owning()

    async def work(gateway: Gateway) -> None:
        client = Listening()
        task, connection = await begun(gateway, app, client)
        for number in range(3):
            assert connection.send(b"%d" % number)
            await until(lambda count=number + 1: len(client.response) == count)  # type: ignore[misc]
        assert (client.status, client.answered, gateway._memory.free) == (200, False, gateway._memory.total)
        assert connection.send(b"3")
        connection.end()
        await task
        assert (client.response, client.answered, connection.send(b"x")) == (b"0123", True, False)
        assert (await Request("HEAD", "/v1/a/q").to(gateway)).status == 200
        assert len(app.open) == 1

    running(app)(work)


@pytest.mark.parametrize("how", ["leaves", "stops"])
def test_its_end(how: str) -> None:
    """When the client leaves, or the service ends, the owner is told, and nothing stays behind."""
    app = Owning()

    async def work(gateway: Gateway) -> None:
        client = Listening()
        task, connection = await begun(gateway, app, client)
        if how == "leaves":
            client.leaves.set()
        else:
            app.stopping.set()
        await connection.ended
        await task
        assert (connection.send(b"x"), gateway._sender.open) == (False, {})

    running(app)(work)


@pytest.mark.parametrize("much", [False, True])
def test_who_takes_nothing_is_given_up(much: bool) -> None:  # noqa: FBT001 - a parameter
    """A client that takes nothing is given up after a while, or when much waits for it; what waited is freed."""
    app = Owning()

    async def work(gateway: Gateway) -> None:
        slow, other = Listening(), Listening()
        task, connection = await begun(gateway, app, slow)
        other_task, others = await begun(gateway, app, other)
        slow.takes.clear()
        sent = 0
        while connection.send(b"x" * 10_000):
            sent += 10_000
            if not much:
                break
            await asyncio.sleep(0)
        assert sent <= MOST_PENDING + 20_000
        assert others.send(b"y")
        await task
        await until(lambda: other.response == b"y")
        assert (connection.ended.done(), others.ended.done(), slow.answered) == (True, False, False)
        assert gateway._memory.free == gateway._memory.total
        others.end()
        await other_task

    running(app, stall=0.2)(work)
