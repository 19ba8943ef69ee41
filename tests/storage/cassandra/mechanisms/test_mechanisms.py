"""Mechanisms that keep the store's promises: each has a scenario on a real node that fails without it.

The histories of ``tests/sim/cassandra`` show the same for other mechanisms, without a node.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from queuey.model.messages import Queue
from queuey.storage import bridge
from queuey.storage.cassandra.catalogue.queue_cache import QueueCache
from queuey.storage.cassandra.time.clock_watch import ClockWatch
from queuey.storage.cassandra.write.writer import MessageWriter
from tests.contract.samples import run_call
from tests.replacing import replace
from tests.servers.plugin import unique_name
from tests.storage.cassandra.interposed import QUEUES, UNLIMITED, WAIT_TIMEOUT
from tests.storage.cassandra.scene import D, Reader, S, Scene, end_of

Scenario = Callable[[Scene], list[str]]
"""Plays a scenario and returns the violations."""


def stopped_before_minting(scene: Scene) -> list[str]:
    """Purges a queue while a process stands still between reading its row and minting an id."""
    writing, other = scene.start(), scene.start()
    queue = scene.queue(writing)
    generate = MessageWriter._generate
    purged: list[Queue] = []

    def purge_first(self: MessageWriter, *arguments: Any) -> Any:  # noqa: ANN401 - the writer's
        if not purged:
            scene.world.advance(0.01)
            purged.append(bridge.run(other.store.catalogue.purge_queue(queue)))
        return generate(self, *arguments)

    with replace(generate, purge_first):
        attempt = writing.post(queue)
        end_of(attempt)
    scene.world.advance(D + S)
    reader = Reader(other, purged[0])
    reader.read_more()
    return reader.find_missed([attempt])


def purged_while_stopped(scene: Scene) -> list[str]:
    """Purges a queue while the writer's machine is suspended, so that its row appears to be younger than C."""
    writing, purging = scene.start(), scene.start()
    queue = scene.queue(purging)
    bridge.run(writing.store.catalogue.queue(queue.application, queue.name, fresh=True))
    bridge.run(purging.store.catalogue.purge_queue(queue))
    writing.machine.fall_behind(0.4 * S)
    writing.check_clock()
    scene.world.advance(0.01)
    writing.wire.fail(QUEUES, UNLIMITED)  # In the background it would be read again.
    return ["written to what was purged"] if end_of(writing.post(queue)) == "acknowledged" else []


def purged_while_it_was_read(scene: Scene) -> list[str]:
    """Purges a queue during a suspend, after which the answer to a read of its row arrives."""
    writing, purging = scene.start(), scene.start()
    queue = scene.queue(purging)
    gate = writing.wire.hold(QUEUES, answered=True)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(run_call, writing.store.catalogue.queue, queue.application, queue.name, fresh=True)
        gate.wait_until_reached()
        gate.wait_until_passed()
        bridge.run(purging.store.catalogue.purge_queue(queue))
        writing.machine.fall_behind(0.4 * S)
        writing.check_clock()
        gate.open()
        read.result(WAIT_TIMEOUT)
    scene.world.advance(0.01)
    writing.wire.fail(QUEUES, UNLIMITED)  # In the background it would be read again.
    return ["written to what was purged"] if end_of(writing.post(queue)) == "acknowledged" else []


def age_not_checked(removed: ExitStack) -> None:
    """Uses a queue's row of any age after ids were minted."""
    removed.enter_context(replace(MessageWriter._find_outdated, lambda self, row: None))


def reads_across_jumps(removed: ExitStack) -> None:
    """Trusts the age of a row although a clock jumped while it was read."""
    removed.enter_context(replace(ClockWatch.wrong_until, property(lambda self: -math.inf)))


def rows_across_jumps(removed: ExitStack) -> None:
    reads_across_jumps(removed)
    removed.enter_context(replace(QueueCache.forget_all, lambda self: None))


MECHANISMS: dict[str, tuple[Scenario, Callable[[ExitStack], None]]] = {
    "age of rows after ids were made": (stopped_before_minting, age_not_checked),
    "forgetting rows after a jump": (purged_while_stopped, rows_across_jumps),
    "distrust of reads across a jump": (purged_while_it_was_read, reads_across_jumps),
}
"""A scenario that breaks no promise, and what removes the mechanism that it needs."""


@pytest.mark.parametrize("name", MECHANISMS)
def test_each_mechanism_is_needed(scene: Scene, name: str) -> None:
    """The scenario violates nothing with the mechanism, and something without it, in another world."""
    scenario, remove = MECHANISMS[name]
    assert scenario(scene) == []
    other = Scene(scene.url, unique_name("app"))
    with contextlib.closing(other), ExitStack() as removed:
        remove(removed)
        assert scenario(other)
