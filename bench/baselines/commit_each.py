"""The same granian and Pyramid view without a writer of its own: every request commits its message itself.

Written as carefully as the service's hot path: the body is read from the server's input, the answer is a slotted
object, one connection a thread, prepared statements. What it leaves out it leaves out in its own favour: no catalogue,
no limits, no metrics.

Environment: ``BENCH_DATA``, the directory of its file; ``BENCH_KEY``, the key it accepts; ``BENCH_TURNS``, ``lock`` to
let the threads of the process queue at a lock of their own, ``busy`` to leave that to SQLite's busy timeout.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import apsw
from pyramid.config import Configurator
from pyramid.interfaces import IResponse
from pyramid.request import Request
from zope.interface import implementer

from bench.baselines import table
from queuey import ids

SQL = table.INSERT + "(?, ?, ?, ?, ?, NULL)"
PATH = Path(os.environ.get("BENCH_DATA", ".")) / "commit_each.sqlite3"
KEYS = {hashlib.sha256(os.environ.get("BENCH_KEY", "").encode()).digest()}


@implementer(IResponse)
class Answer:
    """A response that is nothing but its parts."""

    __slots__ = ("body", "status")

    def __init__(self, status: str, body: bytes) -> None:
        self.status = status
        self.body = body

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        """Sends it, as WSGI asks."""
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(self.body)))]
        start_response(self.status, headers)
        return (self.body,)


class Minting:
    """Strictly ascending ticks for the whole process."""

    def __init__(self) -> None:
        self.low = ids.random_low()
        self.last = 0
        self.lock = threading.Lock()

    def next(self) -> int:
        """Returns the clock or, if it has not moved on, the tick after the last one."""
        with self.lock:
            self.last = max(ids.now_ticks(), self.last + 1)
            return self.last


LOCAL = threading.local()
MINT = Minting()
TURNS: contextlib.AbstractContextManager[Any] = (
    threading.Lock() if os.environ.get("BENCH_TURNS", "lock") == "lock" else contextlib.nullcontext()
)


def post(context: object, request: Request) -> Answer:
    """Stores one message in a transaction of its own and answers with its id."""
    environ = request.environ
    scheme, _, key = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme != "Application" or hashlib.sha256(key.encode()).digest() not in KEYS:
        return Answer("401 Unauthorized", b"{}")
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()
    connection: apsw.Connection | None = getattr(LOCAL, "connection", None)
    if connection is None:
        connection = LOCAL.connection = table.connect(PATH)
    with TURNS:
        connection.execute("BEGIN IMMEDIATE")
        ticks = MINT.next()
        connection.execute(SQL, (table.QP, ticks, MINT.low, ticks + table.TTL_TICKS, body))
        connection.execute("COMMIT")
    text = (
        f'{{"status":"ok","messages":[{{"key":"{ids.to_hex((ticks, MINT.low))}",'
        f'"timestamp":"{ids.timestamp_text(ticks)}","partition":1}}]}}'
    )
    return Answer("201 Created", text.encode())


def make_app() -> Callable[..., Iterable[bytes]]:
    """Assembles the application."""
    table.connect(PATH).close()
    config = Configurator()
    config.add_route("queue", "/v1/{application}/{queue}")
    config.add_view(post, route_name="queue")
    made: Callable[..., Iterable[bytes]] = config.make_wsgi_app()
    return made


app = make_app() if "BENCH_DATA" in os.environ else None
