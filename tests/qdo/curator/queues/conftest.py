"""ZooKeeper nodes for the queue of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.proxy import Proxy
from tests.qdo.curator.queues.queue_nodes import Kazoo, Nodes, RecordedCalls
from tests.servers.plugin import ZooKeeper, unique_name


@pytest.fixture
def nodes(zookeeper: ZooKeeper) -> Iterator[Nodes]:
    """A place on the shared server, which is removed with the server's data."""
    nodes = Nodes(zookeeper.connect_string, f"/{unique_name('curator')}")
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def client(nodes: Nodes) -> Kazoo:
    return nodes.client()


@pytest.fixture
def proxy(nodes: Nodes) -> Proxy:
    """A network that can be cut."""
    return nodes.proxy()


@pytest.fixture
def heard() -> Iterator[RecordedCalls]:
    """A consumer whose held calls are released at the end."""
    heard = RecordedCalls()
    yield heard
    heard.released.set()
