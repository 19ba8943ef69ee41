"""Tests of calls with an outdated queue row."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuey.model import ids
from queuey.model.errors import QueueChanged
from queuey.model.messages import OffsetChange, Queue, QueueSpec
from queuey.storage import Store, bridge
from tests.backends import APP
from tests.contract.catalogue.test_lifecycle import CALLS, PLACE
from tests.contract.samples import append_bodies, bodies_in_partition, make_queue, new_message

OF_A_QUEUE = [
    *("update_queue", "delete_queue", "purge_queue", "append", "append on a loop", "append_once", "put", "fetch"),
    *("delete", "read", "inspect", "lag", "scan", "load", "horizon", "scan_arrow", "extent", "load_unread"),
    *("set_offsets", "group_offsets", "groups", "delete_group", "append_entry on a loop", "read_log"),
    *("write_snapshot",),
]
"""The calls that take a queue."""


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
    for name in OF_A_QUEUE:
        try:
            CALLS[name](store, queue)
        except QueueChanged:
            continue
        served.append(name)
    assert served == []
    if change != "deleted":
        assert bridge.run(changer.catalogue.queue(APP, queue.name, fresh=True)) == row
        assert bodies_in_partition(changer, row) == ["mine"]
        assert bridge.run(changer.claim_logs.read_log(row, 1, 1)).last == 0
        assert bridge.run(changer.offsets.groups(row)) == ["group"]
        assert bridge.run(changer.offsets.group_offsets(row, "group")) == offsets


def test_a_row_of_another_store_is_as_good(store: Store, other: Store) -> None:
    """A row may be used with every Store object on the same data."""
    queue = make_queue(store)
    append_bodies(other, queue, "a")
    append_bodies(store, bridge.run(other.catalogue.queue(APP, queue.name)), "b")
    assert bodies_in_partition(other, queue) == ["a", "b"]
