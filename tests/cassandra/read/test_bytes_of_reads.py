"""How much a read takes out of Cassandra for the pages that it gives."""

from __future__ import annotations

from queuey.messages import NewMessage, QueueSpec, Slice
from queuey.storage.cassandra import message_codec
from tests.cassandra.conftest import OpenStore
from tests.cassandra.interposed import READS, Wire

PARTITIONS = 40
LONGEST = 64 << 10
PAGE_BYTES = 1 << 20


def test_a_read_of_many_partitions_fetches_a_few_times_its_bytes(open_with: OpenStore, application: str) -> None:
    """A page of many partitions of long messages takes a few times the bytes that it may have, not all there is."""
    wire = Wire()
    store = open_with(wire, longest_body=LONGEST)
    queue, _ = store.create_queue(application, "long", QueueSpec(partitions=PARTITIONS))
    for number in range(1, PARTITIONS + 1):
        store.append(queue, [NewMessage(f"{number}".ljust(LONGEST), number, 600) for _ in range(8)])
    slices = [Slice(number, max_bytes=PAGE_BYTES // PARTITIONS, delayed=False) for number in range(1, PARTITIONS + 1)]
    wire.log.bytes = 0
    pages = store.read(queue, slices)
    assert [[message.partition for message in page.messages] for page in pages] == [[n + 1] for n in range(PARTITIONS)]
    assert all(page.more for page in pages)
    assert 0 < wire.log.bytes <= 5 * PAGE_BYTES


def test_a_page_of_short_messages_is_one_statement(open_with: OpenStore, application: str) -> None:
    """A hundred short messages of one partition that was read before come by one query."""
    wire = Wire()
    store = open_with(wire)
    queue, _ = store.create_queue(application, "short", QueueSpec())
    positions = store.append(queue, [NewMessage("x" * 200, 1, 600) for _ in range(150)])
    part = Slice(1, positions[10], delayed=False)
    wire.log.statements.clear()
    [page] = store.read(queue, [part])
    assert [message.position for message in page.messages] == positions[10:110]
    assert wire.log.count(READS) == 1


def test_a_read_of_ids_leaves_bodies_out(open_with: OpenStore, application: str) -> None:
    """However long bodies are, a whole page of ids is one short answer."""
    wire = Wire()
    store = open_with(wire, longest_body=LONGEST)
    queue, _ = store.create_queue(application, "ids", QueueSpec())
    positions = store.append(queue, [NewMessage("x" * LONGEST, 1, 600) for _ in range(20)])
    part = Slice(1, positions[0], delayed=False, bodies=False, max_bytes=LONGEST)
    wire.log.bytes = 0
    wire.log.statements.clear()
    [page] = store.read(queue, [part])
    assert [message.position for message in page.messages] == positions
    assert {message.body for message in page.messages} == {""}
    assert 0 < wire.log.bytes < LONGEST
    assert wire.log.count(message_codec.IDS_UP) == 1
