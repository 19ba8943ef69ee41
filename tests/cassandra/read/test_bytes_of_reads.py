"""Tests of how many bytes a read fetches from Cassandra for its pages."""

from __future__ import annotations

from queuey.messages import NewMessage, QueueSpec, Slice
from queuey.storage import bridge
from tests.cassandra.begun import page_of
from tests.cassandra.conftest import OpenStore
from tests.cassandra.interposed import QUEUES, Wire
from tests.cassandra.scene import Scene

PARTITIONS = 40
LONGEST = 64 << 10
PAGE_BYTES = 1 << 20


def test_a_read_of_many_partitions_fetches_a_few_times_its_bytes(open_with: OpenStore, application: str) -> None:
    """A page of many partitions of long messages fetches a few times its limit in bytes, not all messages."""
    wire = Wire()
    store = open_with(wire)
    queue, _ = bridge.run(store.catalogue.create_queue(application, "long", QueueSpec(partitions=PARTITIONS)))
    for number in range(1, PARTITIONS + 1):
        bridge.run(
            store.messages.append(queue, [NewMessage(f"{number}".ljust(LONGEST), number, 600) for _ in range(8)])
        )
    slices = [Slice(number, max_bytes=PAGE_BYTES // PARTITIONS, delayed=False) for number in range(1, PARTITIONS + 1)]
    wire.log.bytes = 0
    pages = bridge.run(store.messages.read(queue, slices))
    # A page ends with the message that passes its share; the others are put off when all bytes are used up.
    full = PAGE_BYTES // LONGEST
    partitions = [[message.partition for message in page.messages] for page in pages]
    assert partitions == [[n + 1] if n < full else [] for n in range(PARTITIONS)]
    assert all(page.more for page in pages)
    assert 0 < wire.log.bytes <= 5 * PAGE_BYTES


def test_a_reader_with_an_old_row_only_takes_more_memory(scene: Scene) -> None:
    """Claims read above the horizon with rows that are C old, so messages may be longer than these rows say."""
    writer, reader = scene.start(), scene.start()
    queue = scene.queue(writer)
    first = bridge.run(writer.store.messages.append(queue, [NewMessage("x" * 200, 1, 600)]))
    scene.world.advance(0.1)
    part = Slice(1, first[0], limit=10, max_bytes=LONGEST, ahead=True)
    assert page_of(reader.store, queue, part).messages
    longer = bridge.run(writer.store.messages.append(queue, [NewMessage("x" * LONGEST, 1, 600) for _ in range(20)]))
    scene.world.advance(0.1)
    reader.wire.log.clear()
    page = page_of(reader.store, queue, part)
    assert [message.position for message in page.messages] == [*first, longer[0]]
    assert page.more
    assert reader.wire.log.count(QUEUES) == 0
    assert LONGEST < reader.wire.log.bytes < 10 * (LONGEST + 100)
