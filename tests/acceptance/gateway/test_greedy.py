"""One caller against the whole service, on the wire: its resources stay bounded, and another caller is served."""

from __future__ import annotations

import contextlib
import json
import re
import select
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.wire import JSON, Wire, post
from tests.servers.served import Served, run_queuey

MIB = 1 << 20
MEMORY = 24 * MIB
PAGE = 2 * MIB
OPTIONS = {"memory": MEMORY, "page-bytes": PAGE, "max-batch-bytes": 2 * MIB, "threads": 4, "wait-slots": 4}
TEST_TIMEOUT = 100.0
"""Timeout of a test in seconds; whatever it waits for comes long before."""
SLACK = 48 * MIB
"""Max growth of the process beyond ``memory``: its heap does not shrink, and connections have buffers."""


class Shop(NamedTuple):
    """A running service, another application's key, and a public queue that fills a page."""

    served: Served
    key: str
    queue: str

    def connect_other_application(self) -> Wire:
        wire = Wire(self.served)
        wire.key = self.key
        return wire


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A service with little memory for two applications."""
    options = [text for name, value in OPTIONS.items() for text in (f"--{name}", str(value))]
    with Served(tmp_path_factory.mktemp("greedy"), options) as served:
        done = run_queuey("app", "create", "other", "--data", str(served.data))
        key = re.search(r"[0-9a-f]{64}", done.stdout)
        assert key is not None, done.stdout
        with served.client() as client:
            queue = client.create_queue(type="public").name
            client.send_many(queue, ["x" * 250_000] * 7)
            client.send_many(queue, ["x" * 250_000] * 7)
        yield Shop(served, key[0], queue)
        assert "Traceback" not in served.output


@pytest.fixture
def wires() -> Iterator[list[Wire]]:
    """Collects connections, which are closed at the end."""
    opened: list[Wire] = []
    yield opened
    for wire in opened:
        wire.close()


def resident_bytes(served: Served) -> int:
    pids, total = [served.process.pid], 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            pids += map(int, task.read_text("ascii").split())
        [line] = [line for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines() if "VmRSS" in line]
        total += int(line.split()[1]) * 1024
    return total


def collect_statuses(wires: list[Wire], waiting: int = 0) -> Counter[int]:
    """Returns the statuses of the answers (0: none came) once at most this many are outstanding, or on timeout."""
    deadline = time.monotonic() + TEST_TIMEOUT
    sockets = [wire.socket for wire in wires]
    while len(sockets) - len(ready := select.select(sockets, [], [], 0)[0]) > waiting and time.monotonic() < deadline:
        time.sleep(0.02)
    counts = Counter({0: len(sockets) - len(ready)})
    for readable in ready:
        counts[int(readable.recv(12)[9:12] or b"0")] += 1
    return +counts


def check_served(shop: Shop) -> None:
    with shop.connect_other_application() as wire:
        body = json.dumps({"queues": [{"queue_name": shop.queue, "limit": 1}]}).ljust(100_000).encode()
        reply = wire.ask("POST /v1/queuey/_read", body, f"Content-Length: {len(body)}", JSON)
        assert reply.status == 200
        reply = wire.ask(f"GET /v1/queuey/{shop.queue}?limit=1")
        assert (reply.status, len(json.loads(reply.body)["messages"])) == (200, 1)
        assert wire.ask("GET /__lbheartbeat__").status == 200


@pytest.mark.parametrize("known", [True, False], ids=["application", "nobody"])
def test_bodies_one_byte_short(shop: Shop, wires: list[Wire], known: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Bodies that are almost there hold no more than one share, with a key or without one; the rest is 429."""
    check_served(shop)
    before = resident_bytes(shop.served)
    # No body of a caller without a key may be longer than one message.
    size = 2 * MIB if known else 250_000
    for _ in range(33 if known else 120):
        wire = Wire(shop.served)
        path = post(shop.queue) if known else "POST /v1/queuey/_read"
        key = f"Authorization: Application {wire.key}\r\n" if known else ""
        length = f"Content-Length: {size}\r\n"
        wire.socket.sendall(f"{path} HTTP/1.1\r\nHost: x\r\n{key}{JSON}\r\n{length}\r\n".encode())
        wires.append(wire)
        wire.socket.settimeout(1)
        with contextlib.suppress(OSError):  # refused while it is sent
            wire.socket.sendall(b" " * (size - 1))
    share = MEMORY * 2 // 3 // size
    answered = collect_statuses(wires, share)
    assert set(answered) <= {0, 429}
    assert 0 < answered[0] <= share
    check_served(shop)
    assert resident_bytes(shop.served) < before + MEMORY + SLACK


def test_answers_that_nobody_reads(shop: Shop, wires: list[Wire]) -> None:
    """A client that requests pages and reads none of them holds its share of memory; the others read on."""
    check_served(shop)
    before = resident_bytes(shop.served)
    wires += [Wire(shop.served).send(f"GET /v1/queuey/{shop.queue}?limit=1000") for _ in range(60)]
    time.sleep(1)
    check_served(shop)
    assert resident_bytes(shop.served) < before + MEMORY + SLACK
    assert set(collect_statuses(wires)) <= {200, 429}
    check_served(shop)
