"""Consumers in processes on three servers, which are killed with messages in hand."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from qdo.curator.nodes import encode
from tests.qdo.curator.queues.queue_nodes import Nodes, until
from tests.servers.plugin import ZooKeeperEnsemble, unique_name
from tests.servers.processes import ending

pytestmark = pytest.mark.slow

SHORT = 6.0
"""Session timeout in seconds for sessions that are to end soon."""
KILLS = 6


@pytest.fixture
def nodes(zookeeper_nodes: ZooKeeperEnsemble) -> Iterator[Nodes]:
    """A place on three servers."""
    nodes = Nodes(zookeeper_nodes.connect_string, f"/{unique_name('curator')}")
    try:
        yield nodes
    finally:
        nodes.close()


def test_no_message_is_lost_among_kills(nodes: Nodes, tmp_path: Path) -> None:
    """Every message is handled completely at least once while consumers are killed repeatedly."""
    rng, client, book = random.Random(7), nodes.client(), tmp_path / "book"
    messages = [f"m{number}" for number in range(300)]
    for message in messages:
        client.create(f"{nodes.path}/queue-", encode([message.encode()]), sequence=True, makepath=True)
    arguments = [nodes.hosts, nodes.path, nodes.lock_path, str(SHORT), "0.05"]
    with book.open("a") as out, ExitStack() as stack:

        def start() -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "tests.qdo.curator.queues.program", *arguments]
            return stack.enter_context(ending(subprocess.Popen(command, stdout=out)))

        consumers = [start() for _ in range(3)]
        for kill in range(1, KILLS + 1):
            until(lambda: len(book.read_text().splitlines()) > 20 * kill or not client.get_children(nodes.path))  # noqa: B023
            victim = rng.randrange(3)
            consumers[victim].kill()
            consumers[victim] = start()
        until(lambda: not client.get_children(nodes.path))
    lines = book.read_text().splitlines()
    begun = Counter(line.removeprefix("begun ") for line in lines if line.startswith("begun "))
    assert {line.removeprefix("done ") for line in lines if line.startswith("done ")} == set(messages)
    assert begun.total() - len(messages) <= KILLS
