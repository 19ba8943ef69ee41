"""The reach of a queue's messages is raised before a longer message is written."""

from __future__ import annotations

import pytest

from queuey.errors import QueueChanged
from queuey.messages import NewMessage, QueueSpec
from queuey.storage.cassandra.bucketing import CLASSES
from queuey.storage.cassandra.catalogue import queue_cache
from queuey.storage.cassandra.catalogue.queue_cache import SHORTEST
from tests.cassandra.conftest import OpenStore
from tests.cassandra.interposed import Wire

ROWS = (queue_cache.FIND, queue_cache._COVER)
"""What reads a queue's row, and what makes it cover more."""


def test_raised_for_all(open_with: OpenStore, application: str) -> None:
    """Once raised, every process sees it; the queue's version stays, and further calls have nothing to do."""
    wire = Wire()
    store, other = open_with(wire, row_age=600.0, levels={}), open_with()
    queue, _ = store.create_queue(application, "queue", QueueSpec(ttl=60))
    row = store._rows.current(queue)
    assert (row.home_class, row.longest_ttl) == (0, 60)
    assert row.longest_row == SHORTEST
    raised = store._rows.cover(row, {1000, CLASSES[0] + 1}, 5 * SHORTEST)
    assert (raised.longest_ttl, raised.longest_row, raised.queue) == (1024, 16 * SHORTEST, queue)
    found = other._rows.read(application, "queue")
    assert (found.longest_ttl, found.longest_row) == (1024, 16 * SHORTEST)
    # Others ask on their own account, such as for the clocks of all nodes.
    before = wire.log.count(ROWS)
    assert store._rows.cover(raised, {1024}, 16 * SHORTEST) is raised
    assert wire.log.count(ROWS) == before > 0


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


def test_ids_that_readers_have_passed_wait(open_with: OpenStore, application: str) -> None:
    """Before a longer message is written under an old id no process uses a row that does not cover it."""
    store = open_with(row_age=0.5)
    queue, _ = store.create_queue(application, "queue", QueueSpec(ttl=60))
    row = store._rows.current(queue)
    began = store._clock.boottime()
    store._rows.cover(row, (), 2 * SHORTEST, given=True)
    assert store._clock.boottime() - began >= 0.5


def test_raised_by_several(open_with: OpenStore, application: str) -> None:
    """Whoever raises it last, the reach is never lowered: old rows are read again and compared."""
    store, other = open_with(row_age=1.0), open_with(row_age=1.0)
    queue, _ = store.create_queue(application, "queue", QueueSpec(ttl=60))
    old = other._rows.current(queue)
    store._rows.cover(store._rows.current(queue), {8000}, 3 * SHORTEST)
    raised = other._rows.cover(old, {500}, 5 * SHORTEST)
    assert raised.longest_ttl >= 8000
    assert raised.longest_row == 16 * SHORTEST
    assert store._rows.read(application, "queue").longest_ttl >= 8000


def test_changed_meanwhile(open_with: OpenStore, application: str) -> None:
    """The row of a queue that has changed raises nothing."""
    store, other = open_with(), open_with()
    queue, _ = store.create_queue(application, "queue", QueueSpec(ttl=60))
    row = store._rows.current(queue)
    other.update_queue(queue, QueueSpec(ttl=70))
    with pytest.raises(QueueChanged):
        store._rows.cover(row, {1000}, 2 * SHORTEST)
    assert other._rows.read(application, "queue").longest_ttl == 60
