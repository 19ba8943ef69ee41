"""``queuey.web.asgi:app``: the service for any ASGI server that has lifespans, in one process.

The settings come from the environment, as for ``queuey serve``, which has several processes and bounds connections and
the heads of requests; here the server has to do that. The store is opened at the start of the server and closed at its
end, when its requests are answered. Long polls end when the server says so, not before.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote

from queuey.settings import load
from queuey.web.gateway.asgi import Gateway
from queuey.web.gateway.assembly import make_gateway
from queuey.web.gateway.serve import LEAVE_SECONDS, Include, Opened, open_service

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

CLOSE_TIMEOUT = 10.0
"""Timeout for the store to finish accepted writes, in seconds."""


class Application:
    """The service, from the server's start to its end.

    Args:
        includes: Add resources, or views of Pyramid's; see ``docs/extending.md``.
    """

    def __init__(self, includes: Sequence[Include] = ()) -> None:
        self._includes = includes
        self._opened: Opened
        self._gateway: Gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the server, once for its lifespan and with each request."""
        if scope["type"] == "http":
            # Of its own, as the gateway empties it.
            await self._gateway({"raw_path": quote(scope["path"]).encode(), **scope}, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            raise ValueError(f"The service does not speak {scope['type']}.")

    async def _live(self, receive: Receive, send: Send) -> None:
        """Starts and ends the service, as the server says."""
        while True:
            message = await receive()
            try:
                await (self._start() if message["type"] == "lifespan.startup" else self._stop())
            except Exception as error:
                await send({"type": f"{message['type']}.failed", "message": str(error)})
                raise
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _start(self) -> None:
        settings = load({}, os.environ).settings
        self._opened = await asyncio.to_thread(open_service, settings, self._includes, listens=False)
        self._gateway = make_gateway(self._opened.app, settings)
        self._gateway.start(asyncio.get_running_loop())
        service = self._opened.app.registry.service
        service.moves.watch()
        service.schedules.watch()

    async def _stop(self) -> None:
        await self._opened.app.registry.service.end(LEAVE_SECONDS)
        self._gateway.stop()
        await asyncio.to_thread(self._opened.store.close, CLOSE_TIMEOUT)


app = Application()
