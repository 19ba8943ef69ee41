"""A connection whose cluster gets other addresses. No Cassandra runs."""

from __future__ import annotations

import math
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from queuey.storage.cassandra.driver import connection
from queuey.storage.cassandra.driver.connection import Driver
from queuey.storage.cassandra.driver.requests import Statement
from queuey.storage.cassandra.options import CassandraOptions, DataCentreTarget
from queuey.storage.deadlines import Deadline
from tests.waiting import until


class Network:
    """Addresses that the name ``store`` stands for, and those of the nodes that answer."""

    def __init__(self) -> None:
        self.named = self.answering = ["10.0.0.1", "10.0.0.2"]
        self.clusters: list[FakeCluster] = []

    def resolve(self, *_: object, **__: object) -> list[Any]:
        """Answers as ``socket.getaddrinfo`` does."""
        return [(0, 0, 0, "", (address, 9042)) for address in self.named]

    def connect(self, *_: object) -> FakeCluster:
        """Makes a cluster that knows the addresses of this moment, as the driver does."""
        self.clusters.append(FakeCluster(self))
        return self.clusters[-1]


class FakeCluster:
    """What the connection uses of the driver's cluster."""

    def __init__(self, network: Network) -> None:
        self._network, self._addresses = network, network.named
        self.ended = False
        self.metadata = SimpleNamespace(all_hosts=self._hosts, keyspaces={"queuey": None})

    def _hosts(self) -> list[Any]:
        answering = self._network.answering
        return [SimpleNamespace(address=one, datacenter="dc", is_up=one in answering) for one in self._addresses]

    def register_listener(self, _: object) -> None:
        """Nobody is told."""

    def connect(self) -> Any:  # noqa: ANN401 - a session
        """Connects if a node answers."""
        if not any(host.is_up for host in self._hosts()):
            raise OSError("nobody answers")
        return SimpleNamespace(cluster=self, set_keyspace=lambda _: None)

    def shutdown(self) -> None:
        """Ends it."""
        self.ended = True


def test_names_that_stand_for_other_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all nodes are gone, the hosts' names are looked up again; the former connection is ended."""
    network = Network()
    monkeypatch.setattr(socket, "getaddrinfo", network.resolve)
    monkeypatch.setattr(connection, "new_cluster", network.connect)
    monkeypatch.setattr(connection, "FastPath", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(connection, "RETRY_EVERY", 0.01)
    driver = Driver(DataCentreTarget(("store",), "queuey", 9042), CassandraOptions(), deadline=Deadline(math.inf))
    try:
        assert driver.ready(10)
        first = network.clusters[0]
        network.answering = ["10.0.0.2"]
        network.named = ["10.0.0.2", "10.0.0.3"]
        assert not driver._has_moved()
        network.answering = []
        network.named = ["10.0.0.7"]
        until(lambda: "nobody answers" in (driver.problem() or ""))
        assert not first.ended
        network.answering = ["10.0.0.7"]
        until(lambda: driver.problem() is None)
        assert [host.address for host in driver.hosts()] == ["10.0.0.7"]
        until(lambda: first.ended)
        assert [one.ended for one in network.clusters] == [*[True] * (len(network.clusters) - 1), False]
        network.answering = []
        assert not driver._has_moved()
    finally:
        driver.close()
    assert network.clusters[-1].ended


def test_reserved_words_as_keyspaces() -> None:
    """A keyspace may have any name, also one that CQL reserves."""
    cql = Statement("SELECT a FROM queues WHERE b = ?").within("order")
    assert cql == 'SELECT a FROM "order".queues WHERE b = ?'
