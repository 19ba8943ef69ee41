"""A change whose answer is lost reports to its caller what really happened."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from queuey.model import ids
from queuey.model.errors import NotOwner
from queuey.model.groups import MemberCommit, OwnedOffset
from queuey.model.messages import OffsetChange, QueueSpec
from queuey.storage import bridge
from queuey.storage.cassandra.cluster import InDoubt, Statement
from tests.storage.cassandra.conftest import OpenStore
from tests.storage.cassandra.interposed import Wire

FIRST = (ids.EPOCH_TICKS, 0)


def is_conditional(statement: Statement) -> bool:
    return not statement.idempotent


@pytest.mark.parametrize("arrives", [True, False])
def test_commit_and_hand_over(open_with: OpenStore, application: str, *, arrives: bool) -> None:
    """A member's commit in doubt is not applied after others own the partition: it was recorded before, or never."""
    wire = Wire()
    store, other = open_with(wire), open_with()
    queue, _ = bridge.run(store.catalogue.create_queue(application, "queue", QueueSpec()))
    assert bridge.run(store.offsets.hand_over(queue, "group", None, [OwnedOffset(1, owner=1, epoch=1)]))

    def meddle() -> None:
        recorded = bridge.run(other.offsets.owned_offsets(queue, "group"))
        assert bridge.run(
            other.offsets.hand_over(queue, "group", recorded.version, [replace(recorded.rows[1], owner=2, epoch=2)])
        )

    if arrives:
        wire.lose(is_conditional, then=meddle)
    else:
        wire.fail(is_conditional, 1, InDoubt("the answer was lost"), meddle)
    with pytest.raises(NotOwner):
        bridge.run(
            store.offsets.set_offsets(queue, "group", [OffsetChange(1, FIRST)], commit=MemberCommit(1, {1: 1}, {}))
        )
    assert bridge.run(other.offsets.owned_offsets(queue, "group")).rows[1].position == (FIRST if arrives else None)
