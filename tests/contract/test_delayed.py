"""Tests of messages with a delay."""

from __future__ import annotations

import pytest
from msgspec import structs

from queuey import ids
from queuey.storage import Store, bridge
from tests.backends import Clock
from tests.contract.samples import (
    append_bodies,
    bodies,
    bodies_in_partition,
    make_queue,
    messages_in_partition,
    new_message,
    whole_partition,
)

MILLISECOND = ids.TICKS_PER_SECOND // 1000


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
