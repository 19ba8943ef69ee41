"""Facades while services are killed with -9 again and again: every message that was answered is done, and no other."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.acceptance.crashes.conftest import kill_often
from tests.acceptance.facades.calls import Facade, Reply, settings_file
from tests.servers.served import Served, free_port

pytestmark = pytest.mark.slow

KILLS = 20
SETTINGS = """
[facades.mq]
prefix = "/mq"
redelivery = 2

[facades.rqms]
prefix = "/rqms"
"""
DRAINED = 300
"""Seconds within which everything is done after the last kill."""


class Log:
    """What was answered, and what was fetched and then done."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.fetched: set[str] = set()
        self.done: set[str] = set()


def insist(ports: list[int], ask: Callable[[int], Reply], *good: int) -> Reply:
    """Asks one service after the other until one of them answers."""
    end = time.monotonic() + DRAINED
    for port in itertools.cycle(ports):
        try:
            if (reply := ask(port)).status in good:
                return reply
            assert reply.status == 503, reply
        except (OSError, http.client.HTTPException):
            pass  # It was killed.
        assert time.monotonic() < end
        time.sleep(0.02)
    raise AssertionError("there is no service")


def call(method: str, path: str, body: bytes | None = None) -> Callable[[int], Reply]:
    """A request that any service can be asked."""
    return lambda port: Facade(port).call(method, path, body)


def post(ports: list[int], log: Log, name: str, ended: threading.Event) -> None:
    """Posts messages and items."""
    for number in itertools.count():
        text = f"{name}-{number:05}"
        insist(ports, call("POST", "/mq/jobs/messages", text.encode()), 201)
        insist(ports, call("POST", f"/rqms/items?id={text}", json.dumps(text).encode()), 201)
        log.stored.append(text)
        if ended.is_set():
            return


def read_mq(ports: list[int], log: Log, ended: threading.Event) -> None:
    """Fetches and deletes messages until there are none left."""
    while True:
        reply = insist(ports, call("GET", "/mq/jobs/messages"), 200, 204)
        if reply.status == 200:
            log.fetched.add(reply.body.decode())
            insist(ports, call("DELETE", f"/mq/jobs/messages/{reply.headers['X-Message-Id']}"), 202)
            log.done.add(reply.body.decode())
        elif ended.is_set():
            return


def read_rqms(ports: list[int], log: Log, ended: threading.Event) -> None:
    """Fetches and removes items until there are none left."""
    while True:
        reply = insist(ports, call("GET", "/rqms/items?count=3&time=2"), 200)
        items = json.loads(reply.body)["items"]
        for item in items:
            log.fetched.add(item["value"])
            # The answer before may have been lost, or the lock be over: then it is 409.
            if insist(ports, call("DELETE", "/rqms/items", item["ticket"].encode()), 200, 409).status == 200:
                log.done.add(item["value"])
        if not items and ended.is_set():
            return


def test_many_kills(tmp_path: Path) -> None:
    """Whatever a service was doing when it died: what was answered is fetched, and nothing that nobody sent."""
    options, jobs, items = settings_file(tmp_path, SETTINGS), Log(), Log()
    writers, ended = [Log() for _ in range(2)], threading.Event()
    with ExitStack() as stack:
        ports = [free_port(), free_port()]

        def start(port: int) -> Served:
            return Served(tmp_path, options, port=port)

        running = {port: stack.enter_context(start(port)) for port in ports}
        calls = [
            *(partial(post, ports, log, f"w{number}") for number, log in enumerate(writers)),
            partial(read_mq, ports, jobs),
            partial(read_rqms, ports, items),
        ]
        rng = random.Random(random.randrange(1 << 30))
        kill_often(stack, start, running, calls, writers[0].stored, kills=KILLS, rng=rng)
        ended.set()
        end = time.monotonic() + DRAINED
        with running[ports[0]].client() as client:
            # What a lost answer had is delivered again after some seconds.
            while any(client.info(name).count for name in ("jobs", "items")):
                assert time.monotonic() < end
                read_mq(ports, jobs, ended)
                read_rqms(ports, items, ended)
        stored = {text for log in writers for text in log.stored}
        assert (jobs.fetched, items.fetched) == (stored, stored)
        assert jobs.done == stored
