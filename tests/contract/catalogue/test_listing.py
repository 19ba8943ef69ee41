"""Tests of listing queues."""

from __future__ import annotations

import pytest
from msgspec import structs

from queuey.model.messages import Principal, Queue, QueueSpec
from queuey.storage import Store, bridge
from tests.backends import APP
from tests.contract.samples import make_queue

NAMES = [
    *("-", " ", "A", "Z", "_", "a", "a b", "a%", "aa", "ab", "b'; DROP TABLE queues; --", "e\u0301", "z", "\u00e9"),
    *("\u05d0", "\u4e2d\u6587", "\uffef", "\U0001f600", "\U0001f600\U0001f600"),
]


def list_by_pages(store: Store, size: int, start: str = "") -> list[Queue]:
    queues: list[Queue] = []
    while True:
        page = bridge.run(store.catalogue.list_queues(APP, start=start, limit=size + 1))
        queues += page[:size]
        if len(page) <= size:
            return queues
        start = page[size].name


@pytest.fixture
def many(store: Store) -> dict[str, Queue]:
    """Makes queues, in random order, whose names sort differently under different rules."""
    return {name: make_queue(store, name) for name in sorted(NAMES, key=lambda name: name[::-1])}


def test_pages_make_the_whole(store: Store, other: Store, many: dict[str, Queue]) -> None:
    """Pages of any size give every queue once, in the order of one large page, in every store."""
    order = [queue.name for queue in bridge.run(store.catalogue.list_queues(APP))]
    assert sorted(order) == sorted(many)
    for size in range(1, len(NAMES) + 2):
        for handle in (store, other):
            assert [queue.name for queue in list_by_pages(handle, size)] == order


def test_rows_are_complete(store: Store) -> None:
    """A listed queue has all its fields and can be used like one that was looked up."""
    spec = QueueSpec(
        partitions=4, type="public", consistency="weak", principals=(Principal("app:x"),), ttl=9, read_delay=0.0
    )
    queue, _ = bridge.run(store.catalogue.create_queue(APP, "orders", spec))
    (row,) = bridge.run(store.catalogue.list_queues(APP))
    assert structs.replace(row, version=0) == structs.replace(queue, version=0)
    assert bridge.run(store.messages.inspect(row))[1][3].count == 0


def test_listing_shows_the_present(store: Store, other: Store) -> None:
    """A listing shows created, changed and deleted queues as they are now, also after changes by another store."""
    names = ["a", "b", "c"]
    for name in names:
        make_queue(store, name)
    bridge.run(other.catalogue.delete_queue(bridge.run(other.catalogue.queue(APP, "b"))))
    bridge.run(other.catalogue.update_queue(bridge.run(other.catalogue.queue(APP, "c")), QueueSpec(partitions=5)))
    make_queue(other, "d")
    for handle in (store, other):
        assert sorted((queue.name, queue.partitions) for queue in bridge.run(handle.catalogue.list_queues(APP))) == [
            ("a", 1),
            ("c", 5),
            ("d", 1),
        ]


def test_applications_do_not_see_each_other(store: Store, many: dict[str, Queue]) -> None:
    """The same name in two applications is two queues, with their own messages, fields and lists."""
    bridge.run(store.applications.create_application("globex"))
    assert bridge.run(store.catalogue.list_queues("globex")) == []
    mine = many["a"]
    theirs = make_queue(store, "a", application="globex", partitions=2)
    assert (mine.uid, mine.qid) != (theirs.uid, theirs.qid)
    assert [queue.application for queue in bridge.run(store.catalogue.list_queues("globex"))] == ["globex"]
    assert {queue.application for queue in bridge.run(store.catalogue.list_queues(APP))} == {APP}
    assert bridge.run(store.catalogue.queue(APP, "a")).partitions == 1
    assert bridge.run(store.catalogue.queue("globex", "a")).partitions == 2
    bridge.run(store.catalogue.delete_queue(theirs))
    assert bridge.run(store.catalogue.queue(APP, "a", fresh=True)).uid == mine.uid
