"""Calls of names through two services that are killed with -9: all answers fit one order of the calls."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
import time
from collections import defaultdict
from functools import partial

from tests.acceptance.crashes.conftest import APP, KEY, Start, kills_of, serving
from tests.acceptance.crashes.registers import Call, Kind, is_linearizable

CALLERS = 8
CALLS = 20
"""Calls of each caller with one name; then all go on to the next name, about at the same time."""
KINDS: tuple[Kind, ...] = ("PUT", "PUT", "POST", "DELETE", "GET", "GET", "GET", "GET")
QUEUE = "tasks"
SHARED = ("a", "b")
"""Values that several callers POST: a caller whose own value is stored gets 200."""


class Histories:
    """The calls with each name, and the number of answered calls."""

    def __init__(self) -> None:
        self.calls: defaultdict[str, list[Call]] = defaultdict(list)

    def __len__(self) -> int:
        return sum(map(len, list(self.calls.values())))


def call_once(port: int, name: str, kind: Kind, value: str | None) -> Call | None:
    """Makes a call; returns None if it had no effect and returned no value."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.connect()
    except OSError:
        return None  # The service is down.
    began = time.monotonic()
    try:
        headers = {"Authorization": f"Application {KEY}", "Content-Type": "text/plain"}
        path = f"/v1/{APP}/{QUEUE}/named/{name}?raw=1" if kind == "GET" else f"/v1/{APP}/{QUEUE}/named/{name}"
        connection.request(kind, path, None if value is None else value.encode(), headers)
        reply = connection.getresponse()
        body = reply.read().decode()
    except (OSError, http.client.HTTPException):
        return None if kind == "GET" else Call(kind, value, began)
    finally:
        connection.close()
    ended = time.monotonic()
    if reply.status == 503:
        return None if kind == "GET" or json.loads(body)["outcome"] == "none" else Call(kind, value, began)
    assert reply.status in {"PUT": {200}, "POST": {200, 201, 409}, "DELETE": {200}, "GET": {200, 404}}[kind], body
    read_value = body if kind == "GET" and reply.status == 200 else None
    return Call(kind, value, began, ended, reply.status, read_value)


def call_often(ports: list[int], number: int, seed: int, all_calls: Histories, ended: threading.Event) -> None:
    rng = random.Random(f"{seed} {number}")
    for turn in itertools.count():
        if ended.is_set():
            return
        kind = rng.choice(KINDS)
        own = f"{number}-{turn}"
        value = {"PUT": own, "POST": rng.choice((*SHARED, own))}.get(kind)
        name = f"n{turn // CALLS}"
        done = call_once(rng.choice(ports), name, kind, value)
        if done is None:
            time.sleep(0.02)
        else:
            all_calls.calls[name].append(done)


def run(start: Start, *, kills: int, seed: int) -> None:
    """Calls named messages while services are killed; the history of each name must be linearizable."""
    histories = Histories()
    with serving(start) as services:
        services.client.create_queue(QUEUE, partitions=2)
        ports = list(services.running)
        calls = [partial(call_often, ports, number, seed, histories) for number in range(CALLERS)]
        services.kill_often(calls, histories, kills=kills, rng=random.Random(seed))
    wrong = [name for name, calls in histories.calls.items() if not is_linearizable(calls)]
    assert wrong == [], f"{len(wrong)} of {len(histories.calls)} histories, {len(histories)} calls, seed {seed}"


@kills_of(2, 30)
def test_in_order(start: Start, kills: int, seed: int) -> None:
    """Whatever a service was doing when it died: each name has had one value at a time, and every answer shows it."""
    run(start, kills=kills, seed=seed)
