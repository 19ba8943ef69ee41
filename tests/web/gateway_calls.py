"""Calls to the gateway as the server makes them, and an application that returns only its thread's name."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import unquote

from httpx2 import Headers

from queuey.app.asgi import answer
from queuey.app.service import App
from queuey.app.version_1 import SLASH
from queuey.facades.facade import Facade
from queuey.runtime.event_loop import Core
from queuey.runtime.metrics import Metrics
from queuey.storage.bridge import service_loops
from queuey.web.admission.scheduling import FairGate, SharedQuota
from queuey.web.endpoint import Endpoint, Match, ResourceMatch, View
from queuey.web.gateway import Gateway
from queuey.web.requests import Request as Asked
from queuey.web.responses import Response, text_response

KEY = "0a" * 31 + "ac"
"""A key that begins and ends with characters that the original stripped from keys."""
MOST = 1 << 20
TEST_TIMEOUT = 300.0
"""Timeout of a test in seconds; whatever it waits for comes long before."""
Run = Callable[[Callable[[Gateway], Coroutine[Any, Any, Any]]], Any]


class Reply:
    """A parsed answer."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.all_headers = headers
        self.headers = Headers(headers)
        self.body = body

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:  # noqa: ANN401 - tests look into it
        assert self.is_json, self.text
        return json.loads(self.body)

    @property
    def is_json(self) -> bool:
        kind = self.headers["Content-Type"].partition(";")[0]
        return kind in {"application/json", "application/problem+json"}

    @property
    def errors(self) -> dict[str, str]:
        """Returns the error texts of a refusal in the form of version 1. Fails for another answer."""
        assert self.json["status"] == "error"
        texts: dict[str, str] = self.json["error_msg"]
        return texts

    @property
    def messages(self) -> list[dict[str, Any]]:
        assert self.status in {200, 201}, self.text
        messages_shown: list[dict[str, Any]] = self.json["messages"]
        return messages_shown

    @property
    def bodies(self) -> list[Any]:
        return [message["body"] for message in self.messages]

    def __repr__(self) -> str:
        return f"<Reply {self.status} {self.body[:300]!r}>"


class Request:
    """A request and its answer, as ASGI has them. Of a stream it takes what is available, and disconnects.

    Args:
        method: The HTTP method.
        path: Path as sent.
        body: All of the body, or its pieces: then it is chunked.
        headers: Headers as received.
        query: Query as received.
        key: The application key, or None without a credential.
        broken: The body breaks off.
    """

    def __init__(
        self,
        method: str = "POST",
        path: str = "/v1/queuey/q",
        body: bytes | list[bytes] = b"",
        *,
        headers: list[tuple[str, str]] | None = None,
        query: str = "",
        key: str | None = KEY,
        broken: bool = False,
    ) -> None:
        self.method, self.path, self.query = method, path, query
        self.headers = [] if key is None else [("authorization", f"Application {key}")]
        self.headers += headers or []
        if isinstance(body, list):
            self.headers.append(("transfer-encoding", "chunked"))
        elif body and all(name != "content-length" for name, _ in self.headers):
            self.headers.append(("content-length", str(len(body))))
        self.chunked = isinstance(body, list)
        self.pieces = list(body) if isinstance(body, list) else [body]
        self.broken = broken
        self.status, self.answered, self.response = 0, False, b""
        self.answer_headers: list[tuple[str, str]] = []
        self.hold: asyncio.Event | None = None
        self._is_read = False

    @property
    def is_stream(self) -> bool:
        return self.path.endswith("/_stream") or ("accept", "text/event-stream") in self.headers

    @property
    def scope(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "path": unquote(self.path),
            "raw_path": self.path.encode(),
            "query_string": self.query.encode("latin-1"),
            "scheme": "http",
            "headers": [(name.encode(), value.encode()) for name, value in self.headers],
        }

    async def receive(self) -> dict[str, Any]:
        """Returns the next piece of the body, then its end.

        Returns a disconnect in place of the end if the body is broken, and after it once a stream has begun.
        """
        if self.hold is not None and len(self.pieces) <= (not self.chunked):
            await asyncio.wait_for(self.hold.wait(), 600)
        if self.pieces and not (self.broken and len(self.pieces) == 1):
            return {"type": "http.request", "body": self.pieces.pop(0), "more_body": True}
        if self.broken:
            return {"type": "http.disconnect"}
        if self._is_read and self.is_stream:
            await until(lambda: b"\n\n" in self.response)
            return {"type": "http.disconnect"}
        self._is_read = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: dict[str, Any]) -> None:
        assert not self.answered
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.answer_headers = [(name.decode(), value.decode()) for name, value in message["headers"]]
        else:
            self.response += message["body"]
            self.answered = not message["more_body"]

    async def to(self, gateway: Gateway) -> Reply:
        await asyncio.wait_for(answer(gateway, self.scope, self.receive, self.send), TEST_TIMEOUT)
        assert self.answered
        return Reply(self.status, self.answer_headers, self.response)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TEST_TIMEOUT):
        while not condition():  # noqa: ASYNC110 - the condition is over everything that runs here
            await asyncio.sleep(0.01)


