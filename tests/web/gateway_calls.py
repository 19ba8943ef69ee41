"""Calls to the gateway as the server makes them, and an application that only says in which thread it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

from queuey.metrics import Metrics
from queuey.service.core import Core
from queuey.web.endpoint import WouldBlock
from queuey.web.facades.facade import Facade
from queuey.web.gateway.asgi import Gateway
from queuey.web.responses import text_response
from tests.web.caller import Reply
from tests.web.conftest import KEY

MOST = 1 << 20
ALWAYS = 300.0
"""Seconds that no test may take; what is waited for comes long before."""
Run = Callable[[Callable[[Gateway], Coroutine[Any, Any, Any]]], Any]


class Request:
    """A request and the answer to it, as ASGI has them.

    Args:
        method: As given.
        path: As sent.
        body: Whole, or in pieces: then it is chunked.
        headers: As received.
        query: As received.
        broken: The body breaks off.
        trailers: Something follows the body.
    """

    def __init__(
        self,
        method: str = "POST",
        path: str = "/v1/queuey/q",
        body: bytes | list[bytes] = b"",
        *,
        headers: list[tuple[str, str]] | None = None,
        query: str = "",
        broken: bool = False,
        trailers: bool = False,
    ) -> None:
        self.method, self.path, self.query = method, path, query
        self.headers = [("authorization", f"Application {KEY}"), *(headers or [])]
        if isinstance(body, list):
            self.headers.append(("transfer-encoding", "chunked"))
        elif body:
            self.headers.append(("content-length", str(len(body))))
        self.chunked = isinstance(body, list)
        self.pieces = list(body) if isinstance(body, list) else [body]
        self.broken, self.trailers = broken, trailers
        self.status, self.answered, self.response = 0, False, b""
        self.answer_headers: list[tuple[str, str]] = []
        self.hold: asyncio.Event | None = None

    @property
    def scope(self) -> dict[str, Any]:
        """The request without its body."""
        return {
            "method": self.method,
            "path": unquote(self.path),
            "raw_path": self.path.encode(),
            "query_string": self.query.encode(),
            "scheme": "http",
            "headers": [(name.encode(), value.encode()) for name, value in self.headers],
        }

    async def receive(self) -> dict[str, Any]:
        """Gives the next piece of the body."""
        if self.hold is not None and len(self.pieces) <= (not self.chunked):
            await self.hold.wait()
        if self.pieces and not (self.broken and len(self.pieces) == 1):
            return {"type": "http.request", "body": self.pieces.pop(0), "more_body": True}
        if self.trailers:
            self.trailers = False
            return {"type": "http.request", "body": b"", "more_body": True}
        if self.broken:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: dict[str, Any]) -> None:
        """Takes a part of the answer."""
        assert not self.answered
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.answer_headers = [(name.decode(), value.decode()) for name, value in message["headers"]]
        else:
            self.response += message["body"]
            self.answered = not message["more_body"]

    async def to(self, gateway: Gateway) -> Reply:
        """Has the gateway answer."""
        await asyncio.wait_for(gateway(self.scope, self.receive, self.send), ALWAYS)
        assert self.answered
        return Reply(f"{self.status} ", self.answer_headers, self.response)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something that comes soon."""
    async with asyncio.timeout(ALWAYS):
        while not condition():  # noqa: ASYNC110 - the condition is over everything that runs here
            await asyncio.sleep(0.01)


def running(app: Any, **options: Any) -> Run:  # noqa: ANN401 - a WSGI application
    """Returns what runs a coroutine with a gateway of its own, in an event loop of its own.

    Unless a test says otherwise the gateway refuses nothing for having waited: a busy machine is slow.
    """
    options = {"threads": 2, "waiters": 2, "max_body": MOST, "deadline": ALWAYS, "max_wait": ALWAYS} | options

    def run(work: Callable[[Gateway], Coroutine[Any, Any, Any]]) -> Any:  # noqa: ANN401
        async def main() -> Any:  # noqa: ANN401
            gateway = Gateway(app, **options)
            loop = asyncio.get_running_loop()
            gateway.start(loop)
            try:
                return await work(gateway)
            finally:
                gateway.stop()

        return asyncio.run(main())

    return run


class Stub:
    """An application that says which thread it runs in."""

    def __init__(self) -> None:
        self.registry = self
        self.facades: list[Facade] = []
        self.hot = {"": self}
        self.authorization = self
        self.service = self
        self.core = Core()
        self.store = self
        self.reader = self
        self.watchers: Any = self
        self.authenticate = self
        self.stopping = threading.Event()
        self.waits_for_network = False
        self.readers = 4
        self.metrics = Metrics()
        self.operations: dict[str, Any] = {}
        self.look_up = None

    def begins(self, _method: str) -> bool:
        """Says that all that may be handled at once can be."""
        return True

    def tenant(self, _environ: dict[str, Any]) -> str:
        """Knows everybody."""
        return "a"

    def tries(self, *_: object) -> None:
        """Wakes nobody, so nobody tries."""

    def begin(self, *_: object) -> Any:  # noqa: ANN401
        """Begins nothing."""
        raise WouldBlock

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> list[bytes]:
        """Answers with the thread's name."""
        return list(text_response(threading.current_thread().name)(environ, start_response))
