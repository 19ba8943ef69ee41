"""Every append ends once, with a correct outcome, whatever fails and whenever the store is closed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuey.errors import StoreClosed, StoreUnavailable
from queuey.messages import Queue
from queuey.storage import bridge
from tests.cassandra.begun import driver_of, parts_of
from tests.cassandra.interposed import CLOCKS, DELETES, INSERTS, QUEUES, RECORDS, WAIT_TIMEOUT, Gate
from tests.cassandra.scene import TTL, Attempt, Process, S, Scene, end_of, message

LONG = 5 * 86_400


def count_live_nodes(process: Process) -> int:
    return sum(host.up for host in driver_of(process.store).hosts())


def begin_waiting_for_row(process: Process, queue: Queue) -> tuple[Attempt, Gate]:
    parts_of(process.store).rows.forget(queue.application, queue.name)
    gate = process.wire.hold(QUEUES)
    attempt = process.post(queue)
    gate.wait_until_reached()
    return attempt, gate


def begin_waiting_for_place(process: Process, queue: Queue) -> tuple[Attempt, Gate]:
    gate = process.wire.hold(RECORDS)
    attempt = process.post(queue, message(ttl=LONG))
    gate.wait_until_reached()
    return attempt, gate


def begin_waiting_in_lane(process: Process, queue: Queue) -> tuple[Attempt, Gate]:
    gate = process.wire.hold(INSERTS)
    process.post(queue)
    gate.wait_until_reached()
    return process.post(queue), gate


def begin_on_its_way(process: Process, queue: Queue) -> tuple[Attempt, Gate]:
    gate = process.wire.hold(INSERTS)
    attempt = process.post(queue)
    gate.wait_until_reached()
    return attempt, gate


def begin_undone(process: Process, queue: Queue) -> tuple[Attempt, Gate]:
    process.wire.lose(INSERTS)
    gate = process.wire.hold(DELETES)
    attempt = process.post(queue)
    gate.wait_until_reached()
    return attempt, gate


def begin_unsure(process: Process, queue: Queue) -> tuple[Attempt, Gate]:
    """Begins an append that is written, sets the wall clock wrong, and holds the comparison of clocks it waits for."""
    written = process.wire.hold(INSERTS, answered=True)
    attempt = process.post(queue)
    written.wait_until_reached()
    process.machine.wrong = 60.0
    gate = process.wire.hold(CLOCKS, count_live_nodes(process))
    written.open()
    gate.wait_until_reached()
    return attempt, gate


Begin = Callable[[Process, Queue], tuple[Attempt, Gate]]
STATES: dict[Begin, str] = {
    begin_waiting_for_row: "none",
    begin_waiting_for_place: "none",
    begin_waiting_in_lane: "none",
    begin_on_its_way: "unknown",
    begin_undone: "unknown",
    begin_unsure: "unknown",
}
"""How an append gets into each state, and which outcome its messages have then."""


@pytest.mark.parametrize("begin", STATES, ids=lambda begin: begin.__name__)
def test_closed(scene: Scene, begin: Begin) -> None:
    """Closing a store answers each unfinished append with its outcome, and leaves no caller waiting."""
    process = scene.start()
    queue = scene.queue(process, ttl=TTL)
    attempt, _ = begin(process, queue)
    scene.world.run()
    process.store.close(0.1)
    error = attempt.exception(WAIT_TIMEOUT)
    assert isinstance(error, StoreUnavailable)
    assert error.outcome == STATES[begin]
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
