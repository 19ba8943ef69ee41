"""Tests of which values of names early reads on Cassandra show."""

from __future__ import annotations

import threading

from queuey.ids import LOW_MIN
from queuey.messages import Queue, Slice
from queuey.storage import bridge
from queuey.storage.cassandra.store.names import _NAME_STATEMENTS
from tests.cassandra.begun import page_of
from tests.cassandra.scene import TTL, D, Process, S, Scene, message
from tests.contract.read.test_early import bodies
from tests.contract.samples import run_call
from tests.waiting import PATIENCE_SECONDS

NAME_CHANGES = (_NAME_STATEMENTS.change,)


def early(scene: Scene, process: Process, queue: Queue) -> list[str]:
    """Returns the bodies that a reader is shown above the horizon a little later."""
    scene.world.advance(0.01)
    [page] = bridge.run(process.store.messages.read(queue, [Slice(1)]))
    assert page.next == (page.horizon, LOW_MIN)
    return bodies(page_of(process.store, queue, Slice(1, (page.horizon, LOW_MIN), delayed=False, early=True)).messages)


def test_pending_values_of_names(scene: Scene) -> None:
    """A value is shown only after it is confirmed; messages above it are shown, and nothing is done about the name."""
    first, second = scene.start(), scene.start()
    queue = scene.queue(first, ttl=TTL)
    assert bridge.run(second.store.catalogue.queue(queue.application, queue.name)) == queue
    old = bridge.run(first.store.names.write_named(queue, "n", message("old"), b"old", None))
    assert early(scene, second, queue) == ["old"]
    scene.world.advance(D + S)
    first.wire.hold(NAME_CHANGES).open()
    gate = first.wire.hold(NAME_CHANGES)  # This confirms it.
    thread = threading.Thread(
        target=run_call, args=(first.store.names.write_named, queue, "n", message("new"), b"new", old)
    )
    thread.start()
    gate.wait_until_reached()
    scene.world.advance(0.1)
    second.post(queue, message("beside")).result(PATIENCE_SECONDS)
    second.wire.log.clear()
    assert early(scene, second, queue) == ["beside"]
    assert second.wire.log.count(NAME_CHANGES) == 0
    assert second.wire.log.count([_NAME_STATEMENTS.find, _NAME_STATEMENTS.change])
    gate.open()
    thread.join(60)
    assert early(scene, second, queue) == ["new", "beside"]
