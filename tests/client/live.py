"""The real service for the client's tests: in this process, and as ``queuey serve`` behind a socket."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from hashlib import sha256
from pathlib import Path

import httpx2

from queuey.app.application import make_app
from queuey.app.service import App
from queuey.client import AsyncClient
from queuey.model.rights import parse_scope
from queuey.storage import bridge
from queuey.storage.sqlite import open_store
from tests.backends import SqliteLocation
from tests.in_process import InProcess
from tests.servers.served import Served as Running

LOCAL = "http://127.0.0.1:5000/v1/acme/"
LOCAL_KEY = "a-key-of-the-tests"


class Bridge(httpx2.AsyncBaseTransport):
    """A transport of an async client to an application in this process; requests and answers are read whole."""

    def __init__(self, app: App) -> None:
        self._transport = InProcess(app)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        content = await request.aread()
        plain = httpx2.Request(request.method, request.url, headers=request.headers, content=content)
        response = self._transport.handle_request(plain)
        return httpx2.Response(response.status_code, headers=response.headers, content=response.read())

    async def aclose(self) -> None:
        self._transport.close()


@contextmanager
def application(data: Path) -> Iterator[App]:
    store = SqliteLocation(data).open()
    try:
        bridge.run(store.applications.create_application("acme"))
        bridge.run(store.applications.add_key("acme", sha256(LOCAL_KEY.encode()).digest()))
        yield make_app(store)
    finally:
        store.close()


class Served:
    """``queuey serve`` as a process, on a port that it keeps over restarts."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._running = Running(place)
        self._running.wait_for("Queuey serves at")
        self.profile = self._running.profile_path

    def start(self) -> None:
        self._running = Running(self._place, port=self._running.port)
        self._running.wait_for("Queuey serves at")

    def stop(self) -> None:
        if self._running.process.poll() is None:
            self._running.end(signal.SIGTERM)


@contextmanager
def served(place: Path) -> Iterator[Served]:
    service = Served(place)
    try:
        yield service
    finally:
        service.stop()


Connect = Callable[..., AsyncClient]


@asynccontextmanager
async def connected(directory: Path, *, private: Collection[str] = ()) -> AsyncIterator[Connect]:
    """Yields a function that opens clients, each with a new key for these verbs and queues; closes them at the end."""
    with closing(open_store(directory)) as store:
        await store.applications.create_application("acme")
        app = make_app(store, private=private)
        async with AsyncExitStack() as opened:

            def make(allow: str = "", queues: str = "") -> AsyncClient:
                key = sha256(f"{allow} {queues}".encode()).hexdigest()
                scope = parse_scope(allow.split(","), queues.split(","))
                bridge.run(store.applications.add_key("acme", sha256(key.encode()).digest(), scope=scope))
                client = AsyncClient(LOCAL, key=key, transport=Bridge(app))
                opened.push_async_callback(client.close)
                return client

            yield make
