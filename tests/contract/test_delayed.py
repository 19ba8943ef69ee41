"""Tests of messages with a delay."""

from __future__ import annotations

from msgspec import structs

from queuey.storage import Store, bridge
from tests.backends import Clock
from tests.contract.samples import bodies, make_queue, new_message, whole_partition


def test_hidden_until_due(store: Store, other: Store, clock: Clock) -> None:
    """Range reads of any kind and store show a delayed message from its due time on, and not before."""
    queue = make_queue(store)
    bridge.run(store.messages.append(queue, [new_message("late", delay=10.0)]))
    kinds = [
        structs.replace(whole_partition(), descending=down, keeps_read_delay=kept)
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
