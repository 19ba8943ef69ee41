"""What it costs to make a queue's row cover longer messages, and what sets it back, on a real node."""

from __future__ import annotations

from queuey.messages import NewMessage, QueueSpec
from queuey.storage.cassandra.catalogue import queue_cache
from queuey.storage.cassandra.catalogue.queue_cache import SHORTEST
from tests.cassandra.conftest import OpenStore
from tests.cassandra.interposed import Wire


def test_one_transaction_raises_both(open_with: OpenStore, application: str) -> None:
    """A message that is longer and lives longer than those before it costs one transaction."""
    wire = Wire()
    store = open_with(wire)
    queue, _ = store.create_queue(application, "queue", QueueSpec(ttl=60))
    store.append(queue, [NewMessage("x" * SHORTEST, 1, 100)])
    assert wire.log.count([queue_cache._COVER]) == 1
    found = store._rows.read(application, "queue")
    assert (found.longest_ttl, found.longest_row) == (128, 4 * SHORTEST)


def test_a_purge_sets_it_back(open_with: OpenStore, application: str) -> None:
    """An empty queue has no long rows."""
    store = open_with()
    queue, _ = store.create_queue(application, "queue", QueueSpec(ttl=60))
    store._rows.cover(store._rows.current(queue), (), 5 * SHORTEST)
    store.purge_queue(queue)
    assert store._rows.read(application, "queue").longest_row == SHORTEST
