"""``queuey.app.asgi:app``: the service for any ASGI server with lifespan support, in one process.

The settings come from the environment, as for ``queuey serve``. That has several processes, and bounds connections and
the heads of requests; here the ASGI server has to do that. The store is opened when the server starts, and closed when
it ends, after its requests are answered. Long polls end when the server shuts down, not before.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from queuey.app.serve import LEAVE_TIMEOUT, open_service
from queuey.app.service import App
from queuey.settings import Include, load
from queuey.web.gateway import Gateway, make_gateway
from queuey.web.http.heads import HeadForm, RequestHead
from queuey.web.responses import Response, with_cache_control

Scope = dict[str, Any]
"""An ASGI scope: a request without its body."""
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

CLOSE_TIMEOUT = 10.0
"""Timeout for the store to finish accepted writes, in seconds."""
EMPTY_BODY_TIMEOUT = 1.0
"""Timeout for the end of an empty body that comes by HTTP/2, in seconds."""


class Application:
    """The service, from the server's start to its end. Scopes other than HTTP and lifespan raise ``ValueError``.

    Args:
        includes: Functions that add resources; see ``docs/extending.md``.
    """

    def __init__(self, includes: Sequence[Include] = ()) -> None:
        self._includes = includes
        self._app: App
        self._gateway: Gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await answer(self._gateway, scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        else:
            raise ValueError(f"The service does not support ASGI scopes of type {scope['type']}.")

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
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
        self._app = await asyncio.to_thread(open_service, settings, self._includes, listens=False)
        self._gateway = make_gateway(self._app, settings)
        self._gateway.start(asyncio.get_running_loop())
        self._app.service.start_background_work()

    async def _stop(self) -> None:
        await self._app.service.end(LEAVE_TIMEOUT)
        self._gateway.stop()
        await asyncio.to_thread(self._app.service.store.close, CLOSE_TIMEOUT)


class AsgiExchange:
    """A request of an ASGI server. See :class:`~queuey.web.responses.Exchange`.

    :meth:`send_response` only keeps the response, and :meth:`send_pending_response` sends it.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scheme: str = scope.get("scheme", "http")
        self.peer: str = (scope.get("client") or ("",))[0]
        self.receive = receive
        self._send = send
        self._due: tuple[Response, bool] | None = None

    def take_whole(self, size: int) -> bytes | None:
        """Returns None, because ASGI does not report how much of a body has arrived."""
        return None

    def send_response(self, response: Response, *, head: bool) -> None:
        self._due = response, head

    async def send_pending_response(self) -> None:
        if self._due is not None:
            response, head = self._due
            size, body = response.length_and_body(head=head)
            await self.send_head(response, size)
            await self.send_piece(body, more=False)

    async def send_head(self, response: Response, size: int | None) -> None:
        length = () if size is None else (("content-length", str(size)),)
        headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in (*with_cache_control(response.headers), *length)
        ]
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})

    async def send_piece(self, piece: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})


async def answer(gateway: Gateway, scope: Scope, receive: Receive, send: Send) -> None:
    path = scope.get("raw_path") or quote(scope["path"]).encode()
    headers: list[tuple[bytes, bytes]] = list(scope["headers"])
    if scope.get("http_version") == "2" and scope["method"] not in {"GET", "HEAD"}:
        lengths = [value for name, value in headers if name == b"content-length"]
        if lengths == [b"0"]:
            await _receive_empty_body(receive)
        elif not lengths:
            headers.append((b"transfer-encoding", b"chunked"))  # As HTTP/1.1 says that a body may follow.
    exchange = AsgiExchange(scope, receive, send)
    await gateway.answer(RequestHead(scope["method"], path, scope["query_string"], HeadForm(headers)), exchange)
    await exchange.send_pending_response()


async def _receive_empty_body(receive: Receive) -> None:
    """Waits for the frame that ends an empty body: Hypercorn ends the connection if the answer is done before."""
    with suppress(TimeoutError):
        async with asyncio.timeout(EMPTY_BODY_TIMEOUT):
            while (await receive()).get("more_body"):
                pass


app = Application()
