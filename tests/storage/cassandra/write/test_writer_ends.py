"""Every append ends once, with a correct outcome, whatever fails and whenever the store is closed."""

from __future__ import annotations

import pytest

from queuey.model.errors import StoreClosed, StoreUnavailable
from queuey.model.messages import Queue
from queuey.storage import bridge
from tests.storage.cassandra.begun import driver_of, parts_of
from tests.storage.cassandra.interposed import CLOCKS, DELETES, INSERTS, QUEUES, RECORDS, WAIT_TIMEOUT
from tests.storage.cassandra.scene import TTL, Attempt, Process, S, Scene, end_of, message

LONG = 5 * 86_400


def count_live_nodes(process: Process) -> int:
    return sum(host.up for host in driver_of(process.store).hosts())


STATES = {
    "it waits for the queue's row": (QUEUES, "none"),
    "it waits for the record of a bucket": (RECORDS, "none"),
    "it waits behind another one": (INSERTS, "none"),
    "it is on its way": (INSERTS, "unknown"),
    "it is undone": (DELETES, "unknown"),
    "it waits for a comparison of clocks": (CLOCKS, "unknown"),
}
"""States of an append, the requests that are held in each, and the outcome of its messages then."""


def begin(process: Process, queue: Queue, state: str) -> Attempt:
    if state == "it waits for a comparison of clocks":
        return begin_unsure(process, queue)
    parts_of(process.store).rows.forget(queue.application, queue.name)
    if state == "it is undone":
        process.wire.lose(INSERTS)
    gate = process.wire.hold(STATES[state][0])
    attempt = process.post(queue, message(ttl=LONG if state == "it waits for the record of a bucket" else TTL))
    gate.wait_until_reached()
    return process.post(queue) if state == "it waits behind another one" else attempt


def begin_unsure(process: Process, queue: Queue) -> Attempt:
    """Begins an append that is written, sets the wall clock wrong, and holds the comparison of clocks it waits for."""
    written = process.wire.hold(INSERTS, answered=True)
    attempt = process.post(queue)
    written.wait_until_reached()
    process.machine.wrong = 60.0
    gate = process.wire.hold(CLOCKS, count_live_nodes(process))
    written.open()
    gate.wait_until_reached()
    return attempt


@pytest.mark.parametrize("state", STATES)
def test_closed(scene: Scene, state: str) -> None:
    """Closing a store answers each unfinished append with its outcome, and leaves no caller waiting."""
    process = scene.start()
    queue = scene.queue(process, ttl=TTL)
    attempt = begin(process, queue, state)
    scene.world.run()
    process.store.close(0.1)
    error = attempt.exception(WAIT_TIMEOUT)
    assert isinstance(error, StoreUnavailable)
    assert error.outcome == STATES[state][1]
    assert process.store._writer.pending == 0
    with pytest.raises(StoreClosed):
        bridge.run(process.store.messages.append(queue, [message()]))


def test_refusing_does_not_block(scene: Scene) -> None:
    """While the clock is off, an append is refused without a request, so its caller does not block."""
    process = scene.start()
    queue = scene.queue(process)
    process.machine.fall_behind(10 * S)
    process.check_clock()
    gate = process.wire.hold(CLOCKS, 100)
    assert end_of(process.post(queue)) == "none"
    gate.open()
    process.machine.fall_behind(-10 * S)
    process.check_clock()
    scene.world.advance(0.001)
    assert end_of(process.post(queue)) == "acknowledged"
