"""A transport for httpx2 that calls an application in this process, through the gateway."""

from __future__ import annotations

import httpx2

from queuey.app.service import App
from tests.web.gateway_calls import Request, Served


class InProcess(httpx2.BaseTransport):
    """Calls an application as the server does.

    Args:
        app: The application.
    """

    def __init__(self, app: App) -> None:
        self._served = Served(app)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        path, _, query = request.url.raw_path.decode().partition("?")
        sent = Request(request.method, path, request.read(), query=query)
        sent.headers = [(name.decode().lower(), value.decode()) for name, value in request.headers.raw]
        reply = self._served.reply_to(sent)
        return httpx2.Response(reply.status, headers=sent.answer_headers, content=reply.body)

    def close(self) -> None:
        self._served.stop()
