"""Tests of the index of queues on a real node."""

from __future__ import annotations

from queuey.model.messages import QueueSpec
from queuey.storage import bridge
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.statements.lightweight_transactions import new_number
from tests.storage.cassandra.begun import driver_of, parts_of


def test_entries_without_a_queue(store: CassandraStore, application: str) -> None:
    """Index entries of failed creations are not listed, and pages are full nevertheless."""
    for n in range(40):
        driver_of(store).calls.run(parts_of(store).index.add(application, f"a{n:02}", new_number()))
        if n % 4 == 0:
            bridge.run(store.catalogue.create_queue(application, f"a{n:02}", QueueSpec()))
    assert [queue.name for queue in bridge.run(store.catalogue.list_queues(application, limit=8))] == [
        f"a{n:02}" for n in range(0, 32, 4)
    ]
    assert len(bridge.run(store.catalogue.list_queues(application))) == 10
