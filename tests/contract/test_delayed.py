"""Tests of messages with a delay."""

from __future__ import annotations

import pytest
from msgspec import structs

from queuey import ids
from queuey.messages import Slice
from queuey.storage import Store, bridge
from tests.backends import Clock
from tests.contract.samples import (
    append_bodies,
    bodies,
    bodies_in_partition,
    make_queue,
    messages_in_partition,
    new_message,
    read_one,
    whole_partition,
)

MILLISECOND = ids.TICKS_PER_SECOND // 1000
TICK = 1 / ids.TICKS_PER_SECOND


def test_hidden_until_due(store: Store, other: Store, clock: Clock) -> None:
    """Range reads of any kind and store show a delayed message from its due time on, and not before."""
    queue = make_queue(store)
    bridge.run(store.messages.append(queue, [new_message("late", delay=10.0)]))
    kinds = [
        structs.replace(whole_partition(), descending=down, delayed=kept)
        for down in (False, True)
        for kept in (False, True)
    ]
    for handle in (store, other):
        assert [page.messages for page in bridge.run(handle.messages.read(queue, kinds))] == [[]] * 4
    clock.advance(9.99)
    for handle in (other, store):
        assert [page.messages for page in bridge.run(handle.messages.read(queue, kinds))] == [[]] * 4
    clock.advance(0.02)
    for handle in (other, store):
        assert [bodies(page.messages) for page in bridge.run(handle.messages.read(queue, kinds))] == [["late"]] * 4


def test_found_by_id_before_due(store: Store, other: Store) -> None:
    """A delayed message can be fetched by its id at any time."""
    queue = make_queue(store)
    (position,) = bridge.run(store.messages.append(queue, [new_message("late", delay=3600.0)]))
    for handle in (store, other):
        assert bodies(bridge.run(handle.messages.fetch(queue, [(1, position)]))) == ["late"]


@pytest.mark.needs("exact_horizon")
def test_moves_no_generator(store: Store, other: Store, clock: Clock) -> None:
    """Messages without delay get ids of now, below a delayed one, and are shown at once."""
    queue = make_queue(store)
    (late,) = bridge.run(store.messages.append(queue, [new_message("late", delay=60.0)]))
    early = [*append_bodies(store, queue, "a"), *append_bodies(other, queue, "b")]
    assert max(early) < late
    assert max(early)[0] - clock.ticks < MILLISECOND
    assert bodies_in_partition(store, queue) == ["a", "b"]
    clock.advance(61)
    append_bodies(other, queue, "c")
    assert bodies_in_partition(store, queue) == ["a", "b", "late", "c"]


def test_due_without_further_writes(store: Store, other: Store, clock: Clock) -> None:
    """Delayed messages appear one after another without further writes, also for cursors kept since before."""
    queue, unrelated = make_queue(store), make_queue(store)
    for number in range(1, 6):
        bridge.run(
            store.messages.append(queue if number % 2 else unrelated, [new_message(str(number), delay=float(number))])
        )
    part = Slice(partition=1)
    seen = []
    for number in range(1, 7):
        clock.advance(1.0)
        page = read_one((store, other)[number % 2], queue, part)
        seen += page.messages
        assert page.next is not None
        part = structs.replace(part, lower=page.next)
    assert bodies(seen) == ["1", "3", "5"]


def test_purged_and_deleted_before_due(store: Store, clock: Clock) -> None:
    """A message that was delayed when its queue was purged or deleted never appears."""
    purged, deleted = make_queue(store), make_queue(store)
    for queue in (purged, deleted):
        bridge.run(store.messages.append(queue, [new_message("late", delay=10.0)]))
    purged = bridge.run(store.catalogue.purge_queue(purged))
    bridge.run(store.catalogue.delete_queue(deleted))
    again = make_queue(store, deleted.name)
    clock.advance(11)
    assert messages_in_partition(store, purged) == []
    assert messages_in_partition(store, again) == []


@pytest.mark.parametrize("pushed", [0.0, 0.9])
def test_never_below_what_a_reader_passed(store: Store, clock: Clock, pushed: float) -> None:
    """However short the delay and however far ids are ahead of the clock, no cursor has passed a delayed message."""
    queue = make_queue(store)
    for seconds in (-60.0, 0.0):
        bridge.run(
            store.messages.append(
                queue, [new_message("x")], after=(clock.ticks + round(pushed * ids.TICKS_PER_SECOND), 0)
            )
        )
        cursor = read_one(store, queue, whole_partition()).next
        clock.advance(seconds)
        assert cursor is not None
        for delay in (TICK, 0.001, 0.5, 30.0):
            (position,) = bridge.run(store.messages.append(queue, [new_message("late", delay=delay)]))
            assert position >= cursor
    clock.advance(200)
    assert bodies(messages_in_partition(store, queue)).count("late") == 8
