"""Tests of reads that do not wait for the read delay."""

from __future__ import annotations

from msgspec import structs

from queuey.messages import Page, Queue, Slice
from queuey.storage import Store, bridge
from tests.backends import Clock
from tests.contract.samples import (
    append_bodies,
    begin,
    bodies,
    fill_queue,
    make_queue,
    new_message,
    read_one,
    whole_partition,
)

AHEAD = structs.replace(whole_partition(), ahead=True)


def test_delayed_messages_are_hidden_until_due(store: Store, other: Store, clock: Clock) -> None:
    """A delayed message is shown only when it is due, even if no message is written in between."""
    queue = make_queue(store)
    bridge.run(store.messages.append(queue, [new_message("now"), new_message("late", delay=10.0)]))
    clock.advance(1)
    for handle in (store, other):
        assert bodies(read_one(handle, queue, AHEAD).messages) == ["now"]
    clock.advance(8)
    assert bodies(read_one(other, queue, AHEAD).messages) == ["now"]
    clock.advance(2)
    for handle in (store, other):
        assert bodies(read_one(handle, queue, AHEAD).messages) == ["now", "late"]


def begun_read(store: Store, queue: Queue, part: Slice) -> Page:
    [page] = begin(store.messages.read(queue, [part])).result(60)
    return page


def test_on_a_loop(store: Store) -> None:
    """A busy queue is read ahead on an event loop."""
    queue = fill_queue(store, "x", read_delay=None)
    assert bodies(begun_read(store, queue, AHEAD).messages) == ["x"]


def test_only_ids(store: Store) -> None:
    """A read of ids only has the same messages, ends and pages."""
    queue = fill_queue(store, *(f"{number}" for number in range(7)), read_delay=None)
    append_bodies(store, queue, "short-lived", ttl=60)

    for part in (AHEAD, structs.replace(AHEAD, limit=3), structs.replace(AHEAD, limit=3, descending=True)):
        page, without = read_one(store, queue, part), structs.replace(part, bodies=False)
        for one in (read_one(store, queue, without), begun_read(store, queue, without)):
            assert one.more == page.more
            assert one.next == page.next or not page.more
            assert [(message.position, message.expires) for message in one.messages] == [
                (message.position, message.expires) for message in page.messages
            ]
