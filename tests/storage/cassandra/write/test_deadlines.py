"""No call takes longer than its deadline, however many requests it sends and however long each takes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.ids import FIRST
from queuey.model.messages import OffsetChange, Queue, Slice
from queuey.storage import bridge
from queuey.storage.cassandra.cluster import TooManyDead
from queuey.storage.cassandra.statements.lightweight_transactions import MAX_PAUSE
from queuey.storage.cassandra.tables import offsets
from queuey.storage.cassandra.tables.counting import MAX_CONCURRENT_COUNTS
from queuey.storage.cassandra.tables.messages import PUT_BYTES
from tests.storage.cassandra.begun import page_of
from tests.storage.cassandra.interposed import CLOCKS, INSERTS, READS, UNLIMITED
from tests.storage.cassandra.scene import D, Process, S, Scene, message

DEADLINE = 10.0
EACH = 1.0
"""Seconds of the world's time that each answer takes, one after another."""
COUNTING = 3 * MAX_CONCURRENT_COUNTS
"""Max requests in flight of a count over partitions: a few per partition."""
PARTITIONS = 40
ID = (ids.seconds_to_ticks(1_700_000_000), 1)

Call = Callable[[Process, Queue], object]
CALLS: dict[str, Call] = {
    "put": lambda process, queue: bridge.run(
        process.store.messages.put(queue, [(n + 1, ID) for n in range(PARTITIONS)], message())
    ),
    "inspect": lambda process, queue: bridge.run(process.store.messages.inspect(queue)),
    "lag": lambda process, queue: bridge.run(
        process.store.messages.lag(queue, [(n + 1, FIRST) for n in range(PARTITIONS)])
    ),
    "read": lambda process, queue: bridge.run(process.store.messages.read(queue, [Slice(1)])),
    "read on a loop": lambda process, queue: page_of(process.store, queue, Slice(1)),
    "set_offsets": lambda process, queue: bridge.run(
        process.store.offsets.set_offsets(queue, "group", [OffsetChange(1, ID)])
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_ends_in_time(scene: Scene, name: str) -> None:
    """A call with many answered requests gives up when all of them together take too long.

    Requests in flight at the deadline are answered before it gives up. A change in doubt gives up as soon as the next
    pause would last longer than its deadline.
    """
    process = scene.start(deadline=DEADLINE, catalogue_deadline=60.0)
    queue = scene.queue(process, partitions=PARTITIONS)
    bridge.run(process.store.messages.append(queue, [message()]))
    scene.world.advance(D + S)
    [page] = bridge.run(process.store.messages.read(queue, [Slice(1)]))
    assert page.messages

    def pass_by() -> None:
        scene.world.advance(EACH)

    process.wire.fail(READS, UNLIMITED, TooManyDead("too many"), then=pass_by)
    process.wire.lose([offsets._SWAP_VERSION], UNLIMITED, then=pass_by)
    process.wire.after_answer(lambda statement: statement not in CLOCKS, pass_by, UNLIMITED)
    began = process.machine.boottime()
    with pytest.raises(StoreUnavailable):
        CALLS[name](process, queue)
    under_way = COUNTING if name in {"inspect", "lag"} else 2
    last_pause = MAX_PAUSE if name == "set_offsets" else 0.0
    assert DEADLINE - last_pause <= (process.machine.boottime() - began) / 1e9 <= DEADLINE + under_way * EACH


def test_a_put_at_many_ids_goes_a_few_at_a_time(scene: Scene) -> None:
    """Long bodies are sent a few at a time; at the deadline the others are not sent, and some may be stored."""
    process = scene.start(deadline=2.0)
    queue = scene.queue(process)
    gate = process.wire.hold(INSERTS, UNLIMITED)

    def pass_by() -> None:
        for _ in range(3):
            gate.wait_until_reached()
        scene.world.run()

    threading.Thread(target=pass_by, daemon=True).start()
    with pytest.raises(StoreUnavailable) as raised:
        bridge.run(
            process.store.messages.put(
                queue, [(1, (ID[0] + number, 1)) for number in range(30)], message("x" * (PUT_BYTES // 3))
            )
        )
    assert raised.value.outcome == "unknown"
    assert process.wire.log.count(INSERTS) == 3
    gate.open()
