"""The real service for the client's tests: in this process, and as ``queuey serve`` behind a socket."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import httpx2

from queuey.access import parse_scope
from queuey.client import AsyncClient
from queuey.client.credentials.profile import read_profile
from queuey.storage.sqlite import open_store
from queuey.web import make_app
from tests.in_process import InProcess
from tests.servers.served import environment, free_port

LOCAL = "http://127.0.0.1:5000/v1/acme/"
LOCAL_KEY = "a-key-of-the-tests"

Application = Callable[..., Any]


class Bridge(httpx2.AsyncBaseTransport):
    """Lets an async client call an application in this process."""

    def __init__(self, app: Application) -> None:
        self._transport = InProcess(app)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Calls the application and waits for all of its answer."""
        content = await request.aread()
        plain = httpx2.Request(request.method, request.url, headers=request.headers, content=content)
        response = self._transport.handle_request(plain)
        return httpx2.Response(response.status_code, headers=response.headers, content=response.read())

    async def aclose(self) -> None:
        """Ends the gateway."""
        self._transport.close()


@contextmanager
def application(data: Path) -> Iterator[Application]:
    """Opens the service in this process, with one application and its key."""
    store = open_store(data)
    try:
        store.create_application("acme")
        store.add_key("acme", sha256(LOCAL_KEY.encode()).digest())
        yield make_app(store)
    finally:
        store.close()


class Served:
    """``queuey serve`` as a process, on a port that it keeps over restarts."""

    def __init__(self, place: Path) -> None:
        self.profile = place / "config" / "profile.toml"
        self._place = place
        self._port = free_port()  # no port that a connection may take while it is started again
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts it and waits until it serves."""
        data, port = str(self._place / "data"), str(self._port)
        command = [sys.executable, "-m", "queuey", "serve", "--data", data, "--port", port]
        with self._log("a") as log:
            self._process = subprocess.Popen(
                command,
                env=environment(QUEUEY_PROFILE=str(self.profile)),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if "serves at" not in line:
            self.stop()
            with self._log("r") as log:
                raise AssertionError(f"queuey serve did not start: {line}{log.read()}")
        self._port = int(read_profile(self.profile).url.rpartition(":")[2])

    def stop(self) -> None:
        """Stops it in order and waits for its end."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _log(self, mode: str) -> IO[str]:
        return (self._place / "log").open(mode)


@contextmanager
def served(place: Path) -> Iterator[Served]:
    """Runs ``queuey serve`` with data and profile in a directory."""
    service = Served(place)
    service.start()
    try:
        yield service
    finally:
        service.stop()


Connect = Callable[..., AsyncClient]


@asynccontextmanager
async def connected(directory: Path, *, private: Collection[str] = ()) -> AsyncIterator[Connect]:
    """Gives what makes clients that may do what their keys allow, all with one service of the application ``acme``."""
    with closing(open_store(directory)) as store:
        store.create_application("acme")
        app = make_app(store, private=private)
        async with AsyncExitStack() as opened:

            def make(allow: str = "", queues: str = "") -> AsyncClient:
                key = sha256(f"{allow} {queues}".encode()).hexdigest()
                scope = parse_scope(allow.split(","), queues.split(","))
                store.add_key("acme", sha256(key.encode()).digest(), scope=scope)
                client = AsyncClient(LOCAL, key=key, transport=Bridge(app))
                opened.push_async_callback(client.close)
                return client

            yield make
