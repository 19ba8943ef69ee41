"""Tests of reads that do not wait for the read delay."""

from __future__ import annotations

from msgspec import structs

from queuey.model.messages import Page, Queue, Slice
from queuey.storage import Store
from tests.contract.samples import append_bodies, begin, fill_queue, read_one, whole_partition

AHEAD = structs.replace(whole_partition(), ahead=True)


def begun_read(store: Store, queue: Queue, part: Slice) -> Page:
    [page] = begin(store.messages.read(queue, [part])).result(60)
    return page


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
