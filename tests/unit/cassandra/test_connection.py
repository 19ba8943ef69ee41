"""Tests of a connection whose cluster gets other addresses, without Cassandra."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.driver import connection
from queuey.storage.cassandra.driver.connection import Driver
from queuey.storage.cassandra.driver.requests import Statement
from queuey.storage.cassandra.driver.topology import RETRY_INTERVAL, new_cluster
from queuey.storage.cassandra.options import CassandraOptions, DataCentreTarget
from tests.replacing import replace_in
from tests.waiting import PATIENCE_SECONDS, until


def cluster_of(net: SimpleNamespace) -> Any:  # noqa: ANN401 - what the connection uses of the driver's cluster
    """Makes a cluster that knows the present addresses, as the driver does; records it in ``net.made``.

    Connecting fails if no node answers. Its shutdown is recorded in ``net.ended``.
    """

    def hosts(known: list[str] = net.named) -> list[Any]:
        return [SimpleNamespace(address=one, datacenter="dc", is_up=one in net.answering) for one in known]

    def connect() -> Any:  # noqa: ANN401 - a session
        if not any(host.is_up for host in hosts()):
            raise OSError("nobody answers")
        return SimpleNamespace(set_keyspace=lambda _: None)

    metadata = SimpleNamespace(
        all_hosts=hosts, keyspaces={"queuey": None}, get_replicas=lambda *key: net.computed.append(key)
    )
    opened = SimpleNamespace(metadata=metadata, connect=connect)
    opened.register_listener = lambda _: None
    opened.shutdown = lambda: net.ended.append(opened)
    net.made.append(opened)
    return opened


def test_names_that_stand_for_other_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all nodes are gone, the host names are resolved again, and the former connection is closed."""
    net = SimpleNamespace(
        named=["10.0.0.1", "10.0.0.2"], answering=["10.0.0.1", "10.0.0.2"], made=[], ended=[], computed=[]
    )
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (address, 9042)) for address in net.named]
    )
    with ExitStack() as stack:
        stack.enter_context(replace_in(connection, new_cluster, lambda *_: cluster_of(net)))
        stack.enter_context(replace_in(connection, RETRY_INTERVAL, 0.01))
        driver = Driver(DataCentreTarget(("store",), "queuey"), CassandraOptions())
        stack.callback(driver.close)
        assert driver.ready(10)
        until(lambda: net.computed[2:])  # Repeated: nodes come and go.
        net.answering, net.named = ["10.0.0.2"], ["10.0.0.2", "10.0.0.3"]
        assert not driver._has_moved()
        net.answering, net.named = [], ["10.0.0.7"]
        until(lambda: "nobody answers" in (driver.problem() or ""))
        assert net.made[0] not in net.ended
        net.answering = ["10.0.0.7"]
        until(lambda: driver.problem() is None)
        assert [host.address for host in driver.hosts()] == ["10.0.0.7"]
        assert net.ended == [*net.made[1:-1], net.made[0]]
        net.answering = []
        assert not driver._has_moved()
    assert net.ended[-1] is net.made[-1]


def test_nothing_is_sent_before_the_schema_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a connection is verified, and after a failed verification, requests of other calls are refused."""
    net = SimpleNamespace(named=["10.0.0.1"], answering=["10.0.0.1"], made=[], ended=[], computed=[])
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (address, 9042)) for address in net.named]
    )
    problems = ["the keyspace is newer than this program", None]
    refused: list[bool] = []

    def refuses(driver: Driver) -> bool:
        try:
            driver._require_session()
        except StoreUnavailable:
            return True
        return False

    def verify(driver: Driver) -> str | None:
        with ThreadPoolExecutor(1) as other:
            refused.append(other.submit(refuses, driver).result(PATIENCE_SECONDS))
        assert not refuses(driver)
        return problems.pop(0) if problems else "the keyspace is another one"

    with ExitStack() as stack:
        stack.enter_context(replace_in(connection, new_cluster, lambda *_: cluster_of(net)))
        stack.enter_context(replace_in(connection, RETRY_INTERVAL, 0.01))
        driver = Driver(DataCentreTarget(("store",), "queuey"), CassandraOptions(), verify=verify)
        stack.callback(driver.close)
        assert driver.ready(PATIENCE_SECONDS)
        assert not refuses(driver)
        net.answering = net.named = ["10.0.0.7"]
        until(lambda: driver.problem() == "the keyspace is another one")
        assert refuses(driver)
    assert len(refused) > 2
    assert all(refused)


def test_reserved_words_as_keyspaces() -> None:
    """A keyspace may have any name, also one that CQL reserves."""
    cql = Statement("SELECT a FROM queues WHERE b = ?").qualify_tables("order")
    assert cql == 'SELECT a FROM "order".queues WHERE b = ?'
