"""A move while its service is killed with -9: every message arrives once, and in order."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack

from queuey.client import Client, Outgoing
from tests.acceptance.crashes.conftest import Start, kills_of, serving
from tests.waiting import until

PARTITIONS = 3
CERTAIN = 4
"""Seconds after which a copy is never delivered beside its original, and reads by time show it."""


def read_all_bodies(client: Client, queue: str, partition: int) -> list[str]:
    return [str(message.body) for message in client.read_all(queue, partitions=[partition], since=0)]


def claim_and_ack_all(client: Client, queue: str) -> Counter[str]:
    bodies: Counter[str] = Counter()
    jobs = client.job_queue(queue)
    while claimed := jobs.receive(1000, ttl=3600):
        bodies.update(str(each.message.body) for each in claimed)
        assert jobs.ack(claimed) == []
    return bodies


def run(start: Start, *, messages: int, kills: int, seed: int) -> None:
    """Kills the service again and again while it moves messages, then compares both queues."""
    rng = random.Random(seed)
    with serving(start, 1) as services, ExitStack() as stack:
        client, ((port, running),) = services.client, services.running.items()
        source, target = (client.create_queue(partitions=PARTITIONS).name for _ in range(2))
        bodies = [f"{number}" for number in range(messages)]
        for _ in client.send_iter(source, (Outgoing(body, partition=int(body) % PARTITIONS + 1) for body in bodies)):
            pass
        moving = client.move(source, target)
        for _ in range(kills):
            before = client.info(target).count
            until(lambda n=before: client.info(target).count != n or bool(moving.show().ended), 300)  # type: ignore[misc]
            time.sleep(rng.random() * 0.2)  # the moment of the kill is the input
            running.kill()
            running = stack.enter_context(start(port))
        move = moving.wait(3600)
        assert (move.state, move.left) == ("done", 0)
        time.sleep(max(0.0, (move.ended or 0) + CERTAIN - time.time()))
        for place in range(1, PARTITIONS + 1):
            moved = [body for body in bodies if int(body) % PARTITIONS + 1 == place]
            assert read_all_bodies(client, target, place) == moved
            assert read_all_bodies(client, source, place) == []
        assert claim_and_ack_all(client, source) == {}
        assert claim_and_ack_all(client, target) == Counter(bodies)


@kills_of(1, 10)
def test_killed_services(start: Start, kills: int, seed: int) -> None:
    """Whatever the service was doing when it died, its successor goes on: nothing is lost or doubled."""
    run(start, messages=2_000 * (1 + kills), kills=kills, seed=seed)
