"""Tests of the sizes of partitions and of lags, computed without reading messages."""

from __future__ import annotations

import pytest

from queuey.model.ids import Position
from queuey.model.messages import PartitionBounds, Queue
from queuey.storage import Store, bridge
from tests.backends import Clock
from tests.contract.samples import append_bodies, make_queue, messages_in_partition, new_message


def test_small_queues_are_counted(store: Store, other: Store) -> None:
    """Counts and ends are exact after appends, puts, overwrites and deletes, in every store."""
    queue = make_queue(store, partitions=2)
    positions = append_bodies(store, queue, *"abcdef")
    bridge.run(store.messages.put(queue, [(1, positions[2]), (2, (77, 0)), (2, (78, 0))], new_message("put")))
    bridge.run(store.messages.delete(queue, [(1, positions[0]), (1, positions[3]), (2, (78, 0)), (2, positions[1])]))
    bridge.run(store.messages.delete(queue, [(1, positions[0])]))
    for handle in (store, other):
        assert bridge.run(handle.messages.inspect(queue))[1] == [
            PartitionBounds(1, 4, exact=True, oldest=positions[1], newest=positions[5]),
            PartitionBounds(2, 1, exact=True, oldest=(77, 0), newest=(77, 0)),
        ]


def store_evenly(store: Store, queue: Queue, clock: Clock) -> list[Position]:
    """Stores 24,000 messages, 1,000 in each of 24 seconds of the test's clock."""
    positions: list[Position] = []
    for _ in range(24):
        clock.advance(1)
        positions += append_bodies(store, queue, *["x"] * 1000)
    return positions


@pytest.mark.slow_on("simulated")
def test_many_messages_are_counted_or_estimated(store: Store, clock: Clock) -> None:
    """A count is exact, or is marked as an estimate and is near the truth.

    It also reflects deletes, in the partition and behind an offset.
    """
    queue = make_queue(store)
    positions = store_evenly(store, queue, clock)
    _, (info,) = bridge.run(store.messages.inspect(queue))
    assert info.count == 24_000 if info.exact else 20_000 <= info.count <= 28_000
    assert [message.position for message in messages_in_partition(store, queue)] == positions
    assert (info.oldest, info.newest) == (positions[0], positions[-1])
    lag = bridge.run(store.messages.lag(queue, [(1, positions[12_000]), (1, positions[23_000])]))
    assert lag[1].exact
    assert lag[1].count == 999
    assert lag[0].count == 11_999 if lag[0].exact else 10_000 <= lag[0].count <= 14_000

    for start in range(0, 24_000, 3000):
        bridge.run(store.messages.delete(queue, [(1, place) for place in positions[start : start + 1000]]))
    _, (info,) = bridge.run(store.messages.inspect(queue))
    assert info.count == 16_000 if info.exact else 14_000 <= info.count <= 18_000
    assert (info.oldest, info.newest) == (positions[1000], positions[-1])
    (behind,) = bridge.run(store.messages.lag(queue, [(1, positions[3999])]))
    assert behind.count == 14_000 if behind.exact else 12_000 <= behind.count <= 16_000


class TestLag:
    """Tests of the messages between an offset and the horizon."""

    def test_partitions(self, store: Store) -> None:
        """Each offset is compared with its own partition, in the order asked; one beyond the queue has no lag."""
        queue = make_queue(store, partitions=2)
        (first,) = append_bodies(store, queue, "a")
        append_bodies(store, queue, "b", "c", partition=2)
        for neighbour in [make_queue(store) for _ in range(3)]:
            append_bodies(store, neighbour, "x")
        offsets: list[tuple[int, Position | None]] = [
            (2, first),
            (1, first),
            (2, None),
            (1, None),
            (3, None),
            (257, None),
        ]
        assert [lag.count for lag in bridge.run(store.messages.lag(queue, offsets))] == [2, 0, 2, 1, 0, 0]
        assert bridge.run(store.messages.lag(queue, [])) == []

    def test_age(self, store: Store, clock: Clock) -> None:
        """The lag in seconds is the age of the oldest message above the offset, or 0 without such messages."""
        queue = make_queue(store)
        (first,) = append_bodies(store, queue, "a")
        clock.advance(60)
        (second,) = append_bodies(store, queue, "b")
        clock.advance(30)
        ages = [lag.seconds for lag in bridge.run(store.messages.lag(queue, [(1, None), (1, first), (1, second)]))]
        assert ages == [pytest.approx(90, abs=0.1), pytest.approx(30, abs=0.1), 0.0]

    def test_horizon_bounds_it(self, store: Store, clock: Clock) -> None:
        """Messages that a reader could not read yet are not part of its lag."""
        queue = make_queue(store, read_delay=10.0)
        append_bodies(store, queue, "a")
        clock.advance(11)
        append_bodies(store, queue, "b")
        assert bridge.run(store.messages.lag(queue, [(1, None)]))[0].count == 1
