"""A move while the service that carries it out is killed with -9: every message arrives once, and in order."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack

import pytest

from queuey.client import Client, Outgoing
from tests.acceptance.crashes.conftest import APP, KEY, PATIENT, Start
from tests.servers.served import free_port

PARTITIONS = 3


def everything(client: Client, queue: str, partition: int, wanted: int) -> list[str]:
    """The bodies of a partition, once as many are shown as must be there."""
    end = time.monotonic() + 60
    while True:
        found = [str(message.body) for message in client.read_all(queue, partitions=[partition], since=0)]
        if len(found) >= wanted or time.monotonic() > end:
            return found
        time.sleep(0.2)


def run(start: Start, *, messages: int, kills: int, seed: int) -> None:
    """Kills the service again and again while it moves messages, then compares what is where."""
    rng, port = random.Random(seed), free_port()
    with ExitStack() as stack:
        running = stack.enter_context(start(port))
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
            running = stack.enter_context(start(port))
        move = moving.wait(3600)
        assert (move.state, move.left) == ("done", 0)
        for partition in range(1, PARTITIONS + 1):
            mine = [body for body in bodies if int(body) % PARTITIONS + 1 == partition]
            assert everything(client, target, partition, len(mine)) == mine
            assert everything(client, source, partition, 0) == []
        assert client.job_queue(source).receive(10) == []


def test_killed_services(start: Start) -> None:
    """Whatever the service was doing when it died, its successor goes on: nothing is lost or doubled."""
    run(start, messages=4_000, kills=1, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(("start", "messages"), [("sqlite", 100_000), ("cassandra", 20_000)], indirect=["start"])
def test_many_killed_services(start: Start, messages: int) -> None:
    """Many messages, and ten kills at new moments each time. On Cassandra each message costs some requests."""
    run(start, messages=messages, kills=10, seed=random.randrange(1 << 30))
