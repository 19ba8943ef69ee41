"""Measures the service's own CPU for a POST, called in process without a server or a store."""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from bench.baselines import bare
from bench.harness import Bench, Void, measure
from bench.load import traffic
from bench.results import Report, Row, Verdict
from bench.started import service
from queuey.ids import Position
from queuey.messages import NewMessage, Queue
from queuey.metrics import Metrics
from queuey.storage.sqlite import SqliteOptions, SqliteStore
from queuey.storage.sqlite.messages import SqliteMessages
from queuey.web import make_app
from queuey.web.gateway.asgi import Gateway
from queuey.web.http.heads import read_head
from queuey.web.parts import App
from queuey.web.responses import Response

REQUESTS = 20_000
THREAD_SECONDS = 30.0
"""Timeout for a thread that loads a key or a queue."""
PATH = f"{service.BASE}/bench"


class InstantMessages(SqliteMessages):
    """A double that returns a position at once, so that only the service's own work of a POST is measured."""

    position: Position = (139_000_000_000_000_000, 1)

    async def append(
        self, queue: Queue, items: Sequence[NewMessage], *, after: Position | None = None
    ) -> list[Position]:
        return [self.position] * len(items)


@measure("cpu", "CPU of a POST in process without a store, over a bare WSGI callable")
def compare_post_cpu(bench: Bench) -> Report:
    """Calls each side with the server's input, in one thread."""
    directory = bench.new_directory("cpu")
    service.prepare(directory).close()
    store = SqliteStore(directory, SqliteOptions(sweep_interval=None))
    store.messages = InstantMessages(store._db, store._arrivals)
    try:
        app = make_app(store, metrics=Metrics())
        ways: dict[str, Callable[[bytes], int]] = {
            "queuey, as served": through_gateway(app),
            "bare": partial(call_wsgi, bare.app),
        }
        texts = [text.encode() for text in traffic.bodies(64)]
        for way in reversed(ways.values()):
            measure_cpu(way, texts, 2000)
        count = bench.count(REQUESTS, 4000)
        calls = {name: partial(measure_cpu, way, texts, count) for name, way in ways.items()}
        samples = bench.interleave(calls, bench.count(15, 1))
    finally:
        store.close()
    rows = [Row(name, values, "us") for name, values in samples.items()]
    name = "queuey, as served"
    excess = [ours - least for ours, least in zip(samples[name], samples["bare"], strict=True)]
    verdict = Verdict(f"{name} - bare", excess, "us", goal=15, aim=8, better="lower")
    return Report("cpu", "", rows, [verdict])


def measure_cpu(way: Callable[[bytes], int], texts: Sequence[bytes], count: int) -> float:
    """Returns the mean CPU time of ``count`` POSTs in microseconds.

    Raises:
        Void: An answer was not 201.
    """
    wrong = 0
    began = time.process_time_ns()
    for number in range(count):
        wrong += way(texts[number % len(texts)]) != 201
    spent = time.process_time_ns() - began
    if wrong:
        raise Void(f"{wrong} answers were not 201")
    return spent / count / 1000


# As WSGI


def call_wsgi(app: Callable[..., Any], body: bytes) -> int:
    status = 0

    def start_response(line: str, headers: object, error: object = None) -> None:
        nonlocal status
        status = int(line[:3])

    for _ in app({**ENVIRON, "wsgi.input": io.BytesIO(body)}, start_response):
        pass
    return status


ENVIRON: dict[str, Any] = {
    "GATEWAY_INTERFACE": "CGI/1.1",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "SERVER_SOFTWARE": "Granian",
    "SERVER_NAME": "127.0.0.1",
    "SERVER_PORT": "5000",
    "REMOTE_ADDR": "127.0.0.1",
    "REQUEST_METHOD": "POST",
    "SCRIPT_NAME": "",
    "PATH_INFO": PATH,
    "QUERY_STRING": "",
    "CONTENT_TYPE": "text/plain",
    "CONTENT_LENGTH": str(traffic.BODY_BYTES),
    "HTTP_HOST": "127.0.0.1",
    "HTTP_AUTHORIZATION": f"Application {traffic.KEY}",
    "wsgi.version": (1, 0),
    "wsgi.url_scheme": "http",
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": False,
    "wsgi.run_once": False,
    "wsgi.input_terminated": True,
}


# Through the gateway


class OneTurn:
    """The parts of an event loop that the gateway needs, run by hand: a real one would cost more than the request."""

    def __init__(self) -> None:
        self._ready: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def run_until_done(self, future: asyncio.Future[Any]) -> None:
        """Runs callbacks until the future is done; some come from threads that reload a key or a queue.

        Raises:
            Void: No callback came in time.
        """
        while not future.done():
            try:
                self._ready.get(timeout=THREAD_SECONDS)()
            except Empty:
                raise Void("the request was not handled") from None

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        self._ready.put(callback)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> None:
        """Does nothing, because no time passes."""

    def get_debug(self) -> bool:
        """Called by futures."""
        return False


class PostExchange:
    """The connection of one POST: supplies its body and records the status of its answer."""

    scheme, peer = "http", "127.0.0.1"

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.status = 0

    def take_whole(self, size: int) -> bytes:
        return self.body

    async def receive(self) -> dict[str, Any]:
        raise NotImplementedError

    def send_response(self, response: Response, *, head: bool) -> None:
        self.status = response.status

    async def send_head(self, response: Response, size: int | None) -> None:
        raise NotImplementedError

    async def send_piece(self, piece: bytes, *, more: bool) -> None:
        raise NotImplementedError


def through_gateway(app: App) -> Callable[[bytes], int]:
    loop = OneTurn()
    gateway = Gateway(app, threads=1, waiters=1, max_body=1 << 20)
    gateway.start(loop)  # type: ignore[arg-type]
    fields = {
        "Host": "127.0.0.1",
        "Authorization": f"Application {traffic.KEY}",
        "Content-Type": "text/plain",
        "Content-Length": str(traffic.BODY_BYTES),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    head = f"POST {PATH} HTTP/1.1\r\n{lines}\r\n".encode()

    def request(body: bytes) -> int:
        exchange = PostExchange(body)
        running: Any = gateway.answer(read_head(head), exchange)
        asyncio._set_running_loop(loop)  # type: ignore[arg-type]
        try:
            while True:
                loop.run_until_done(running.send(None))
        except StopIteration:
            return exchange.status
        finally:
            asyncio._set_running_loop(None)

    return request
