"""What it costs to count unread messages on Cassandra: by statements, by rows, and without a body."""

from __future__ import annotations

from queuey.messages import OffsetChange, QueueSpec
from queuey.service import QueueAccess, Service
from queuey.service.unread import Unread, group_of
from queuey.storage.cassandra.catalogue import offsets
from queuey.storage.cassandra.message_codec import IDS_UP
from tests.cassandra.interposed import LOOKS, READS
from tests.cassandra.scene import D, S, Scene, message
from tests.waiting import PATIENCE_SECONDS

QUEUES, MESSAGES, LIMIT = 40, 5, 3


def test_cost_of_counts(scene: Scene) -> None:
    """Each queue costs a read of its mark and one of ids, which ends one row above the bound; no body is read."""
    process = scene.start()
    scene.queue(process)
    store = process.store
    queues = [store.create_queue(scene.application, f"inbox-{n}", QueueSpec())[0] for n in range(QUEUES)]
    for queue in queues:
        positions = process.post(queue, *[message("b" * 10_000)] * MESSAGES).result(PATIENCE_SECONDS)
    store.set_offsets(queues[-1], group_of("user:ann"), [OffsetChange(1, positions[2])])
    scene.world.advance(D + S)
    accesses = [QueueAccess(store, queue, lambda _: None) for queue in queues]
    unread = Service(store).unread
    unread.unread(accesses, "user:ann", LIMIT)  # Rows and buckets are in memory.
    log = process.wire.log
    log.clear()
    found = unread.unread(accesses, "user:ann", LIMIT)
    assert found[:-1] == [Unread({}, LIMIT, more=True)] * (QUEUES - 1)
    assert found[-1] == Unread({1: positions[2]}, 2, more=False)
    assert log.count([offsets._ALL]) == QUEUES
    assert (log.count(READS), log.count(LOOKS)) == (0, 0)
    assert QUEUES <= log.count(IDS_UP) <= 2 * QUEUES
    assert log.longest < 1000
    assert log.rows == (QUEUES - 1) * (LIMIT + 1) + 2
