"""A move while the service that carries it out is killed with -9: every message arrives once, and in order."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from queuey.client import Client, Outgoing, RetryPolicy
from queuey.storage import Store, cassandra, sqlite
from queuey.web.credentials.application_keys import digest_of
from tests.servers import keyspaces
from tests.servers.served import Served, free_port

APP, KEY = "acme", "f" * 64
PARTITIONS = 3
PATIENT = RetryPolicy(rounds=1000, base=0.05, cap=0.5, retry_after_cap=1, deadline=300, cool_down=0.1)
"""Goes on until the service is back."""
W = 1
"""Seconds of the write deadline on Cassandra."""


@pytest.fixture(params=["sqlite", "cassandra"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """How a service is started; all share a store."""
    options: list[str] = []
    store: Store
    if request.param == "cassandra":
        url = keyspaces.make(request.getfixturevalue("cassandra"))
        options = ["--store", url, "--consistency-strong", f"deadline={W},delay={W + 1.5}"]
        store = cassandra.open_store(url)
    else:
        store = sqlite.open_store(tmp_path / "data")
    store.create_application(APP)
    store.add_key(APP, digest_of(KEY))
    store.close()
    return options


def everything(client: Client, queue: str, partition: int, wanted: int) -> list[str]:
    """The bodies of a partition, once as many are shown as must be there."""
    end = time.monotonic() + 60
    while True:
        found = [str(message.body) for message in client.read_all(queue, partitions=[partition], since=0)]
        if len(found) >= wanted or time.monotonic() > end:
            return found
        time.sleep(0.2)


def run(options: list[str], place: Path, *, messages: int, kills: int, seed: int) -> None:
    """Kills the service again and again while it moves messages, then compares what is where."""
    rng, port = random.Random(seed), free_port()
    with ExitStack() as stack:
        running = stack.enter_context(Served(place, options, port=port))
        client = stack.enter_context(
            Client(f"http://127.0.0.1:{port}", key=KEY, application=APP, retry=PATIENT, timeout=30)
        )
        source, target = (client.create_queue(partitions=PARTITIONS).name for _ in range(2))
        bodies = [f"{number}" for number in range(messages)]
        for _ in client.send_iter(source, (Outgoing(body, partition=int(body) % PARTITIONS + 1) for body in bodies)):
            pass
        moving = client.move(source, target)
        for _ in range(kills):
            before = client.info(target).count
            while client.info(target).count == before and moving.show().ended is None:
                time.sleep(0.02)
            time.sleep(rng.random() * 0.2)  # the moment of the kill is the input
            running.kill()
            running = stack.enter_context(Served(place, options, port=port))
        move = moving.wait(600)
        assert (move.state, move.left) == ("done", 0)
        for partition in range(1, PARTITIONS + 1):
            mine = [body for body in bodies if int(body) % PARTITIONS + 1 == partition]
            assert everything(client, target, partition, len(mine)) == mine
            assert everything(client, source, partition, 0) == []
        assert client.job_queue(source).receive(10) == []


def test_killed_services(options: list[str], tmp_path: Path) -> None:
    """Whatever the service was doing when it died, its successor goes on: nothing is lost or doubled."""
    run(options, tmp_path, messages=6_000, kills=1, seed=1)


@pytest.mark.slow
def test_many_killed_services(options: list[str], tmp_path: Path) -> None:
    """A hundred thousand messages, and ten kills at new moments each time."""
    run(options, tmp_path, messages=100_000, kills=10, seed=random.randrange(1 << 30))
