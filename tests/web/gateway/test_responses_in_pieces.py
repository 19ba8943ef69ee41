"""Responses whose pieces are sent as they are made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from queuey.web.asgi import answer
from queuey.web.endpoint import Match, View
from queuey.web.gateway.asgi import Gateway
from queuey.web.requests import Request as Asked
from queuey.web.responses import PIECE_SIZE, TEXT, Body, Response
from tests.web.gateway_calls import Request, Stub, make_runner, until


class Piecewise(Stub):
    """An application whose response goes on when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: asyncio.Queue[Body | None] = asyncio.Queue()
        self.ended = False

    def views(self) -> dict[str, View]:
        return {"GET": View(self.begin)}

    async def begin(self, _request: Asked, _match: Match) -> Response:
        return Response(200, b"", TEXT, pieces=self.read_more())

    async def read_more(self) -> AsyncGenerator[Body, None]:
        try:
            while (piece := await self.pieces.get()) is not None:
                yield piece
        finally:
            self.ended = True


class SlowClient(Request):
    """A client that reads only when the test lets it."""

    def __init__(self) -> None:
        super().__init__("GET", "/v1/a/q")
        self.takes = asyncio.Event()
        self.takes.set()

    async def send(self, message: dict[str, Any]) -> None:
        await asyncio.wait_for(self.takes.wait(), 600)
        await super().send(message)


def test_pieces_come_as_they_are_made() -> None:
    """Each is sent at once, in order, long ones in parts; after the last one the response ends."""
    app = Piecewise()

    async def work(gateway: Gateway) -> None:
        client = SlowClient()
        task = asyncio.create_task(answer(gateway, client.scope, client.receive, client.send))
        for number in range(3):
            app.pieces.put_nowait(b"%d" % number)
            await until(lambda count=number + 1: len(client.response) == count)  # type: ignore[misc]
        assert (client.status, client.answered) == (200, False)
        assert "content-length" not in dict(client.answer_headers)
        app.pieces.put_nowait([b"x" * PIECE_SIZE, b"y"])
        app.pieces.put_nowait(None)
        await task
        assert (client.response, client.answered, app.ended) == (b"012" + b"x" * PIECE_SIZE + b"y", True, True)

    make_runner(app)(work)


def test_who_takes_nothing_is_given_up() -> None:
    """The response breaks off, and what made it ends; nothing is made that is not taken."""
    app = Piecewise()

    async def work(gateway: Gateway) -> None:
        client = SlowClient()
        task = asyncio.create_task(answer(gateway, client.scope, client.receive, client.send))
        app.pieces.put_nowait(b"a")
        await until(lambda: client.response == b"a")
        client.takes.clear()
        for _ in range(5):
            app.pieces.put_nowait(b"b")
        await task
        assert (client.answered, app.ended, app.pieces.qsize()) == (False, True, 4)

    make_runner(app, stall=0.2)(work)
