"""``qdo curator drain`` and ``fill`` as processes that are killed with -9: each message is moved once, in order."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from queuey.client import Client
from tests.qdo.curator.conftest import CuratorQueue, bodies
from tests.servers.served import Served, environment
from tests.waiting import PATIENCE_SECONDS

LARGE_DRAIN_SECONDS = 400.0
"""Limit for 100,000 items on a busy machine."""


@contextlib.contextmanager
def started(served: Served, curator: CuratorQueue, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    variables = environment(QUEUEY_PROFILE=str(served.profile_path), QDO_COORDINATION=curator.url)
    command = [sys.executable, "-m", "qdo", "curator", *arguments]
    with subprocess.Popen(
        command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def kill_once(
    served: Served, curator: CuratorQueue, arguments: tuple[str, ...], moved: Callable[[], int], rng: random.Random
) -> None:
    """Starts a command and kills it soon after it has moved something; it may have ended by then."""
    before = moved()
    with started(served, curator, *arguments) as process:
        end = time.monotonic() + PATIENCE_SECONDS
        while moved() == before and process.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.005)
        time.sleep(rng.random() * 0.1)  # the moment of the kill is random


def complete(served: Served, curator: CuratorQueue, *arguments: str, timeout_seconds: float = PATIENCE_SECONDS) -> None:
    with started(served, curator, *arguments) as process:
        out, err = process.communicate(timeout=timeout_seconds)
    assert process.returncode == 0, (out, err)


def drain_with_kills(
    curator: CuratorQueue, served: Served, client: Client, *, count: int, kills: int, seed: int
) -> None:
    rng, queue = random.Random(seed), client.create_queue(partitions=1).name
    expected = [f"{number}" for number in range(count)]
    curator.put_many(body.encode() for body in expected)
    arguments = ("drain", curator.path, queue, "--lock-path", curator.lock_path)
    for _ in range(kills):
        kill_once(served, curator, arguments, lambda: count - curator.count(), rng)
    complete(served, curator, *arguments)
    assert bodies(client, queue) == expected
    assert (curator.names(), curator.state_nodes()) == ([], [])


def fill_with_kills(
    curator: CuratorQueue, served: Served, client: Client, *, count: int, kills: int, seed: int
) -> None:
    """Fills a queue with killed fills, whose claims are ended as after a minute, and compares the result."""
    rng, queue = random.Random(seed), client.create_queue(partitions=1).name
    expected = [f"{number}" for number in range(count)]
    client.send_many(queue, expected)
    arguments = ("fill", queue, curator.path)
    for _ in range(kills):
        kill_once(served, curator, arguments, curator.count, rng)
        client.job_queue(queue).release_all()
    complete(served, curator, *arguments)
    assert sorted(int(body) for body in curator.messages()) == list(range(count))
    assert curator.state_nodes() == []
    assert client.job_queue(queue).size().size == 0


def test_a_killed_drain(curator: CuratorQueue, served: Served, client: Client) -> None:
    """After a killed drain the next one moves the rest, in order."""
    drain_with_kills(curator, served, client, count=1_500, kills=1, seed=1)


def test_a_killed_fill(curator: CuratorQueue, served: Served, client: Client) -> None:
    """After a killed fill the next one moves the rest."""
    fill_with_kills(curator, served, client, count=1_500, kills=1, seed=1)


@pytest.mark.slow
def test_many_killed_drains(curator: CuratorQueue, served: Served, client: Client) -> None:
    """The same for many drains, killed at random moments."""
    drain_with_kills(curator, served, client, count=20_000, kills=30, seed=random.randrange(1 << 30))


@pytest.mark.slow
def test_many_killed_fills(curator: CuratorQueue, served: Served, client: Client) -> None:
    """The same for many fills, killed at random moments."""
    seed = random.randrange(1 << 30)
    fill_with_kills(curator, served, client, count=20_000, kills=30, seed=seed)


@pytest.mark.slow
def test_claims_of_a_killed_fill_end_by_themselves(curator: CuratorQueue, served: Served, client: Client) -> None:
    """The next fill waits for the claims of a killed one, and moves their messages."""
    queue = client.create_queue(partitions=1).name
    client.send_many(queue, [f"{number}" for number in range(300)])
    claimed = client.job_queue(queue).receive(100, ttl=40)
    assert len(claimed) == 100
    complete(served, curator, "fill", queue, curator.path)
    assert sorted(int(body) for body in curator.messages()) == list(range(300))
    assert client.job_queue(queue).size().size == 0


@pytest.mark.slow
def test_a_hundred_thousand_items(curator: CuratorQueue, served: Served, client: Client) -> None:
    """More items than a Java client can list all arrive, in order."""
    queue = client.create_queue(partitions=1).name
    count = 100_000
    curator.put_many(f"{number}".encode() for number in range(count))
    complete(served, curator, "drain", curator.path, queue, timeout_seconds=LARGE_DRAIN_SECONDS)
    at = 0
    for message in client.read_all(queue, since=0):
        assert message.body == f"{at}"
        at += 1
    assert (at, curator.names(), curator.state_nodes()) == (count, [], [])
