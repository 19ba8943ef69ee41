"""Tests of calls with an outdated queue row."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuey import ids
from queuey.errors import QueueChanged
from queuey.messages import Message, OffsetChange, Queue, QueueSpec
from queuey.storage import Store, bridge
from tests.backends import APP
from tests.contract.samples import (
    append_bodies,
    bodies_in_partition,
    make_queue,
    new_message,
    start_append,
    whole_partition,
)
from tests.waiting import PATIENCE_SECONDS

PLACE = (1, (ids.EPOCH_TICKS, 0))


def make_message_ahead(store: Store) -> Message:
    """Returns a message that is not due for long."""
    due = bridge.run(store.ledger.now()) + 3600 * ids.TICKS_PER_SECOND
    return Message(due, 0, 1, due + 3600 * ids.TICKS_PER_SECOND, "late")


CALLS: dict[str, Callable[[Store, Queue], object]] = {
    "update_queue": lambda store, queue: bridge.run(store.catalogue.update_queue(queue, QueueSpec(ttl=99))),
    "delete_queue": lambda store, queue: bridge.run(store.catalogue.delete_queue(queue)),
    "purge_queue": lambda store, queue: bridge.run(store.catalogue.purge_queue(queue)),
    "append": lambda store, queue: bridge.run(store.messages.append(queue, [new_message("late")])),
    "append on a loop": lambda store, queue: start_append(store, queue, [new_message("late")]).result(PATIENCE_SECONDS),
    "append delayed": lambda store, queue: bridge.run(store.messages.append(queue, [new_message("late", delay=5.0)])),
    "put": lambda store, queue: bridge.run(store.messages.put(queue, [PLACE], new_message("late"))),
    "fetch": lambda store, queue: bridge.run(store.messages.fetch(queue, [PLACE])),
    "delete": lambda store, queue: bridge.run(store.messages.delete(queue, [PLACE])),
    "read": lambda store, queue: bridge.run(store.messages.read(queue, [whole_partition()])),
    "inspect": lambda store, queue: bridge.run(store.messages.inspect(queue)),
    "lag": lambda store, queue: bridge.run(store.messages.lag(queue, [(1, None)])),
    "scan": lambda store, queue: list(bridge.iterate(store.bulk.scan(queue, whole_partition()))),
    "load": lambda store, queue: bridge.run(store.bulk.load(queue, [Message(*PLACE[1], 1, ids.TICKS_MAX, "late")])),
    "horizon": lambda store, queue: bridge.run(store.bulk.horizon(queue)),
    "scan_arrow": lambda store, queue: list(bridge.iterate(store.bulk.scan_arrow(queue, whole_partition()))),
    "reach": lambda store, queue: bridge.run(store.bulk.extent(queue, whole_partition())),
    "load_unread": lambda store, queue: bridge.run(store.bulk.load_unread(queue, [make_message_ahead(store)])),
    "set_offsets": lambda store, queue: bridge.run(
        store.offsets.set_offsets(queue, "late", [OffsetChange(1, ids.LAST)])
    ),
    "offsets": lambda store, queue: bridge.run(store.offsets.group_offsets(queue, "group")),
    "groups": lambda store, queue: bridge.run(store.offsets.groups(queue)),
    "delete_group": lambda store, queue: bridge.run(store.offsets.delete_group(queue, "group")),
}


def recreate(store: Store, queue: Queue) -> None:
    bridge.run(store.catalogue.delete_queue(queue))
    bridge.run(
        store.catalogue.create_queue(
            queue.application, queue.name, QueueSpec(partitions=queue.partitions, read_delay=queue.read_delay)
        )
    )


CHANGES: dict[str, Callable[[Store, Queue], object]] = {
    "deleted": lambda store, queue: bridge.run(store.catalogue.delete_queue(queue)),
    "purged": lambda store, queue: bridge.run(store.catalogue.purge_queue(queue)),
    "updated": lambda store, queue: bridge.run(store.catalogue.update_queue(queue, QueueSpec(partitions=3))),
    "recreated": recreate,
}


@pytest.fixture(params=["same store", "other store"])
def changer(request: pytest.FixtureRequest, store: Store, other: Store) -> Store:
    """The store that changes the queue: the one that is then called, or another process's."""
    return store if request.param == "same store" else other


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_every_call_notices(store: Store, changer: Store, change: str) -> None:
    """Each call that takes a queue refuses a row from before the change, and leaves the queue as that had left it."""
    queue = make_queue(store, partitions=2)
    bridge.run(store.messages.put(queue, [PLACE], new_message("early")))
    bridge.run(store.offsets.set_offsets(queue, "group", [OffsetChange(1, ids.FIRST)]))
    CHANGES[change](changer, bridge.run(changer.catalogue.queue(APP, queue.name)))
    if change != "deleted":
        row = bridge.run(changer.catalogue.queue(APP, queue.name, fresh=True))
        bridge.run(changer.messages.put(row, [PLACE], new_message("mine")))
        bridge.run(changer.offsets.set_offsets(row, "group", [OffsetChange(2, ids.LAST)]))
        offsets = bridge.run(changer.offsets.group_offsets(row, "group"))
    served = []
    for name, call in CALLS.items():
        try:
            call(store, queue)
        except QueueChanged:
            continue
        served.append(name)
    assert served == []
    if change != "deleted":
        assert bridge.run(changer.catalogue.queue(APP, queue.name, fresh=True)) == row
        assert bodies_in_partition(changer, row) == ["mine"]
        assert bridge.run(changer.offsets.groups(row)) == ["group"]
        assert bridge.run(changer.offsets.group_offsets(row, "group")) == offsets


def test_a_row_of_another_store_is_as_good(store: Store, other: Store) -> None:
    """A row may be used with every Store object on the same data."""
    queue = make_queue(store)
    append_bodies(other, queue, "a")
    append_bodies(store, bridge.run(other.catalogue.queue(APP, queue.name)), "b")
    assert bodies_in_partition(other, queue) == ["a", "b"]
