"""The same granian and Pyramid, and a view that hands jobs out of a SQLite table: each claim and each end a commit.

A claim whose body names receipts ends those in its own commit.

A claim is one ``UPDATE … RETURNING`` of the oldest rows that nobody has. What it leaves out it leaves out in its own
favour: no history, no second process, no limits, no metrics, no TTL of messages.

Environment: ``BENCH_DATA``, the directory of its file; ``BENCH_KEY``, the key it accepts; ``BENCH_TURNS`` as for
:mod:`bench.baselines.commit_each`. ``python -m bench.baselines.claim_each FILE SECONDS`` does claims and
ends of 100 rows each with no service around them, and prints messages a second.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import apsw
from pyramid.config import Configurator
from pyramid.request import Request

from bench.baselines import table
from bench.baselines.commit_each import KEYS, LOCAL, TURNS, Answer
from bench.load.traffic import bodies

PATH = Path(os.environ.get("BENCH_DATA", ".")) / "claim_each.sqlite3"
TABLE = """
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY, body TEXT NOT NULL, claimed_until REAL NOT NULL, deliveries INTEGER NOT NULL,
    done INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS waiting ON jobs (id) WHERE done = 0;
"""
CLAIM = (
    "UPDATE jobs SET claimed_until = ?, deliveries = deliveries + 1 WHERE id IN "
    "(SELECT id FROM jobs WHERE done = 0 AND claimed_until <= ? ORDER BY id LIMIT ?) RETURNING id, body, deliveries"
)
DONE = "UPDATE jobs SET done = 1 WHERE id = ? AND deliveries = ?"
RECEIPT = re.compile(rb'"(\d+)-(\d+)"')
ROWS = 100
CYCLES = 50
"""Before the table is filled again."""


def connect(path: Path) -> apsw.Connection:
    """Opens the file and makes the table."""
    connection = table.connect(path)
    connection.execute(TABLE)
    return connection


def fill(path: Path, count: int) -> None:
    """Adds jobs."""
    connection = connect(path)
    texts = bodies(1000)
    with connection:
        connection.executemany(
            "INSERT INTO jobs (body, claimed_until, deliveries, done) VALUES (?, 0, 0, 0)",
            ((texts[n % 1000],) for n in range(count)),
        )
    connection.close()


def claim(
    connection: apsw.Connection, limit: int, receipts: Iterable[tuple[int, int]] = ()
) -> list[tuple[int, str, int]]:
    """Ends claims, and claims the oldest jobs, in a transaction of its own."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(DONE, receipts)
    now = time.time()
    found = connection.execute(CLAIM, (now + 60, now, limit)).fetchall()
    connection.execute("COMMIT")
    return found  # type: ignore[return-value]


def end(connection: apsw.Connection, receipts: Iterable[tuple[int, int]]) -> None:
    """Notes that jobs are done, in a transaction of its own."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(DONE, receipts)
    connection.execute("COMMIT")


def view(context: object, request: Request) -> Answer:
    """Claims, or ends claims."""
    environ = request.environ
    scheme, _, key = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme != "Application" or _digest(key) not in KEYS:
        return Answer("401 Unauthorized", b"{}")
    connection: apsw.Connection | None = getattr(LOCAL, "connection", None)
    if connection is None:
        connection = LOCAL.connection = connect(PATH)
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    receipts = [(int(one), int(times)) for one, times in RECEIPT.findall(body)]
    if environ["PATH_INFO"].endswith("/ack"):
        with TURNS:
            end(connection, receipts)
        return Answer("200 OK", b'{"status":"ok"}')
    with TURNS:
        found = claim(connection, int(request.GET["limit"]), receipts)
    messages = [
        {"message_id": str(number), "body": body, "receipt": f"{number}-{times}", "deliveries": times}
        for number, body, times in found
    ]
    answer: dict[str, Any] = {"status": "ok", "messages": messages}
    if receipts:
        answer["acknowledged"] = [{"receipt": f"{number}-{times}", "status": "ok"} for number, times in receipts]
    return Answer("200 OK", json.dumps(answer, separators=(",", ":")).encode())


def _digest(key: str) -> bytes:
    import hashlib  # noqa: PLC0415 - beside its only use

    return hashlib.sha256(key.encode()).digest()


def make_app() -> Callable[..., Iterable[bytes]]:
    """Assembles the application."""
    connect(PATH).close()
    config = Configurator()
    config.add_route("claims", "/v1/{application}/{queue}/claims")
    config.add_route("ack", "/v1/{application}/{queue}/claims/ack")
    config.add_view(view, route_name="claims")
    config.add_view(view, route_name="ack")
    made: Callable[..., Iterable[bytes]] = config.make_wsgi_app()
    return made


app = make_app() if "BENCH_DATA" in os.environ else None


def cycle_for(path: Path, seconds: float) -> float:
    """Claims 100 rows and ends them, a commit each, again and again; returns messages a second."""
    connection = connect(path)
    spent, done = 0.0, 0
    while spent < seconds:
        fill(path, ROWS * CYCLES)
        begin = time.perf_counter()
        for _ in range(CYCLES):
            found = claim(connection, ROWS)
            end(connection, [(number, times) for number, _, times in found])
            done += len(found)
        spent += time.perf_counter() - begin
    return done / spent


if __name__ == "__main__":
    gc.freeze()
    print(cycle_for(Path(sys.argv[1]), float(sys.argv[2])))
