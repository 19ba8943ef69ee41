"""Calls to the gateway as the server makes them, and an application that only says in which thread it runs."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from queuey.errors import TooManyRequests
from queuey.facades.facade import Facade
from queuey.metrics import Metrics
from queuey.service.core import Core
from queuey.web.admission.scheduling import FairGate, SharedQuota
from queuey.web.asgi import answer
from queuey.web.endpoint import Endpoint, Found, Match, View
from queuey.web.gateway.asgi import Gateway
from queuey.web.parts import App
from queuey.web.requests import Request as Asked
from queuey.web.responses import Response, text_response
from queuey.web.v1 import SLASH
from tests.replacing import replace

KEY = "0a" * 31 + "ac"
"""Begins and ends with characters that the original took away from keys."""
MOST = 1 << 20
ALWAYS = 300.0
"""Seconds that no test may take; what is waited for comes long before."""
Run = Callable[[Callable[[Gateway], Coroutine[Any, Any, Any]]], Any]


class Headers(dict[str, str]):
    """Headers, whose names may be written in any case."""

    def __init__(self, headers: Iterable[tuple[str, str]]) -> None:
        super().__init__({name.lower(): value for name, value in headers})

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return super().__contains__(str(name).lower())

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - as given
        """Returns the value of a header."""
        return super().get(name.lower(), default)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and dict(self) == {name.lower(): value for name, value in other.items()}

    __hash__ = None


class Reply:
    """An answer, taken apart."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.all_headers = headers
        self.headers = Headers(headers)
        self.body = body

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def json(self) -> Any:  # noqa: ANN401 - tests look into it
        """The body as JSON."""
        assert self.is_json, self.text
        return json.loads(self.body)

    @property
    def is_json(self) -> bool:
        """Whether the answer says that its body is JSON."""
        kind = self.headers["Content-Type"].partition(";")[0]
        return kind in {"application/json", "application/problem+json"}

    @property
    def errors(self) -> dict[str, str]:
        """The texts of a refusal in version 1's form."""
        assert self.json["status"] == "error"
        found: dict[str, str] = self.json["error_msg"]
        return found

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of a successful answer."""
        assert self.status in {200, 201}, self.text
        found: list[dict[str, Any]] = self.json["messages"]
        return found

    @property
    def bodies(self) -> list[Any]:
        """The bodies of the messages."""
        return [message["body"] for message in self.messages]

    def __repr__(self) -> str:
        return f"<Reply {self.status} {self.body[:300]!r}>"


class Request:
    """A request and the answer to it, as ASGI has them. Of a stream it takes what there is, and leaves.

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
        elif body and all(name != "content-length" for name, _ in self.headers):
            self.headers.append(("content-length", str(len(body))))
        self.chunked = isinstance(body, list)
        self.pieces = list(body) if isinstance(body, list) else [body]
        self.broken, self.trailers = broken, trailers
        self.status, self.answered, self.response = 0, False, b""
        self.answer_headers: list[tuple[str, str]] = []
        self.hold: asyncio.Event | None = None
        self._is_read = False

    @property
    def is_stream(self) -> bool:
        """Whether the answer does not end by itself."""
        return self.path.endswith("/_stream") or ("accept", "text/event-stream") in self.headers

    @property
    def scope(self) -> dict[str, Any]:
        """The request without its body."""
        return {
            "method": self.method,
            "path": unquote(self.path),
            "raw_path": self.path.encode(),
            "query_string": self.query.encode("latin-1"),
            "scheme": "http",
            "headers": [(name.encode(), value.encode()) for name, value in self.headers],
        }

    async def receive(self) -> dict[str, Any]:
        """Gives the next piece of the body."""
        if self.hold is not None and len(self.pieces) <= (not self.chunked):
            await asyncio.wait_for(self.hold.wait(), 600)
        if self.pieces and not (self.broken and len(self.pieces) == 1):
            return {"type": "http.request", "body": self.pieces.pop(0), "more_body": True}
        if self.trailers:
            self.trailers = False
            return {"type": "http.request", "body": b"", "more_body": True}
        if self.broken:
            return {"type": "http.disconnect"}
        if self._is_read and self.is_stream:
            await until(lambda: b"\n\n" in self.response)
            return {"type": "http.disconnect"}
        self._is_read = True
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
        await asyncio.wait_for(answer(gateway, self.scope, self.receive, self.send), ALWAYS)
        assert self.answered
        return Reply(self.status, self.answer_headers, self.response)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something that comes soon."""
    async with asyncio.timeout(ALWAYS):
        while not condition():  # noqa: ASYNC110 - the condition is over everything that runs here
            await asyncio.sleep(0.01)


async def not_short(*_: object) -> None:
    """Stands for ``Reader.read_short``: a read is not short, so that a thread does it."""


def held(gateway: Gateway) -> dict[str, object]:
    """What is held and under way, by what it is; nothing without requests."""
    polls, threads, scheduler = gateway._polls, gateway._threads, gateway._scheduler
    gates: list[FairGate[Any]] = [polls.tries, threads, scheduler, scheduler._pieces]
    quotas: dict[str, SharedQuota] = {
        "memory": gateway._memory,
        "places": polls.places,
        "heartbeats": polls.heartbeats,
        "tries": polls.trying,
        "threads": threads._hand,
        "computing": threads._computing,
        "under way": scheduler._under_way,
    }
    some: dict[str, object] = {
        "streams of users": dict(polls._streams),
        "waiting": polls._waiting,
        "in turn": sum(len(gate._turns) for gate in gates),
        "present": gateway._contention._requests,
        "clients": gateway._clients._unheard,
        "calls": gateway._calls,
        "bodies": gateway._bodies._arriving,
        "watching": len(polls.watchers),
    }
    some |= {name: quota._held for name, quota in quotas.items()}
    some |= {f"{name} in all": quota.total - quota.free for name, quota in quotas.items()}
    return {name: each for name, each in some.items() if each}


def running(app: Any, **options: Any) -> Run:  # noqa: ANN401 - an App, or a stub of one
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


def operations_of(app: App) -> set[str]:
    """Returns the paths at which monitors are answered."""
    return {route.pattern.removesuffix(SLASH) for route, endpoint in app.resources.routes if endpoint.operation}


def blank_request(**headers: str) -> Asked:
    """Returns a request that asks nothing of a server."""
    server: Any = None
    return Asked(server, "GET", "/", "", "http", {name.replace("_", "-"): value for name, value in headers.items()})


class Served:
    """An application in the event loop of this process, for callers in threads.

    Args:
        app: The application.
    """

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
            deadline=ALWAYS,
            max_wait=ALWAYS,
        )
        self._core.run(self._start())

    async def _start(self) -> None:
        self._gateway.start(self._core.loop)

    async def _stop(self) -> None:
        await self._app.service.groups.end()
        self._gateway.stop()

    def reply_to(self, request: Request) -> Reply:
        """Has the gateway answer."""
        return self._core.run(request.to(self._gateway))

    def stop(self) -> None:
        """Ends it."""
        self._core.run(self._stop())


_served: dict[int, tuple[Any, Served]] = {}


def served(app: App) -> Served:
    """Returns what answers for an application, until :func:`stop_all`."""
    if id(app) not in _served:
        _served[id(app)] = app, Served(app)
    return _served[id(app)][1]


def stop_all() -> None:
    """Ends all that were begun."""
    while _served:
        _served.popitem()[1][1].stop()


class Stub:
    """An application that says which thread it runs in."""

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
        self.endpoint = Endpoint("stub", self.metrics, self.views(), original=True)

    def adopt(self, _loop: object) -> None:
        """Needs no loop."""

    def views(self) -> dict[str, View]:
        """Answers reads with a page, and all else."""
        other = View(self.answer, asks=True)
        return {"GET": View(self.answer, asks=True, page=True), "POST": other, "PUT": other}

    def find(self, path: bytes) -> Found:
        """Leads everywhere."""
        return Found(path.decode(), self.endpoint, {})

    def tenant(self, _request: Asked) -> str:
        """Knows everybody."""
        return "a"

    def subscribe(self, *_: object) -> None:
        """Wakes nobody."""

    def answer(self, _request: Asked, _match: Match) -> Response:
        """Answers with the thread's name."""
        return text_response(threading.current_thread().name)


@contextmanager
def threads_for(most: int) -> Iterator[None]:
    """Has the gateway refuse work in threads after so much of it, as it does that of an application with too much."""
    in_pool, left = Gateway.in_pool, [most]

    async def limited(gateway: Gateway, request: Asked, work: Callable[[], Any], **how: bool) -> Any:  # noqa: ANN401
        if not left[0]:
            raise TooManyRequests("Too many requests of this application at the same moment; try again.")
        left[0] -= 1
        return await in_pool(gateway, request, work, **how)

    with replace(Gateway.in_pool, limited):
        yield
