"""Tests of the cost of deleting many messages, and of a delete that fails partly."""

from __future__ import annotations

import pytest

from queuey.errors import StoreUnavailable
from queuey.storage import bridge
from queuey.storage.cassandra.store.messages import MAX_ROWS_PER_DELETE
from tests.cassandra.interposed import DELETES, WAIT_TIMEOUT
from tests.cassandra.scene import D, Reader, S, Scene, message


def test_many(scene: Scene) -> None:
    """One request deletes a hundred adjacent messages. If one of several requests fails, the delete can be repeated."""
    process = scene.start()
    queue = scene.queue(process)
    bodies = [f"{number}" for number in range(2 * MAX_ROWS_PER_DELETE + 1)]
    positions = process.post(queue, *(message(body) for body in bodies)).result(WAIT_TIMEOUT)
    scene.world.advance(D + S)
    places = [(1, position) for position in positions[1:]]
    process.wire.lose(DELETES)
    with pytest.raises(StoreUnavailable) as raised:
        bridge.run(process.store.messages.delete(queue, places))
    assert raised.value.outcome == "unknown"
    before = process.wire.log.count(DELETES)
    assert bridge.run(process.store.messages.delete(queue, places)) == 2 * MAX_ROWS_PER_DELETE
    assert process.wire.log.count(DELETES) - before == 2
    reader = Reader(process, queue)
    reader.read_more()
    assert reader.bodies == ["0"]
