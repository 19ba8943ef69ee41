"""Before any write, the queue's row is raised to cover the length of the message."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuey.app.service import Service
from queuey.messages.posts import Draft
from queuey.model import ids
from queuey.model.messages import Message, Meta, NewMessage, PostKey, Queue, QueueSpec
from queuey.storage import bridge
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.catalogue.queue_cache import MIN_LONGEST_ROW
from queuey.storage.cassandra.statements import message_codec
from tests.blocking import BlockingNames
from tests.storage.cassandra.begun import driver_of, parts_of
from tests.storage.cassandra.conftest import OpenStore

LONG = "x" * 5000
HEADERS = Meta("text/plain", (("h", LONG),))
ENDS = 600 * ids.TICKS_PER_SECOND


def at(store: CassandraStore, seconds: float, meta: Meta | None = None) -> Message:
    ticks = bridge.run(store.ledger.now()) + round(seconds * ids.TICKS_PER_SECOND)
    return Message(ticks, 7, 1, ticks + ENDS, "x" if meta else LONG, meta)


def name(store: CassandraStore, queue: Queue) -> None:
    service = Service(store)
    BlockingNames(service).create(service.queues.access_unchecked(queue), "n", Draft(LONG))


WRITES: dict[str, Callable[[CassandraStore, Queue], object]] = {
    "append": lambda store, queue: bridge.run(
        store.messages.append(queue, [NewMessage("x", 1, 600), NewMessage(LONG, 2, 600)])
    ),
    "headers": lambda store, queue: bridge.run(store.messages.append(queue, [NewMessage("x", 1, 600, HEADERS)])),
    "bytes": lambda store, queue: bridge.run(store.messages.append(queue, [NewMessage(LONG.encode(), 1, 600)])),
    "delayed": lambda store, queue: bridge.run(store.messages.append(queue, [NewMessage(LONG, 1, 600, delay=60.0)])),
    "keyed": lambda store, queue: bridge.run(
        store.keyed_posts.append_once(queue, [NewMessage(LONG, 1, 600)], PostKey("k", b"c", 600))
    ),
    "put": lambda store, queue: bridge.run(
        store.messages.put(queue, [(1, (bridge.run(store.ledger.now()), 5))], NewMessage(LONG, 1, 600))
    ),
    "load": lambda store, queue: bridge.run(store.bulk.load(queue, [at(store, -60), at(store, -50, HEADERS)])),
    "load of headers": lambda store, queue: bridge.run(store.bulk.load(queue, [at(store, -60, HEADERS)])),
    "load ahead of readers": lambda store, queue: bridge.run(store.bulk.load_unread(queue, [at(store, 60)])),
    "name": name,
}


@pytest.mark.parametrize("write", [pytest.param(write, id=name) for name, write in WRITES.items()])
def test_every_write_makes_the_row_cover_it(
    open_with: OpenStore, application: str, write: Callable[[CassandraStore, Queue], object]
) -> None:
    """The row covers bodies and headers, of messages with new ids and with given ones."""
    store = open_with()
    queue, _ = bridge.run(store.catalogue.create_queue(application, "queue", QueueSpec(partitions=2)))
    bridge.run(store.messages.append(queue, [NewMessage("x" * 200, 1, 600)]))
    assert driver_of(store).calls.run(parts_of(store).rows.read(application, "queue")).longest_row == MIN_LONGEST_ROW
    write(store, queue)
    assert (
        driver_of(store).calls.run(parts_of(store).rows.read(application, "queue")).longest_row == 16 * MIN_LONGEST_ROW
    )
    assert message_codec.ROW_OVERHEAD_BYTES + len(LONG) > 4 * MIN_LONGEST_ROW
