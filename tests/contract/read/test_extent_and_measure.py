"""Tests of the extent of messages and the sizes of queues, which are found without reading bodies."""

from __future__ import annotations

import pytest
from msgspec import structs

from queuey.model import ids
from queuey.model.errors import QueueChanged
from queuey.model.messages import Measure, Message, Queue, QueueSpec, Slice
from queuey.storage import Store, bridge
from tests.backends import Clock
from tests.contract.samples import append_bodies, fill_queue, make_queue, new_message, whole_partition

HOUR = 3600 * ids.TICKS_PER_SECOND


def fill(store: Store, queue: Queue, count: int, *, partition: int = 1, body: str | bytes = "x") -> list[Message]:
    now = ids.now_ticks()
    messages = [Message(now - (count - n) * HOUR // 10, n, partition, now + 24 * HOUR, body) for n in range(count)]
    bridge.run(store.bulk.load(queue, messages))
    return messages


def measure_queue(store: Store, queue: Queue) -> list[Measure]:
    (measure,) = bridge.iterate(store.bulk.measure([queue]))
    return measure


class TestReach:
    """Tests of ``extent``: the position behind the first messages, up to a limit."""

    def test_chain(self, store: Store) -> None:
        """A chain of extents counts every message once, also those of one tick."""
        queue = make_queue(store)
        messages = fill(store, queue, 30)
        bridge.run(store.bulk.load(queue, [structs.replace(messages[10], low=low) for low in range(100, 120)]))
        part, total = Slice(1, limit=7), 0
        while True:
            count, end = bridge.run(store.bulk.extent(queue, part))
            total += count
            if count < 7:
                break
            part = structs.replace(part, lower=end)
        assert total == 50

    def test_fewer_than_the_limit(self, store: Store) -> None:
        """With fewer messages than the limit the extent ends at the upper bound, but never above the horizon."""
        queue = make_queue(store)
        messages = fill(store, queue, 10)
        assert bridge.run(store.bulk.extent(queue, Slice(1, upper=messages[4].position))) == (4, messages[4].position)
        before = bridge.run(store.bulk.horizon(queue))
        count, end = bridge.run(store.bulk.extent(queue, Slice(1, messages[3].position, limit=1000)))
        after = bridge.run(store.bulk.horizon(queue))
        assert count == 7
        assert (before, ids.LOW_MIN) <= end <= (after, ids.LOW_MIN)

    def test_only_what_is_due_and_alive(self, store: Store, clock: Clock) -> None:
        """Expired messages and those that are not due are not counted, and the end is below the latter."""
        queue = make_queue(store)
        bridge.run(store.messages.append(queue, [new_message("short", ttl=5)] * 3 + [new_message("long")] * 3))
        (late,) = bridge.run(store.messages.append(queue, [new_message("late", delay=60.0)]))
        clock.advance(10)
        count, end = bridge.run(store.bulk.extent(queue, Slice(1, limit=4)))
        assert count == 3
        assert end <= late
        clock.advance(60)
        assert bridge.run(store.bulk.extent(queue, Slice(1, end)))[0] == 1


class TestHorizon:
    """Tests of ``horizon``: the upper bound of a read."""

    def test_same_as_of_a_read(self, store: Store, clock: Clock) -> None:
        """The horizon is the same as that of a read at the same moment."""
        for read_delay in (0.0, 5.0):
            queue = fill_queue(store, "x", read_delay=read_delay)
            clock.advance(7)
            first = bridge.run(store.messages.read(queue, [whole_partition()]))[0].horizon
            assert (
                first
                <= bridge.run(store.bulk.horizon(queue))
                <= bridge.run(store.messages.read(queue, [whole_partition()]))[0].horizon
            )

    def test_a_message_that_comes_due(self, store: Store, clock: Clock) -> None:
        """A message that came due is below the next horizon, and no later message is ever below that."""
        queue = make_queue(store)
        (late,) = bridge.run(store.messages.append(queue, [new_message("late", delay=5.0)]))
        assert (bridge.run(store.bulk.horizon(queue)), ids.LOW_MIN) <= late
        clock.advance(6)
        horizon = bridge.run(store.bulk.horizon(queue))
        assert (horizon, ids.LOW_MIN) > late
        assert min(append_bodies(store, queue, "x")) >= (horizon, ids.LOW_MIN)


class TestMeasure:
    """Tests of ``measure``: the size of each partition."""

    def test_counts_and_sizes(self, store: Store) -> None:
        """Messages and the bytes of their bodies are counted per partition that has messages."""
        queue = make_queue(store, partitions=4)
        first = fill(store, queue, 20, body="x" * 10)
        third = fill(store, queue, 5, partition=3, body="ü€")
        third += fill(store, queue, 0)
        append_bodies(store, queue, b"\0" * 70_000, partition=4)
        measure = measure_queue(store, queue)
        assert [(one.partition, one.count, one.exact) for one in measure] == [(1, 20, True), (3, 5, True), (4, 1, True)]
        assert [one.size for one in measure] == [200, 25, 70_000]
        assert [(one.oldest, one.newest) for one in measure[:2]] == [
            (messages[0].position, messages[-1].position) for messages in (first, third)
        ]

    def test_many_queues(self, store: Store) -> None:
        """Each queue has its answer, in the order asked; an empty queue has an empty one."""
        queues = [make_queue(store, partitions=2) for _ in range(30)]
        for number, queue in enumerate(queues):
            fill(store, queue, number % 4, partition=1 + number % 2, body="x" * number)
        measures = list(bridge.iterate(store.bulk.measure(queues[::-1] + queues[:3])))
        expected = [[(1 + number % 2, number % 4, number % 4 * number)] if number % 4 else [] for number in range(30)]
        assert [[(one.partition, one.count, one.size) for one in some] for some in measures] == [
            *expected[::-1],
            *expected[:3],
        ]

    def test_gone_or_changed(self, store: Store) -> None:
        """An outdated row gives an empty answer and does not affect others."""
        queues = [make_queue(store) for _ in range(5)]
        for queue in queues:
            append_bodies(store, queue, "x")
        bridge.run(store.catalogue.purge_queue(queues[1]))
        bridge.run(store.catalogue.delete_queue(queues[2]))
        bridge.run(store.catalogue.update_queue(queues[3], QueueSpec(partitions=2)))
        assert [len(some) for some in bridge.iterate(store.bulk.measure(queues))] == [1, 0, 0, 0, 1]
        with pytest.raises(QueueChanged):
            bridge.run(store.bulk.horizon(queues[1]))

    def test_alive_and_delayed(self, store: Store, clock: Clock) -> None:
        """Expired messages are not counted, delayed ones are."""
        queue = make_queue(store)
        bridge.run(store.messages.append(queue, [new_message("short", ttl=5)] * 3 + [new_message("long")]))
        (late,) = bridge.run(store.messages.append(queue, [new_message("late", delay=60.0)]))
        clock.advance(10)
        [measure] = measure_queue(store, queue)
        assert (measure.count, measure.size, measure.newest) == (2, 8, late)
        clock.advance(5000)
        assert measure_queue(store, queue) == []
