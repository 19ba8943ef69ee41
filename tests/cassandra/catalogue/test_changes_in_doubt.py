"""Changes whose answers are lost: what the caller is told is what happened."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from queuey import ids
from queuey.errors import NotOwner, StoreUnavailable
from queuey.groups.ownership import MemberCommit, OwnedOffset
from queuey.groups.state import GroupChange, GroupRow, Head, StoredGroup
from queuey.messages import OffsetChange, QueueSpec
from queuey.storage.cassandra.driver import InDoubt, Statement
from tests.cassandra.conftest import OpenStore
from tests.cassandra.interposed import ALWAYS, Wire

DIGEST = hashlib.sha256(b"key")
FIRST, SECOND = (ids.EPOCH_TICKS, 0), (ids.EPOCH_TICKS + 1, 0)

Meddle = Callable[[], object]


class LostAnswers:
    """Lets every conditional write of a store be in doubt every other time it is sent.

    Args:
        wire: The store's.
        arrives: The write reaches Cassandra; only the answer is lost.
        then: Done by others before the write is sent again, once.
    """

    def __init__(self, wire: Wire, *, arrives: bool, then: Meddle = lambda: None) -> None:
        self._then: Meddle | None = then
        self._doubted: set[Statement] = set()
        self.lost = 0
        if arrives:
            wire.lose(self._is_lost, ALWAYS, self._meddle)
        else:
            wire.fail(self._is_lost, ALWAYS, InDoubt("the answer was lost"), self._meddle)

    def _is_lost(self, statement: Statement) -> bool:
        if statement.idempotent or statement in self._doubted:
            self._doubted.discard(statement)
            return False
        self._doubted.add(statement)
        self.lost += 1
        return True

    def _meddle(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()


@pytest.fixture
def wire() -> Wire:
    """The way of the store whose answers are lost."""
    return Wire()


@pytest.mark.parametrize("arrives", [True, False])
def test_all_changes(open_with: OpenStore, application: str, wire: Wire, *, arrives: bool) -> None:
    """Every change whose first answer is lost, whether it was made or not, ends as if none had been lost."""
    store, other = open_with(wire), open_with()
    losing = LostAnswers(wire, arrives=arrives)
    store.create_application(f"{application}x")
    queue, created = store.create_queue(application, "queue", QueueSpec(ttl=60))
    assert created
    assert other.queue(application, "queue", fresh=True) == queue
    calls = store._driver.calls
    calls.run(store._rows.cover(calls.run(store._rows.current(queue)), {1000}, 0))
    assert other._driver.calls.run(other._rows.read(application, "queue")).longest_ttl == 1024
    updated = store.update_queue(queue, QueueSpec(partitions=2))
    purged = store.purge_queue(updated)
    assert other.queue(application, "queue", fresh=True) == purged
    (offset,) = store.set_offsets(purged, "group", [OffsetChange(1, FIRST, None, compare=True)])
    assert other.offsets(purged, "group") == [offset]
    store.delete_group(purged, "group")
    assert other.groups(purged) == []
    head = store.change_group(application, "group", 0, GroupChange(Head(epoch=1), (GroupRow(1, 0, b"member"),)))
    assert head is not None
    assert other.group_state(application, "group") == StoredGroup(head, (GroupRow(1, 0, b"member"),))
    assert store.hand_over(purged, "members", None, [OwnedOffset(1, owner=1, epoch=1)])
    assert other.owned_offsets(purged, "members").rows == {1: OwnedOffset(1, owner=1, epoch=1)}
    assert store.remove_group(application, "group", head.version)
    assert other.group_state(application, "group") is None
    key = store.add_key(application, DIGEST.digest(), note="n")
    assert other.find_key(DIGEST.digest()) == key
    assert store.expire_key(application, key.id, 5.0) == other.find_key(DIGEST.digest())
    store.revoke_key(application, key.id)
    assert other.find_key(DIGEST.digest()) is None
    store.delete_queue(purged)
    assert other.list_queues(application) == []
    assert other._driver.calls.run(other._index.scan(application, "").take(9)) == []
    assert losing.lost >= 12


def test_made_then_changed_by_others(open_with: OpenStore, application: str, wire: Wire) -> None:
    """A change that was made and then changed again by others cannot be told from one never made: unknown."""
    store, other = open_with(wire), open_with()
    queue, _ = store.create_queue(application, "queue", QueueSpec())

    def meddle() -> None:
        other.update_queue(other.queue(application, "queue", fresh=True), QueueSpec(ttl=99))

    LostAnswers(wire, arrives=True, then=meddle)
    with pytest.raises(StoreUnavailable) as raised:
        store.update_queue(queue, QueueSpec(partitions=5))
    assert raised.value.outcome == "unknown"
    now = other.queue(application, "queue", fresh=True)
    assert (now.partitions, now.ttl) == (5, 99)


def test_offset_set_then_moved_by_others(open_with: OpenStore, application: str, wire: Wire) -> None:
    """A comparison in doubt is not answered by a conflict: that would say that nothing was set."""
    store, other = open_with(wire), open_with()
    queue, _ = store.create_queue(application, "queue", QueueSpec())
    LostAnswers(wire, arrives=True, then=lambda: other.set_offsets(queue, "group", [OffsetChange(1, SECOND)]))
    with pytest.raises(StoreUnavailable) as raised:
        store.set_offsets(queue, "group", [OffsetChange(1, FIRST, None, compare=True)])
    assert raised.value.outcome == "unknown"


def test_offset_set_again(open_with: OpenStore, application: str, wire: Wire) -> None:
    """Without comparing, an offset in doubt is set again, over what others set meanwhile."""
    store, other = open_with(wire), open_with()
    queue, _ = store.create_queue(application, "queue", QueueSpec(partitions=2))
    others = [OffsetChange(1, SECOND), OffsetChange(2, SECOND)]
    LostAnswers(wire, arrives=True, then=lambda: other.set_offsets(queue, "group", others))
    store.set_offsets(queue, "group", [OffsetChange(1, FIRST)])
    assert [offset.position for offset in other.offsets(queue, "group")] == [FIRST, SECOND]


@pytest.mark.parametrize("then", ["delete", "recreate"])
def test_deleted_by_somebody(open_with: OpenStore, application: str, wire: Wire, then: str) -> None:
    """A delete in doubt of a queue that is gone has reached its end, whoever got there, also if the name is used."""
    store, other = open_with(wire), open_with()
    queue, _ = store.create_queue(application, "queue", QueueSpec())

    def meddle() -> None:
        other.delete_queue(queue)
        if then == "recreate":
            other.create_queue(application, "queue", QueueSpec(ttl=5))

    LostAnswers(wire, arrives=False, then=meddle)
    store.delete_queue(queue)
    assert [found.ttl for found in other.list_queues(application)] == ([5] if then == "recreate" else [])


def test_created_then_deleted_by_others(open_with: OpenStore, application: str, wire: Wire) -> None:
    """A queue is never made again with the numbers of one that was deleted: its old messages would come back."""
    store, other = open_with(wire), open_with()
    seen = []

    def meddle() -> None:
        queue = other.queue(application, "queue", fresh=True)
        seen.append(queue.qid)
        other.delete_queue(queue)

    LostAnswers(wire, arrives=True, then=meddle)
    queue, created = store.create_queue(application, "queue", QueueSpec())
    assert created
    assert other.queue(application, "queue", fresh=True) == queue
    assert queue.qid not in seen


def test_queue_made_by_others(open_with: OpenStore, application: str, wire: Wire) -> None:
    """A creation in doubt that was not made finds what others made meanwhile, and says so."""
    store, other = open_with(wire), open_with()
    LostAnswers(wire, arrives=False, then=lambda: other.create_queue(application, "queue", QueueSpec(partitions=3)))
    queue, created = store.create_queue(application, "queue", QueueSpec())
    assert (queue.partitions, created) == (3, False)
    assert len(other._driver.calls.run(other._index.scan(application, "").take(9))) == 1


@pytest.mark.parametrize("arrives", [True, False])
def test_commit_and_hand_over(open_with: OpenStore, application: str, wire: Wire, *, arrives: bool) -> None:
    """A member's commit in doubt is not made after others own the partition: it was recorded before, or never."""
    store, other = open_with(wire), open_with()
    queue, _ = store.create_queue(application, "queue", QueueSpec())
    assert store.hand_over(queue, "group", None, [OwnedOffset(1, owner=1, epoch=1)])

    def meddle() -> None:
        recorded = other.owned_offsets(queue, "group")
        assert other.hand_over(queue, "group", recorded.version, [replace(recorded.rows[1], owner=2, epoch=2)])

    LostAnswers(wire, arrives=arrives, then=meddle)
    with pytest.raises(NotOwner):
        store.set_offsets(queue, "group", [OffsetChange(1, FIRST)], commit=MemberCommit(1, {1: 1}, {}))
    assert other.owned_offsets(queue, "group").rows[1].position == (FIRST if arrives else None)


def test_group_changed_by_others(open_with: OpenStore, application: str, wire: Wire) -> None:
    """A change of a group that was made and then changed by others is unknown."""
    store, other = open_with(wire), open_with()
    change = GroupChange(Head(epoch=1), ())

    def meddle() -> None:
        head = other.group_head(application, "group", serial=True)
        assert head is not None
        assert other.change_group(application, "group", head.version, change) is not None

    LostAnswers(wire, arrives=True, then=meddle)
    with pytest.raises(StoreUnavailable) as raised:
        store.change_group(application, "group", 0, change)
    assert raised.value.outcome == "unknown"
