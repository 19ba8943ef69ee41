"""Tests of ranges with more buckets than one lookup returns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from queuey import ids
from queuey.messages import Message, NewMessage, Queue, QueueSpec, Slice
from queuey.storage import bridge, columns
from queuey.storage.cassandra import CassandraStore, bucketing
from queuey.storage.cassandra.store.messages import MAX_RECORDED_BUCKETS
from queuey.storage.cassandra.write import bulk_load
from tests.replacing import replace

SECOND = ids.TICKS_PER_SECOND
PLACES = 150
EACH = 3
"""Messages in each narrow bucket."""


@pytest.fixture
def scattered(store: CassandraStore, application: str) -> tuple[Queue, list[Message]]:
    """A queue with messages in very many narrow buckets, in a wide one and in both; returns them in order."""
    queue, _ = bridge.run(store.catalogue.create_queue(application, "queue", QueueSpec(read_delay=0.0)))
    size = bucketing.width(0, bucketing.DENSE_LOAD_WIDTH)
    now = bridge.run(store.ledger.now())
    first = (now // size - PLACES) * size
    messages = [
        Message(first + time_bucket * size + n * SECOND, 5, 1, now + 3600 * SECOND, f"{time_bucket}.{n}" * n or "x")
        for time_bucket in range(PLACES)
        for n in range(EACH)
    ]
    with replace(bulk_load._choose_width_class, lambda _: bucketing.DENSE_LOAD_WIDTH):
        bridge.run(store.bulk.load(queue, messages))
    bridge.run(
        store.messages.put(queue, [(1, messages[0].position), (1, messages[7].position)], NewMessage("put", 1, 3600))
    )
    bridge.run(store.messages.append(queue, [NewMessage(f"new {n}", 1, 3600) for n in range(5)]))
    assert PLACES > 2 * MAX_RECORDED_BUCKETS
    read_messages = [message for some in bridge.iterate(store.bulk.scan(queue, Slice(1))) for message in some]
    assert len(read_messages) == PLACES * EACH + 5
    assert [message.body for message in read_messages[:8:7]] == ["put", "put"]
    return queue, read_messages


@pytest.mark.parametrize("limit", [7, 100_000])
def test_a_scan_of_very_many_places(store: CassandraStore, scattered: tuple[Queue, list[Message]], limit: int) -> None:
    """Arrow columns come in order from all buckets, however far one lookup reaches, and equal those of a scan."""
    queue, messages = scattered
    for bodies in (True, False):
        batches = list(bridge.iterate(store.bulk.scan_arrow(queue, Slice(1, limit=limit), bodies=bodies)))
        assert max(batch.num_rows for batch in batches) <= limit
        merged_batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
        assert merged_batches == [columns.batch_from_messages(messages, bodies=bodies)]


def test_a_reach_over_very_many_places(store: CassandraStore, scattered: tuple[Queue, list[Message]]) -> None:
    """The extent of messages is found over all buckets."""
    queue, messages = scattered
    for count in (1, 100, len(messages)):
        expected = (count, ids.following(messages[count - 1].position))
        assert bridge.run(store.bulk.extent(queue, Slice(1, limit=count))) == expected


def test_the_measure_of_very_many_places(store: CassandraStore, scattered: tuple[Queue, list[Message]]) -> None:
    """A partition with too many buckets to be measured beside others is still measured."""
    queue, messages = scattered
    [[measure]] = bridge.iterate(store.bulk.measure([queue]))
    assert measure.count == pytest.approx(len(messages), rel=0.1)
    assert (measure.oldest, measure.newest) == (messages[0].position, messages[-1].position)
    assert 0 < measure.size < 100 * len(messages)
