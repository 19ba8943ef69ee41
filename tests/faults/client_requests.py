"""Counts the requests of event loops to Cassandra nodes, from the nodes' statistics of their clients."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.driver import Driver, Statement, open_driver
from queuey.storage.cassandra.options import CassandraOptions, parse_url

LOOP_CLIENT = "queuey"
"""The name that ``driver/cql`` sends to nodes. cassandra-driver sends another one."""
CLIENTS = Statement("SELECT driver_name, address, port, request_count FROM system_views.clients", prepared=False)
OPTIONS = CassandraOptions(timeout=1.0)
INTERVAL = 0.5
"""Seconds between two queries of all nodes."""
CONNECT_SECONDS = 60.0


class ClientRequests:
    """Counts requests of event loops from the outside, while web processes and nodes come and go.

    Args:
        url: The keyspace.
        nodes: Addresses of the nodes. A node that does not answer is asked again later.
        local_dc: The data centre to connect to, if there are several.
    """

    def __init__(self, url: str, nodes: Sequence[str], local_dc: str | None = None) -> None:
        self._target = parse_url(url)
        self._options = replace(OPTIONS, local_dc=local_dc)
        self._nodes = nodes
        self._by_connection: dict[tuple[object, ...], int] = {}
        self._during_faults = 0

    @property
    def counts(self) -> dict[str, int]:
        return {"over_loop": self._total, "over_loop_during_faults": self._during_faults}

    @property
    def _total(self) -> int:
        return sum(self._by_connection.values())

    def watch(self, is_faulty: Callable[[], bool], stop: threading.Event) -> None:
        """Queries all nodes repeatedly until ``stop`` is set.

        Requests count as made during faults if there was one both before and after the query that found them.
        """
        with open_driver(self._target, self._options, CONNECT_SECONDS) as driver:
            while not stop.wait(INTERVAL):
                before, faulty = self._total, is_faulty()
                for node in self._nodes:
                    self._refresh(driver, node)
                self._during_faults += (self._total - before) * (faulty and is_faulty())

    def _refresh(self, driver: Driver, node: str) -> None:
        """Updates the counts of a node's connections; a node that does not answer keeps the old ones."""
        with contextlib.suppress(StoreUnavailable):
            for name, *connection, count in driver.run(CLIENTS, consistency="ONE", host=node):
                if name == LOOP_CLIENT:
                    self._by_connection[node, *connection] = count
