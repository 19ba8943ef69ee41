"""A change whose answer is lost reports to its caller what really happened."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from queuey import ids
from queuey.errors import NotOwner
from queuey.groups.ownership import MemberCommit, OwnedOffset
from queuey.groups.state import GroupChange, GroupRow, Head, StoredGroup
from queuey.messages import OffsetChange, QueueSpec
from queuey.storage import bridge
from queuey.storage.cassandra.driver import InDoubt, Statement
from tests.cassandra.begun import driver_of, parts_of
from tests.cassandra.conftest import OpenStore
from tests.cassandra.interposed import UNLIMITED, Wire

DIGEST = hashlib.sha256(b"key")
FIRST = (ids.EPOCH_TICKS, 0)

Meddle = Callable[[], object]


class LostAnswers:
    """Puts every second attempt of each conditional write of a store in doubt.

    Args:
        wire: The wire of the store.
        arrives: Whether the write reaches Cassandra, so that only the answer is lost.
        then: Called once before the write is sent again, to change rows as another process.
    """

    def __init__(self, wire: Wire, *, arrives: bool, then: Meddle = lambda: None) -> None:
        self._then: Meddle | None = then
        self._doubted: set[Statement] = set()
        self.lost = 0
        if arrives:
            wire.lose(self._is_lost, UNLIMITED, self._meddle)
        else:
            wire.fail(self._is_lost, UNLIMITED, InDoubt("the answer was lost"), self._meddle)

    def _is_lost(self, statement: Statement) -> bool:
        """Returns True, and counts it, for every second attempt of a conditional statement, from the first on."""
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
    return Wire()


@pytest.mark.parametrize("arrives", [True, False])
def test_all_changes(open_with: OpenStore, application: str, wire: Wire, *, arrives: bool) -> None:
    """Every change whose first answer is lost ends as if it was not lost, whether it was applied or not."""
    store, other = open_with(wire), open_with()
    losing = LostAnswers(wire, arrives=arrives)
    bridge.run(store.applications.create_application(f"{application}x"))
    queue, created = bridge.run(store.catalogue.create_queue(application, "queue", QueueSpec(ttl=60)))
    assert created
    assert bridge.run(other.catalogue.queue(application, "queue", fresh=True)) == queue
    calls = driver_of(store).calls
    calls.run(parts_of(store).rows.cover(calls.run(parts_of(store).rows.find_current(queue)), {1000}, 0))
    assert driver_of(other).calls.run(parts_of(other).rows.read(application, "queue")).longest_ttl == 1024
    updated = bridge.run(store.catalogue.update_queue(queue, QueueSpec(partitions=2)))
    purged = bridge.run(store.catalogue.purge_queue(updated))
    assert bridge.run(other.catalogue.queue(application, "queue", fresh=True)) == purged
    (offset,) = bridge.run(store.offsets.set_offsets(purged, "group", [OffsetChange(1, FIRST, None, compare=True)]))
    assert bridge.run(other.offsets.group_offsets(purged, "group")) == [offset]
    bridge.run(store.offsets.delete_group(purged, "group"))
    assert bridge.run(other.offsets.groups(purged)) == []
    head = bridge.run(
        store.groups.change_group(application, "group", 0, GroupChange(Head(epoch=1), (GroupRow(1, 0, b"member"),)))
    )
    assert head is not None
    assert bridge.run(other.groups.group_state(application, "group")) == StoredGroup(head, (GroupRow(1, 0, b"member"),))
    assert bridge.run(store.offsets.hand_over(purged, "members", None, [OwnedOffset(1, owner=1, epoch=1)]))
    assert bridge.run(other.offsets.owned_offsets(purged, "members")).rows == {1: OwnedOffset(1, owner=1, epoch=1)}
    assert bridge.run(store.groups.remove_group(application, "group", head.version))
    assert bridge.run(other.groups.group_state(application, "group")) is None
    key = bridge.run(store.applications.add_key(application, DIGEST.digest(), note="n"))
    assert bridge.run(other.applications.find_key(DIGEST.digest())) == key
    assert bridge.run(store.applications.expire_key(application, key.id, 5.0)) == bridge.run(
        other.applications.find_key(DIGEST.digest())
    )
    bridge.run(store.applications.revoke_key(application, key.id))
    assert bridge.run(other.applications.find_key(DIGEST.digest())) is None
    bridge.run(store.catalogue.delete_queue(purged))
    assert bridge.run(other.catalogue.list_queues(application)) == []
    assert driver_of(other).calls.run(parts_of(other).index.scan(application, "").take(9)) == []
    assert losing.lost >= 12


@pytest.mark.parametrize("arrives", [True, False])
def test_commit_and_hand_over(open_with: OpenStore, application: str, wire: Wire, *, arrives: bool) -> None:
    """A member's commit in doubt is not applied after others own the partition: it was recorded before, or never."""
    store, other = open_with(wire), open_with()
    queue, _ = bridge.run(store.catalogue.create_queue(application, "queue", QueueSpec()))
    assert bridge.run(store.offsets.hand_over(queue, "group", None, [OwnedOffset(1, owner=1, epoch=1)]))

    def meddle() -> None:
        recorded = bridge.run(other.offsets.owned_offsets(queue, "group"))
        assert bridge.run(
            other.offsets.hand_over(queue, "group", recorded.version, [replace(recorded.rows[1], owner=2, epoch=2)])
        )

    LostAnswers(wire, arrives=arrives, then=meddle)
    with pytest.raises(NotOwner):
        bridge.run(
            store.offsets.set_offsets(queue, "group", [OffsetChange(1, FIRST)], commit=MemberCommit(1, {1: 1}, {}))
        )
    assert bridge.run(other.offsets.owned_offsets(queue, "group")).rows[1].position == (FIRST if arrives else None)
