"""Keyspaces for tests: created once, and emptied faster than another could be created."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from cassandra.cluster import Cluster, Session
from cassandra.query import PreparedStatement

from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.admin import timing_changes
from queuey.storage.cassandra.admin.migrations import migrate
from queuey.storage.cassandra.cluster import Driver, Statement, open_driver
from queuey.storage.cassandra.cluster.options import CassandraOptions, DataCentreTarget, parse_url
from queuey.storage.cassandra.cluster.timing import KeyspaceTiming
from queuey.storage.cassandra.tables import groups
from queuey.storage.cassandra.time.clock import SteadyClock, boottime_ns
from tests.servers.plugin import Cassandra, unique_name
from tests.waiting import join


class HandClock(SteadyClock):
    """A clock that tests move by hand. Ages and deadlines use the real time."""

    __slots__ = ("_hand",)

    def __init__(
        self, hand: Callable[[], int], boottime: Callable[[], int] = boottime_ns, wall: Callable[[], int] = time.time_ns
    ) -> None:
        super().__init__(boottime, wall)
        self._hand = hand

    def now(self) -> int:
        return self._hand()

    def now_and_boottime(self) -> tuple[int, float]:
        return self._hand(), self.boottime()


class HandedStore(CassandraStore):
    """A store with a clock moved by hand. It may differ from the nodes' clocks by any amount, but not from others."""

    clock_difference = 1.0


class LastingDriver(Driver):
    """A driver that passes its connection on to the next one: connecting takes as long as a test."""

    def _open(self) -> None:
        """Takes the connection to this keyspace with these options; opens it if there has been none."""
        options = self._options
        key = self.target, self._keyspace, options.local_dc, options.speculative, options.timeout
        with _opening:
            if key not in _connections:
                super()._open()
                assert self._cluster is not None
                assert self._session is not None
                _connections[key] = self._cluster, self._session, self._prepared
        self._cluster, self._session, self._prepared = _connections[key]

    def close(self) -> None:
        """Ends the driver, but keeps the connection."""
        self._closed.set()
        join(self._thread)
        self._cluster = self._session = None
        self._prepared = {}
        super().close()


OPTIONS = CassandraOptions(timeout=60.0, deadline=120.0)
CATALOGUE = {
    "queues": ("application", "name"),
    "applications": ("shard", "name"),
    "keys": ("digest",),
    "application_keys": ("application", "id"),
    "records": ("kind", "shard", "application", "name"),
}
"""The key columns of the catalogue's tables, which are only written by lightweight transactions, here as well."""
_connections: dict[tuple[object, ...], tuple[Cluster, Session, dict[Statement, PreparedStatement]]] = {}
_opening = threading.Lock()
_drivers: dict[str, Driver] = {}
"""Drivers for emptying keyspaces, by URL. They are kept, as connecting takes as long as a test."""


def make(cassandra: Cassandra, replication: int | str = 1, *, local_dc: str | None = None) -> str:
    """Creates a keyspace with all tables. Returns its URL.

    Args:
        cassandra: The cluster.
        replication: Number of copies, as ``queuey migrate`` takes it.
        local_dc: With several data centres, the one to ask.
    """
    target = DataCentreTarget(tuple(cassandra.contact_points), unique_name("contract"), cassandra.port)
    migrate(target, replace(OPTIONS, local_dc=local_dc), replication=str(replication))
    return target.url


def empty(url: str) -> None:
    """Removes all applications, keys, queues, groups and records. Data of queues becomes unreachable."""
    if url not in _drivers:
        _drivers[url] = Driver(parse_url(url), OPTIONS)
    driver = _drivers[url]
    assert driver.ready(60), driver.problem()
    for statement, values in _find_removals(driver):
        driver.run(statement, values, serial="SERIAL")
    for application, shard in driver.run(Statement("SELECT DISTINCT application, shard FROM queue_index")):
        driver.run(Statement("DELETE FROM queue_index WHERE application = ? AND shard = ?"), (application, shard))


def set_timing(url: str, timing: KeyspaceTiming, local_dc: str | None = None) -> None:
    """Sets the timing of a keyspace at once. The keyspace must not be in use."""
    options = replace(OPTIONS, local_dc=local_dc)
    with open_driver(parse_url(url), options, 60) as driver:
        timing_changes.change_timing(driver, options, timing, lambda _: None, wait=lambda _: None)


def close() -> None:
    while _drivers:
        _drivers.popitem()[1].close()
    while _connections:
        _, (cluster, _, _) = _connections.popitem()
        cluster.shutdown()


def _find_removals(driver: Driver) -> Iterator[tuple[Statement, tuple[object, ...]]]:
    for table, key in CATALOGUE.items():
        where = " AND ".join(f"{column} = ?" for column in key)
        remove = Statement(f"DELETE FROM {table} WHERE {where} IF EXISTS", idempotent=False)
        for values in driver.run(Statement(f"SELECT {', '.join(key)} FROM {table}"), consistency="QUORUM"):
            yield remove, tuple(values)
    heads = driver.run(Statement("SELECT DISTINCT application, name, version FROM groups"), consistency="QUORUM")
    for application, name, version in heads:
        if version is not None:  # rows without a head stay, so tests that write them use fresh group names
            yield groups.REMOVE_HEAD, (application, name, version)