def held_quotas(gateway: Gateway) -> dict[str, object]:
    """Returns held quotas and running requests by kind; empty without requests."""
    polls, threads, scheduler = gateway.polls, gateway.shares.threads, gateway.shares.scheduler
    gates: list[FairGate[Any]] = [polls.attempts, threads, scheduler, scheduler.pieces]
    quotas: dict[str, SharedQuota] = {
        "memory": gateway.shares.memory,
        "places": polls.places,
        "heartbeats": polls.heartbeats,
        "tries": polls.attempt_quota,
        "threads": threads.job_quota,
        "computing": threads.computing,
        "under way": scheduler.under_way,
    }
    quotas_held: dict[str, object] = {
        "streams of users": dict(polls.streams),
        "waiting": polls.waiting,
        "in turn": sum(len(gate.turns) for gate in gates),
        "present": gateway.shares.present,
        "clients": gateway.clients.unwatched,
        "calls": gateway.calls,
        "bodies": gateway.bodies.arriving,
        "watching": len(polls.watchers),
    }
    quotas_held |= {name: quota.total - quota.free for name, quota in quotas.items()}
    return {name: each for name, each in quotas_held.items() if each}


def make_runner(app: Any, **options: Any) -> Run:  # noqa: ANN401 - an App, or a stub of one
    """Returns a runner of coroutines with a gateway of its own, in an event loop of its own.

    Unless a test says otherwise the gateway refuses no request for its waiting time: a busy machine is slow.
    """
    options = {
        "threads": 2,
        "waiters": 2,
        "max_body": MOST,
        "deadline": TEST_TIMEOUT,
        "max_wait": TEST_TIMEOUT,
    } | options

    def run(work: Callable[[Gateway], Coroutine[Any, Any, Any]]) -> Any:  # noqa: ANN401
        async def main() -> Any:  # noqa: ANN401
            gateway = Gateway(app, **options)
            loop = asyncio.get_running_loop()
            gateway.start(loop)
            service_loops.discard(loop)  # Tests change the store within the loop.
            try:
                return await work(gateway)
            finally:
                gateway.stop()

        return asyncio.run(main())

    return run


def operations_of(app: App) -> set[str]:
    return {route.pattern.removesuffix(SLASH) for route, endpoint in app.resources.routes if endpoint.for_monitors}


def blank_request(**headers: str) -> Asked:
    server: Any = None
    return Asked(server, "GET", "/", "", "http", {name.replace("_", "-"): value for name, value in headers.items()})


class Served:
    """An application in an event loop of this process, for callers in threads."""

    def __init__(self, app: App) -> None:
        self._app = app
        limits = app.service.limits
        longest = max(limits.longest, limits.max_batch_bytes)
        self._core = Core()
        self._gateway = Gateway(
            app,
            threads=4,
            waiters=64,
            max_body=longest,
            page_bytes=limits.page_bytes,
            deadline=TEST_TIMEOUT,
            max_wait=TEST_TIMEOUT,
        )
        self._core.run(self._start())

    async def _start(self) -> None:
        self._gateway.start(self._core.loop)

    async def _stop(self) -> None:
        await self._app.service.groups.end()
        self._gateway.stop()

    def reply_to(self, request: Request) -> Reply:
        return self._core.run(request.to(self._gateway))

    def stop(self) -> None:
        self._core.run(self._stop())


_served: dict[int, tuple[Any, Served]] = {}


def serve(app: App) -> Served:
    """Returns the server of an application, which is started at the first call and runs until :func:`stop_all`."""
    if id(app) not in _served:
        _served[id(app)] = app, Served(app)
    return _served[id(app)][1]


def stop_all() -> None:
    while _served:
        _served.popitem()[1][1].stop()


class Stub:
    """An application that answers with the name of its thread."""

    def __init__(self) -> None:
        self.resources = self
        self.facades: list[Facade] = []
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
        self.endpoint = Endpoint("stub", self.views(), original=True)

    def adopt(self, _loop: object) -> None:
        pass

    def views(self) -> dict[str, View]:
        other = View(self.answer, reads_query=True)
        return {"GET": View(self.answer, reads_query=True, ends_with_client=True), "POST": other, "PUT": other}

    def find(self, method: str, path: bytes) -> ResourceMatch:
        return ResourceMatch(path.decode(), self.endpoint, {}, self.endpoint.view(method))

    find_cached = find

    def known_tenant(self, _header: str | None) -> str:
        return "a"

    def known_caller(self, _request: Asked) -> None:
        return None

    def subscribe(self, *_: object) -> None:
        pass

    async def answer(self, request: Asked, match: Match) -> Response:
        reads = request.method == "GET"
        return await request.in_thread(lambda: self.work(request, match), computes=reads, page=reads)

    def work(self, _request: Asked, _match: Match) -> Response:
        return text_response(threading.current_thread().name)
