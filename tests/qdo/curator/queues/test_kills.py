"""Consumers in both languages on three servers, which are killed or lose their sessions with messages in hand."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from qdo.curator import DistributedQueue
from qdo.curator.nodes import encode
from tests.qdo.curator.queues.java_curator import JavaCurator, build
from tests.qdo.curator.queues.queue_nodes import PATIENCE, Nodes, RecordedCalls, expire, until
from tests.servers.plugin import ZooKeeperEnsemble, unique_name
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

SHORT = 6.0
"""Session timeout in seconds for sessions that are to end soon."""


@pytest.fixture
def nodes(zookeeper_nodes: ZooKeeperEnsemble) -> Iterator[Nodes]:
    """A place on three servers."""
    nodes = Nodes(zookeeper_nodes.connect_string, f"/{unique_name('curator')}")
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the Java program."""
    return build(tmp_path_factory.mktemp("java"))


class Program:
    """A Python consumer in a process of its own."""

    def __init__(self, nodes: Nodes, pause: float) -> None:
        arguments = [nodes.hosts, nodes.path, nodes.lock_path, str(SHORT), str(pause)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.qdo.curator.queues.program", *arguments], stdout=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(line.rstrip("\n") for line in self._process.stdout)

    def kill(self) -> None:
        """Kills the process, and waits until its output has been read."""
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()


def put(nodes: Nodes, *messages: str) -> None:
    client = nodes.client()
    for message in messages:
        client.create(f"{nodes.path}/queue-", encode([message.encode()]), sequence=True, makepath=True)


def _has_worked(program: Program, client: Any, nodes: Nodes) -> bool:  # noqa: ANN401 - kazoo's
    return len(program.lines) > 10 or not client.get_children(nodes.path)


def _has_more(heard: RecordedCalls, before: int, client: Any, nodes: Nodes) -> bool:  # noqa: ANN401 - kazoo's
    return len(heard) > before + 20 or not client.get_children(nodes.path)


def _is_lost(queue: DistributedQueue[str]) -> bool:
    return queue.state == "lost"


def test_python_takes_what_a_killed_curator_had(nodes: Nodes, command: list[str], heard: RecordedCalls) -> None:
    """Python gets the message of a killed Curator within the session timeout, although nothing else changes."""
    put(nodes, "hold")
    java = JavaCurator(command, nodes.hosts, SHORT)
    try:
        java.open("queue", nodes.path, nodes.lock_path, consume=True)
        assert java.next_message() == "hold"
        with nodes.opened(nodes.builder(nodes.client(), heard).build_queue()) as queue:
            put(nodes, "m1")
            assert heard.wait(1) == ["m1"]
            java.close()
            assert heard.wait(2) == ["m1", "hold"]
            until(lambda: not queue.message_count())
    finally:
        java.close()


def test_curator_takes_what_a_killed_python_had(nodes: Nodes, command: list[str]) -> None:
    """Curator gets the message after the dead session's end and a change of the queue, as among its own consumers."""
    put(nodes, "m0")
    program = Program(nodes, PATIENCE)
    java = JavaCurator(command, nodes.hosts)
    client = nodes.client()
    try:
        until(lambda: program.lines == ["begun m0"])
        java.open("queue", nodes.path, nodes.lock_path, consume=True)
        put(nodes, "m1")
        assert java.next_message() == "m1"
        program.kill()
        until(lambda: not client.get_children(nodes.lock_path))
        put(nodes, "m2")
        assert sorted([java.next_message(), java.next_message()]) == ["m0", "m2"]
    finally:
        program.kill()
        java.close()


def test_no_message_is_lost_among_kills(nodes: Nodes) -> None:
    """Every message is handled completely at least once while consumers are killed repeatedly."""
    random.seed(7)
    messages = [f"m{number}" for number in range(300)]
    put(nodes, *messages)
    client = nodes.client()
    programs = [Program(nodes, 0.05) for _ in range(3)]
    lines: list[str] = []
    try:
        for _ in range(6):
            victim = programs.pop(random.randrange(3))
            until(partial(_has_worked, victim, client, nodes))
            victim.kill()
            lines += victim.lines
            programs.append(Program(nodes, 0.05))
        until(lambda: not client.get_children(nodes.path))
    finally:
        for program in programs:
            program.kill()
            lines += program.lines
    begun = Counter(line.removeprefix("begun ") for line in lines if line.startswith("begun "))
    done = {line.removeprefix("done ") for line in lines if line.startswith("done ")}
    assert done == set(messages)
    assert sum(begun.values()) - len(messages) <= 6


def test_no_message_is_lost_among_ended_sessions(nodes: Nodes) -> None:
    """Every message is handled while sessions end, and twice only if it was in hand then."""
    messages = [f"m{number}" for number in range(200)]
    heard = RecordedCalls()
    put(nodes, *messages)
    observer = nodes.client()
    ends = 0
    while observer.get_children(nodes.path):
        client = nodes.client()
        queue = nodes.builder(client, heard, threads=3).build_queue()
        with nodes.opened(queue):
            until(partial(_has_more, heard, len(heard), observer, nodes))
            expire(client)
            ends += 1
            until(partial(_is_lost, queue))
    assert set(heard) == set(messages)
    assert len(heard) <= len(messages) + 3 * ends


def test_the_leader_is_killed(nodes: Nodes, zookeeper_nodes: ZooKeeperEnsemble, heard: RecordedCalls) -> None:
    """Consumers keep their sessions on the remaining servers, and handle each message."""
    messages = [f"m{number}" for number in range(150)]
    consumers = [nodes.builder(nodes.client(), heard).build_queue() for _ in range(2)]
    with nodes.opened(consumers[0]), nodes.opened(consumers[1]):
        put(nodes, *messages[:50])
        heard.wait(20)
        leader = zookeeper_nodes.leader
        assert leader is not None
        leader.kill()
        until(lambda: all(consumer.state == "started" for consumer in consumers) and zookeeper_nodes.leader)
        put(nodes, *messages[50:])
        until(lambda: set(heard) == set(messages))
        until(lambda: not consumers[0].message_count())
    assert all(consumer.state == "closed" for consumer in consumers)


def test_a_hundred_thousand_messages(nodes: Nodes, heard: RecordedCalls) -> None:
    """More items than Curator can list are consumed in order, while a producer and another consumer run."""
    client = nodes.client()
    client.ensure_path(nodes.path)
    for first in range(0, 100_000, 1000):
        transaction = client.transaction()
        for number in range(first, first + 1000):
            transaction.create(f"{nodes.path}/queue-", encode([b"%d" % number]), sequence=True)
        assert all(isinstance(made, str) for made in transaction.commit())
    with nodes.opened(nodes.builder(client, heard).build_queue()) as queue:
        for _ in range(100):
            queue.put("more")
        assert heard.wait(1000)[:1000] == [str(number) for number in range(1000)]
        with nodes.opened(nodes.builder(nodes.client(), heard, threads=4).build_queue()):
            heard.wait(3000)
        assert queue.flush_puts(PATIENCE)
    remaining = client.exists(nodes.path).children_count
    assert remaining == 100_100 - len(heard)
    assert len(set(heard)) == len(heard)
