"""Reads on an event loop, as the service does, and the one door to the insides of a store."""

from __future__ import annotations

from typing import Any

from queuey.model.messages import Page, Queue, Slice
from queuey.storage import Store
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.cluster import Driver
from tests.contract.samples import begin

PATIENCE = 60.0
"""Timeout for an answer, in seconds."""


def page_of(store: Store, queue: Queue, part: Slice) -> Page:
    [page] = begin(store.messages.read(queue, [part])).result(PATIENCE)
    return page


def driver_of(store: CassandraStore) -> Driver:
    """Returns the store's driver, for statements about its tables."""
    return store._driver


def parts_of(store: CassandraStore) -> Any:  # noqa: ANN401 - of the product
    """Returns the parts that the contracts of the store share, such as the cached rows of queues."""
    return store._parts
