"""A real ZooKeeper server and a real service, with queues of the test's own on both."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator

import pytest

from qdo.cli import main
from qdo.curator.nodes import decode, encode
from queuey.client import AsyncClient, Client
from tests.commands import Run, make_runner
from tests.qdo.cli.conftest import client, served
from tests.qdo.contract.zookeeper import kazoo_client
from tests.qdo.curator.queues.queue_nodes import Kazoo
from tests.servers.plugin import ZooKeeper, unique_name
from tests.servers.served import Served

__all__ = ["client", "served"]


class CuratorQueue:
    """A queue in ZooKeeper, as other programs fill and see it.

    Args:
        kazoo: A client of kazoo.
        hosts: The addresses of the servers.
    """

    def __init__(self, kazoo: Kazoo, hosts: str) -> None:
        self.kazoo = kazoo
        self.root = f"/{unique_name('curator')}"
        self.path = "/queues/orders"
        self.lock_path = "/locks/orders"
        self.url = f"zookeeper://{hosts}{self.root}"
        kazoo.ensure_path(self.root + self.path)
        kazoo.ensure_path(self.root + self.lock_path)

    def put(self, *messages: bytes, prefix: str = "queue-") -> str:
        return self.put_raw(encode(messages), prefix)

    def put_raw(self, data: bytes, prefix: str = "queue-") -> str:
        path = self.kazoo.create(f"{self.root}{self.path}/{prefix}", data, sequence=True)
        return str(path.rpartition("/")[2])

    def put_many(self, bodies: Iterable[bytes]) -> None:
        remaining = iter(bodies)
        while chunk := list(itertools.islice(remaining, 1000)):
            transaction = self.kazoo.transaction()
            for body in chunk:
                transaction.create(f"{self.root}{self.path}/queue-", encode([body]), sequence=True)
            assert all(isinstance(made, str) for made in transaction.commit())

    def names(self) -> list[str]:
        return sorted(self.kazoo.get_children(self.root + self.path))

    def count(self) -> int:
        return int(self.kazoo.exists(self.root + self.path).children_count)

    def messages(self) -> list[bytes]:
        found = [self.kazoo.get(f"{self.root}{self.path}/{name}")[0] for name in self.names()]
        return [body for data in found for body in decode(data)]

    def state_nodes(self) -> list[str]:
        return sorted(set(self.kazoo.get_children(f"{self.root}/queues")) - {"orders"})


@pytest.fixture
def curator(zookeeper: ZooKeeper) -> Iterator[CuratorQueue]:
    """An empty queue in a chroot of the test's own, which is removed with the server's data."""
    with kazoo_client(zookeeper.connect_string) as kazoo:
        yield CuratorQueue(kazoo, zookeeper.connect_string)


@pytest.fixture
def queue(client: Client) -> str:
    """A new queue of Queuey, with one partition."""
    return client.create_queue(partitions=1).name


@pytest.fixture
def run(served: Served, curator: CuratorQueue, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command as ``qdo <arguments>`` would."""
    for name in [name for name in os.environ if name.startswith(("QUEUEY_", "QDO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QUEUEY_PROFILE", str(served.profile_path))
    monkeypatch.setenv("QDO_COORDINATION", curator.url)
    return make_runner("qdo", main, monkeypatch)


def async_client(served: Served) -> AsyncClient:
    profile = served.profile
    return AsyncClient(profile.url, key=profile.key, application=profile.application)


def bodies(client: Client, queue: str) -> list[str]:
    return [str(message.body) for message in client.read_all(queue, partitions="*", since=0)]
