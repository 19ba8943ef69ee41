"""A move while its service is killed with -9: every message arrives once, and in order."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack
from itertools import chain
from typing import Literal

import pytest

from queuey.client import Client, Outgoing
from tests.acceptance.crashes.conftest import Start, serving
from tests.waiting import until

Kind = Literal["plain", "dedup"]
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


def run(start: Start, *, messages: int, kills: int, seed: int, kind: Kind = "plain", to: Kind = "plain") -> None:
    """Kills the service again and again while it moves messages, then compares both queues.

    If one of the queues is a dedup queue, each body has two messages.
    """
    rng = random.Random(seed)
    with serving(start, 1) as services, ExitStack() as stack:
        client, ((port, running),) = services.client, services.running.items()
        source, target = (client.create_queue(partitions=PARTITIONS, kind=each).name for each in (kind, to))
        copies = 1 + ("dedup" in {kind, to})
        bodies = [f"{number}" for number in range(messages // copies)]
        places = [None if kind == "dedup" else int(body) % PARTITIONS + 1 for body in bodies * copies]
        every = (Outgoing(body, partition=place) for body, place in zip(bodies * copies, places, strict=True))
        for _ in client.send_iter(source, every):
            pass
        waiting = bodies[:50] if to == "dedup" else []
        if waiting:
            client.send_many(target, waiting)
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
        arrived = bodies if kind == "dedup" else bodies * copies
        moved = {place: read_all_bodies(client, target, place) for place in range(1, PARTITIONS + 1)}
        assert Counter(chain(*moved.values())) == Counter(arrived + waiting)
        assert claim_and_ack_all(client, source) == {}
        if copies == 1:
            assert all(
                moved[place] == [body for body in bodies if int(body) % PARTITIONS + 1 == place] for place in moved
            )
            assert not any(read_all_bodies(client, source, place) for place in moved)
        assert claim_and_ack_all(client, target) == Counter(bodies if to == "dedup" else arrived)


def test_killed_services(start: Start) -> None:
    """Whatever the service was doing when it died, its successor goes on: nothing is lost or doubled."""
    run(start, messages=4_000, kills=1, seed=1)


KINDS = [("dedup", "dedup"), ("dedup", "plain"), ("plain", "dedup")]


@pytest.mark.parametrize("start", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("kind", "to"), KINDS)
def test_dedup_queues(start: Start, kind: Kind, to: Kind) -> None:
    """The same where one of the queues is a dedup queue: copies of one body stay one."""
    run(start, messages=4_000, kills=1, seed=2, kind=kind, to=to)


@pytest.mark.slow
@pytest.mark.parametrize(("start", "messages"), [("sqlite", 100_000), ("cassandra", 20_000)], indirect=["start"])
def test_many_killed_services(start: Start, messages: int) -> None:
    """Many messages, and ten kills at new moments each time. On Cassandra each message costs some requests."""
    run(start, messages=messages, kills=10, seed=random.randrange(1 << 30))


@pytest.mark.slow
@pytest.mark.parametrize(("start", "messages"), [("sqlite", 40_000), ("cassandra", 8_000)], indirect=["start"])
@pytest.mark.parametrize(("kind", "to"), KINDS)
def test_many_kills_with_dedup_queues(start: Start, messages: int, kind: Kind, to: Kind) -> None:
    """The same with dedup queues."""
    run(start, messages=messages, kills=5, seed=random.randrange(1 << 30), kind=kind, to=to)
