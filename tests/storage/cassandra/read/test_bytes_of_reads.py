"""Tests of how many bytes a read fetches from Cassandra for its pages."""

from __future__ import annotations

from queuey.model.messages import NewMessage, Slice
from queuey.storage import bridge
from tests.storage.cassandra.begun import page_of
from tests.storage.cassandra.interposed import QUEUES
from tests.storage.cassandra.scene import Scene

LONGEST = 64 << 10


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
