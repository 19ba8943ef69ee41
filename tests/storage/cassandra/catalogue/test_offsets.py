"""Tests of offsets that are set together in one call."""

from __future__ import annotations

from queuey.model import ids
from queuey.model.messages import OffsetChange, QueueSpec
from queuey.storage import bridge
from queuey.storage.cassandra import CassandraStore


def test_very_many_in_a_call(store: CassandraStore, application: str) -> None:
    """A call may set the offsets of thousands of partitions, whatever Cassandra's limit for the size of a batch."""
    queue, _ = bridge.run(store.catalogue.create_queue(application, "queue", QueueSpec(partitions=3000)))
    changes = [OffsetChange(number, (ids.EPOCH_TICKS, number)) for number in range(1, 3001)]
    answer = bridge.run(store.offsets.set_offsets(queue, "group" * 50, changes))
    assert [offset.position[1] for offset in answer] == list(range(1, 3001))
    assert bridge.run(store.offsets.group_offsets(queue, "group" * 50)) == answer
    bridge.run(store.offsets.delete_group(queue, "group" * 50))
    assert bridge.run(store.offsets.groups(queue)) == []
