"""The service on Cassandra: creates the keyspace through the store, then runs ``queuey serve``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.started import service
from bench.started.nodes import Nodes
from bench.started.processes import Process
from queuey.messages import Queue
from queuey.storage import Store, bridge
from queuey.storage.cassandra import CassandraOptions, open_store
from queuey.storage.cassandra.admin.migrations import migrate
from queuey.storage.cassandra.options import parse_url
from queuey.storage.opening import patiently

KEYSPACE = "bench"


def prepare(nodes: Nodes, keyspace: str = KEYSPACE, queues: Iterable[str] = ("bench",)) -> Store:
    """Creates a keyspace with one copy per node, and the application, key and queues. The caller closes the store."""
    url = nodes.url(keyspace)
    options = CassandraOptions()
    migrate(parse_url(url), options, replication=str(len(nodes.address.hosts)))
    store = open_store(url, options=options)
    patiently(lambda: bridge.run(store.applications.application_names()), 30)
    service.furnish(store, queues)
    return store


def serve(
    nodes: Nodes,
    directory: Path,
    *,
    keyspace: str = KEYSPACE,
    threads: int = service.THREADS,
    workers: int = 1,
    environment: Mapping[str, str] | None = None,
) -> contextlib.AbstractContextManager[Process]:
    store = {"--store": nodes.url(keyspace)}
    return service.run(directory, store, threads=threads, workers=workers, environment=environment)


def let_appear(store: Store, queue: Queue) -> None:
    """Waits until all earlier writes are below the horizon of every reader."""
    time.sleep(store.read_delay(queue) + 0.5)
