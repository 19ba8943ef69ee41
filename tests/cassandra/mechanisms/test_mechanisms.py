"""Mechanisms that keep the store's promises: each has a scenario on a real node that fails without it.

The histories of ``tests/sim/cassandra`` show the same for other mechanisms, without a node.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec
import pytest

from queuey.ids import LOW_MIN
from queuey.messages import Page, Queue, Slice
from queuey.storage import bridge
from queuey.storage.cassandra.bucket_index import BucketIndex, BucketLookup
from queuey.storage.cassandra.catalogue.queue_cache import QueueCache, Row
from queuey.storage.cassandra.clocks.clock import ticks
from queuey.storage.cassandra.clocks.clock_watch import ClockWatch
from queuey.storage.cassandra.store.messages import CassandraMessages
from queuey.storage.cassandra.write.writer import MessageWriter
from tests.cassandra.interposed import QUEUES, READS, UNLIMITED, WAIT_TIMEOUT
from tests.cassandra.scene import TTL, D, Reader, S, Scene, end_of, message
from tests.contract.samples import run_call
from tests.replacing import replace, replace_in
from tests.servers.plugin import unique_name

LONG = 5 * 86_400
"""A TTL beyond the queue's class, so that its bucket has to be recorded."""

Scenario = Callable[[Scene], list[str]]
"""Plays a scenario and returns the violations."""


class Mechanism(NamedTuple):
    """A mechanism that keeps a promise.

    Attributes:
        what: Its name.
        scenario: Returns no violations while the mechanism works.
        remove: Disables the mechanism until the exit stack closes.
    """

    what: str
    scenario: Scenario
    remove: Callable[[contextlib.ExitStack], None]

    def __str__(self) -> str:
        return self.what


def slow_read(scene: Scene) -> list[str]:
    """Lets writes made since a read began become older than the read delay before the read's answer arrives."""
    writing, reading_ = scene.start(), scene.start()
    queue = scene.queue(writing)
    reader = Reader(reading_, queue)
    gate = reading_.wire.hold(READS, answered=True)
    thread = threading.Thread(target=reader.read_more)
    thread.start()
    gate.wait_until_reached()
    attempt = writing.post(queue)
    assert end_of(attempt) == "acknowledged"
    scene.world.advance(D + S)
    gate.open()
    thread.join(WAIT_TIMEOUT)
    reader.read_more()
    return reader.find_missed([attempt])


def longer_lived(scene: Scene) -> list[str]:
    """Posts a message that lives longer than the queue's row said when the reader last read it."""
    writing, stale = scene.start(), scene.start()
    queue = scene.queue(writing, ttl=60)
    bridge.run(stale.store.catalogue.queue(queue.application, queue.name, fresh=True))
    scene.world.advance(0.01)
    attempt = writing.post(queue, message(ttl=TTL))
    end_of(attempt)
    scene.world.advance(100)
    reader = Reader(stale, queue)
    reader.read_more()
    return reader.find_missed([attempt])


def place_seen_late(scene: Scene) -> list[str]:
    """Uses a lookup that is nearly as old as allowed, with the writer's clock behind and the reader's ahead."""
    options = {"row_age": D - S}
    writing, reading_ = scene.start(**options), scene.start(**options)
    queue = scene.queue(writing, ttl=TTL)
    for process, behind in ((writing, 0.39 * S), (reading_, -0.39 * S)):
        process.machine.fall_behind(behind)
        assert process.check_clock()
    reader = Reader(reading_, queue)
    reader.read_more()
    scene.world.advance(0.01)
    attempt = writing.post(queue, message(ttl=LONG))
    assert end_of(attempt) == "acknowledged"
    scene.world.advance(D - 0.78 * S + 0.01)
    reader.read_more()
    return reader.find_missed([attempt])


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


def horizon_afterwards(removed: ExitStack) -> None:
    """Reports the horizon as of the end of a read."""
    read = CassandraMessages.read

    async def late(self: CassandraMessages, queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        pages = await read(self, queue, slices)
        for page in pages:
            page.horizon = self._clock.now() - ticks(D)
            if not page.more:
                page.next = page.horizon, LOW_MIN
        return pages

    removed.enter_context(replace_in(CassandraMessages, read, late))


def rows_for_ever(removed: ExitStack) -> None:
    def held(self: QueueCache, queue: Queue, *, since: float | None = None) -> Row | None:
        return self._rows.get((queue.application, queue.name))

    removed.enter_context(replace(QueueCache.find_cached, held))
    removed.enter_context(replace(QueueCache.forget_all, lambda self: None))


def looks_of_longer_ago(removed: ExitStack) -> None:
    """Uses lookups of buckets a little longer than allowed."""
    cached = BucketIndex.find_cached

    def old(self: BucketIndex, *time_bucket: int, since: float, **kind: bool) -> BucketLookup | None:
        return cached(self, *time_bucket, since=since - S, **kind)

    removed.enter_context(replace(cached, old))


def age_not_checked(removed: ExitStack) -> None:
    """Uses a queue's row of any age after ids were minted."""
    fresh = MessageWriter._require_fresh_row
    removed.enter_context(
        replace(fresh, lambda self, queue: msgspec.structs.replace(fresh(self, queue), read_at=math.inf))
    )


def reads_across_jumps(removed: ExitStack) -> None:
    """Trusts the age of a row although a clock jumped while it was read."""
    removed.enter_context(replace(ClockWatch.wrong_until, property(lambda self: -math.inf)))


def rows_across_jumps(removed: ExitStack) -> None:
    reads_across_jumps(removed)
    removed.enter_context(replace(QueueCache.forget_all, lambda self: None))


MECHANISMS = (
    Mechanism("horizon before the read", slow_read, horizon_afterwards),
    Mechanism("age of rows", longer_lived, rows_for_ever),
    Mechanism("age of rows after ids were made", stopped_before_minting, age_not_checked),
    Mechanism("age of looks at buckets, to the second", place_seen_late, looks_of_longer_ago),
    Mechanism("forgetting rows after a jump", purged_while_stopped, rows_across_jumps),
    Mechanism("distrust of reads across a jump", purged_while_it_was_read, reads_across_jumps),
)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_each_mechanism_is_needed(scene: Scene, mechanism: Mechanism) -> None:
    """The scenario violates nothing with the mechanism, and something without it, in another world."""
    assert mechanism.scenario(scene) == []
    other = Scene(scene.url, unique_name("app"))
    with contextlib.closing(other), contextlib.ExitStack() as removed:
        mechanism.remove(removed)
        assert mechanism.scenario(other)
