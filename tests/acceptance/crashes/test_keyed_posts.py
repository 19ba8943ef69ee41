"""Posts with idempotency keys while services are killed with -9: each message is stored once, under its answered id."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from functools import partial

from queuey.client import Client, Outgoing
from tests.acceptance.crashes.conftest import APP, KEY, PATIENT_RETRY, Start, kills_of, serving
from tests.waiting import until

QUEUE, PARTITIONS, CALLERS = "orders", 3, 4
POST_INTERVAL = 0.03
"""Seconds between a caller's posts, about as long as a post: some are always running, and services can start."""
Receipts = dict[str, tuple[int, str]]


def post_all(url: list[str], caller: int, count: int, stored: Receipts) -> None:
    with Client(url, key=KEY, application=APP, retry=PATIENT_RETRY, timeout=20) as client:
        for number in range(count):
            bodies = [f"{caller}:{number}:{n}" for n in range(1 if number % 3 else 5)]
            messages = [Outgoing(body, partition=n % PARTITIONS + 1) for n, body in enumerate(bodies)]
            for body, receipt in zip(bodies, client.send_many(QUEUE, messages), strict=True):
                stored[body] = receipt.partition, receipt.id
            time.sleep(POST_INTERVAL)


def post_often(url: list[str], caller: int, stored: Receipts, ended: threading.Event) -> None:
    number = 0
    while not ended.is_set():
        post_all(url, caller * 10_000 + number, 6, stored)
        number += 1


def wait_until_all_shown(client: Client, stored: Receipts) -> dict[str, list[tuple[int, str]]]:
    """Returns the position of each body, once as many are shown as must be stored."""
    places: dict[str, list[tuple[int, str]]] = {}
    for partition in range(1, PARTITIONS + 1):
        wanted = Counter(place for place, _ in stored.values())[partition]
        there = partial(client.read_all, QUEUE, partitions=[partition], since=0)
        until(lambda there=there, wanted=wanted: len(list(there())) >= wanted)  # type: ignore[misc]
        for message in there():
            places.setdefault(str(message.body), []).append((message.partition, message.id))
    return places


def run(start: Start, *, kills: int, seed: int) -> None:
    """Posts with idempotency keys while services are killed; each body must be stored once, where its receipt says."""
    with serving(start) as services:
        services.client.create_queue(QUEUE, partitions=PARTITIONS)
        stored: Receipts = {}
        calls = [partial(post_often, services.urls, caller, stored) for caller in range(CALLERS)]
        services.kill_often(calls, stored, kills=kills, rng=random.Random(seed))
        assert wait_until_all_shown(services.client, stored) == {body: [place] for body, place in stored.items()}


@kills_of(2, 40)
def test_killed_services(start: Start, kills: int, seed: int) -> None:
    """Whatever a service was doing when it died: what was answered is there, once, and nothing else."""
    run(start, kills=kills, seed=seed)
