"""The service on Cassandra: creates the keyspace through the store, then runs ``queuey serve``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.started import service
from bench.started.nodes import Nodes
from bench.started.processes import Process
from queuey.app.opening import retry_until_available
from queuey.model.messages import Queue
from queuey.storage import Store, bridge
from queuey.storage.cassandra import CassandraOptions, open_store
from queuey.storage.cassandra.admin import timing_changes
from queuey.storage.cassandra.admin.migrations import migrate
from queuey.storage.cassandra.cluster import open_driver
from queuey.storage.cassandra.cluster.options import parse_url
from queuey.storage.cassandra.cluster.timing import MANY_CENTRES_TIMING

KEYSPACE = "bench"
CONNECT_TIMEOUT = 30.0


def prepare(
    nodes: Nodes, keyspace: str = KEYSPACE, queues: Iterable[str] = ("bench",), *, patient: bool = False
) -> Store:
    """Creates a keyspace with one copy per node, and the application, key and queues. Close the returned store.

    Args:
        nodes: The nodes.
        keyspace: Name of the keyspace.
        queues: Names of the queues to create.
        patient: Use the timing of several data centres: writes have 3 s instead of 0.4 s. Three JVMs on two processors
            may pause for longer than the shorter time.
    """
    url, options = nodes.store_url(keyspace), CassandraOptions(follow=patient)
    migrate(parse_url(url), options, replication=str(len(nodes.address.hosts)))
    if patient:
        with open_driver(parse_url(url), options, CONNECT_TIMEOUT) as driver:
            timing_changes.change_timing(driver, options, MANY_CENTRES_TIMING, lambda _: None, wait=lambda _: None)
    store = open_store(url, options=options)
    retry_until_available(lambda: bridge.run(store.applications.application_names()), 30)
    service.create_application_and_queues(store, queues)
    return store


def serve(
    nodes: Nodes, directory: Path, *, keyspace: str = KEYSPACE, environment: Mapping[str, str] | None = None
) -> contextlib.AbstractContextManager[Process]:
    store = {"--store": nodes.store_url(keyspace)}
    return service.serve_store(directory, store, environment=environment)


def let_appear(store: Store, queue: Queue) -> None:
    """Waits until all earlier writes are below the horizon of every reader."""
    time.sleep(store.read_delay(queue) + 0.5)
