"""Owners of partitions: which commits count, and how partitions change hands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from queuey.model import ids
from queuey.model.errors import Conflict, GroupNotFound, InvalidRequest, NotOwner, OffsetConflict
from queuey.model.groups import MAX_NOTE_BYTES, MemberCommit, Origin, OwnedOffset, OwnedOffsets, PartitionsOwned
from queuey.model.ids import Position
from queuey.model.messages import Offset, OffsetChange, Queue
from queuey.storage import Store, bridge
from queuey.storage.offset_changes import MAX_GROUPS, check_group_count
from tests.contract.samples import make_queue
from tests.replacing import replace as replaced

GROUP = "group"
NONE = (0, 0)
"""The id of zeros, which stands for a missing offset."""
A, B, C = ((ids.EPOCH_TICKS + n, -n) for n in range(3))
EPOCH = 1_796_000_000_123


def read_owned(store: Store, queue: Queue) -> dict[int, OwnedOffset]:
    """Returns the rows of the group, with notes, without the times of offsets."""
    rows = bridge.run(store.offsets.owned_offsets(queue, GROUP, range(1, 257))).rows
    return {n: replace(row, updated=0.0) for n, row in rows.items()}


def hand_over(store: Store, queue: Queue, owners: dict[int, int], epoch: int = EPOCH, came: Origin = "new") -> None:
    recorded = bridge.run(store.offsets.owned_offsets(queue, GROUP))
    before = {n: recorded.rows.get(n) or OwnedOffset(n) for n in owners}
    rows = [replace(before[n], owner=owner, epoch=epoch, came=came) for n, owner in owners.items()]
    assert bridge.run(store.offsets.hand_over(queue, GROUP, recorded.version, rows))


def commit(
    store: Store,
    queue: Queue,
    offsets: dict[int, Position],
    member: int = 1,
    epoch: int = EPOCH,
    notes: dict[int, bytes | None] | None = None,
) -> list[Offset]:
    changes = [OffsetChange(n, position) for n, position in offsets.items()]
    return bridge.run(
        store.offsets.set_offsets(
            queue, GROUP, changes, commit=MemberCommit(member, dict.fromkeys(offsets, epoch), notes or {})
        )
    )


def places(store: Store, queue: Queue) -> dict[int, Position]:
    return {offset.partition: offset.position for offset in bridge.run(store.offsets.group_offsets(queue, GROUP))}


def test_who_owns_commits(store: Store, other: Store) -> None:
    """A commit counts for partitions that the member owns under this epoch; all others stay."""
    queue = make_queue(store, partitions=4)
    hand_over(store, queue, {1: 1, 2: 1, 3: 2})
    assert [offset.position for offset in commit(other, queue, {1: A, 2: B})] == [A, B]
    with pytest.raises(NotOwner) as refused:
        commit(other, queue, {1: B, 3: B, 4: B})
    assert (refused.value.partitions, refused.value.applied) == ((3, 4), (1,))
    for epoch in (EPOCH - 1, EPOCH + 1):
        with pytest.raises(NotOwner) as refused:
            commit(store, queue, {2: C}, epoch=epoch, notes={2: b"late"})
        assert (refused.value.partitions, refused.value.applied) == ((2,), ())
    with pytest.raises(NotOwner):
        bridge.run(store.offsets.set_offsets(queue, GROUP, [OffsetChange(2, C)], commit=MemberCommit(1, {}, {})))
    assert places(store, queue) == {1: B, 2: B}
    assert read_owned(store, queue)[2].note is None


def test_commits_go_forward(store: Store) -> None:
    """The higher offset of two commits stays; with a comparison the offset may move back, or be removed."""
    queue = make_queue(store)
    hand_over(store, queue, {1: 1})
    commit(store, queue, {1: B})
    assert [offset.position for offset in commit(store, queue, {1: A})] == [B]
    fence = MemberCommit(1, {1: EPOCH}, {})
    with pytest.raises(OffsetConflict):
        bridge.run(store.offsets.set_offsets(queue, GROUP, [OffsetChange(1, A, A, compare=True)], commit=fence))
    bridge.run(store.offsets.set_offsets(queue, GROUP, [OffsetChange(1, A, B, compare=True)], commit=fence))
    assert places(store, queue) == {1: A}
    bridge.run(store.offsets.set_offsets(queue, GROUP, [OffsetChange(1, NONE, A, compare=True)], commit=fence))
    assert places(store, queue) == {}
    bridge.run(store.offsets.set_offsets(queue, GROUP, [OffsetChange(1, C, None, compare=True)], commit=fence))
    assert places(store, queue) == {1: C}


def test_notes(store: Store, other: Store) -> None:
    """A note stays until it is replaced or removed, also without an offset change, and is read by name."""
    queue = make_queue(store, partitions=2)
    hand_over(store, queue, {1: 1, 2: 1})
    commit(store, queue, {1: NONE, 2: A}, notes={1: b"one", 2: b"two"})
    assert places(store, queue) == {2: A}
    commit(other, queue, {1: A, 2: A}, notes={2: b"still"})
    rows = bridge.run(other.offsets.owned_offsets(queue, GROUP, {2})).rows
    assert [(row.position, row.note) for row in rows.values()] == [(A, None), (A, b"still")]
    assert read_owned(store, queue)[1].note == b"one"
    hand_over(store, queue, {1: 2}, EPOCH + 1, "lost")
    assert read_owned(store, queue)[1] == OwnedOffset(1, A, 0.0, 2, EPOCH + 1, "lost", b"one")
    commit(store, queue, {1: NONE}, member=2, epoch=EPOCH + 1, notes={1: None})
    assert read_owned(store, queue)[1].note is None
    with pytest.raises(InvalidRequest):
        commit(store, queue, {2: B}, notes={2: b"x" * (MAX_NOTE_BYTES + 1)})
    commit(store, queue, {2: B}, notes={2: b"x" * MAX_NOTE_BYTES})


def test_rows_that_changed_are_not_handed_over(store: Store, other: Store) -> None:
    """A hand-over is refused if a commit, a note or another hand-over came after the rows were read."""
    queue = make_queue(store, partitions=2)
    owner = [OwnedOffset(1, None, 0.0, 2, EPOCH + 9, "lost")]
    changes: list[Callable[[], object]] = [
        lambda: hand_over(other, queue, {1: 1}),
        lambda: commit(other, queue, {1: A}),
        lambda: commit(other, queue, {1: A}, notes={1: b"note"}),
        lambda: hand_over(other, queue, {2: 2}),
        lambda: bridge.run(
            other.offsets.delete_group(
                queue, GROUP, disown=bridge.run(other.offsets.owned_offsets(queue, GROUP)).version
            )
        ),
    ]
    for change in changes:
        version = bridge.run(store.offsets.owned_offsets(queue, GROUP)).version
        change()
        assert not bridge.run(store.offsets.hand_over(queue, GROUP, version, owner))
    assert read_owned(store, queue) == {}
    assert bridge.run(
        store.offsets.hand_over(queue, GROUP, bridge.run(other.offsets.owned_offsets(queue, GROUP)).version, owner)
    )
    assert read_owned(store, queue) == {1: OwnedOffset(1, None, 0.0, 2, EPOCH + 9, "lost")}


def test_without_an_offset(store: Store) -> None:
    """An owned partition without an offset shows none, and its group can be forgotten."""
    queue = make_queue(store, partitions=2)
    bridge.run(store.offsets.set_offsets(queue, GROUP, [OffsetChange(2, ids.FIRST)]))
    hand_over(store, queue, {1: 1})
    assert places(store, queue) == {2: ids.FIRST}
    assert bridge.run(store.offsets.offsets_of_queues([queue], GROUP)) == [{2: ids.FIRST}]
    assert bridge.run(store.offsets.groups(queue)) == [GROUP]
    bridge.run(
        store.offsets.delete_group(queue, GROUP, disown=bridge.run(store.offsets.owned_offsets(queue, GROUP)).version)
    )
    assert bridge.run(store.offsets.groups(queue)) == []
    assert read_owned(store, queue) == {}
    with pytest.raises(GroupNotFound):
        bridge.run(store.offsets.group_offsets(queue, GROUP))


def test_a_deletion_leaves_the_highest_epoch(store: Store, other: Store) -> None:
    """The highest epoch of deleted rows outlasts later commits and deletions, and is not listed as an offset."""
    queue = make_queue(store, partitions=2)

    def read() -> OwnedOffsets:
        return bridge.run(other.offsets.owned_offsets(queue, GROUP))

    def delete() -> None:
        bridge.run(store.offsets.delete_group(queue, GROUP, disown=read().version))

    def set_plain_offset() -> None:
        bridge.run(store.offsets.set_offsets(queue, GROUP, [OffsetChange(1, A)]))

    hand_over(store, queue, {2: 1}, EPOCH)
    hand_over(store, queue, {1: 1}, EPOCH + 5)
    delete()
    deleted = read()
    assert (deleted.rows, deleted.deleted_epoch) == ({}, EPOCH + 5)
    assert bridge.run(store.offsets.groups(queue)) == []
    with pytest.raises(GroupNotFound):
        delete()
    set_plain_offset()
    assert places(store, queue) == {1: A}
    set_plain_offset()
    delete()
    hand_over(store, queue, {1: 1}, EPOCH + 3)
    delete()
    assert (read().rows, read().deleted_epoch) == ({}, EPOCH + 5)
    hand_over(store, queue, {1: 1}, EPOCH + 6)
    with pytest.raises(PartitionsOwned):
        bridge.run(store.offsets.delete_group(queue, GROUP, disown=deleted.version))
    delete()
    assert read().deleted_epoch == EPOCH + 6
    owner = [OwnedOffset(1, owner=1, epoch=EPOCH)]
    assert not bridge.run(store.offsets.hand_over(queue, GROUP, deleted.version, owner))


def test_plain_offsets_leave_nothing(store: Store) -> None:
    """Deleted offsets that no member ever owned leave no epoch."""
    queue = make_queue(store)
    bridge.run(store.offsets.set_offsets(queue, GROUP, [OffsetChange(1, A)]))
    bridge.run(store.offsets.delete_group(queue, GROUP))
    recorded = bridge.run(store.offsets.owned_offsets(queue, GROUP))
    assert (recorded.rows, recorded.deleted_epoch) == ({}, 0)


def test_plain_commits_take_the_owners(store: Store, other: Store) -> None:
    """A commit without a member needs the version at which the group had no members; it removes the owners."""
    queue = make_queue(store, partitions=3)
    hand_over(store, queue, {1: 1, 2: 1})
    hand_over(store, queue, {2: 0}, EPOCH, "given back")
    for disown in (None, 7):
        with pytest.raises(PartitionsOwned) as refused:
            bridge.run(store.offsets.set_offsets(queue, GROUP, [OffsetChange(3, A)], disown=disown))
        with pytest.raises(PartitionsOwned):
            bridge.run(store.offsets.delete_group(queue, GROUP, disown=disown))
    before = refused.value.version
    commit(other, queue, {1: B}, notes={1: b"note"})
    with pytest.raises(PartitionsOwned) as refused:
        bridge.run(store.offsets.set_offsets(queue, GROUP, [OffsetChange(1, A)], disown=before))
    bridge.run(store.offsets.set_offsets(queue, GROUP, [OffsetChange(1, A)], disown=refused.value.version))
    assert read_owned(store, queue) == {
        1: OwnedOffset(1, A, 0.0, 0, EPOCH, "lost", b"note"),
        2: OwnedOffset(2, None, 0.0, 0, EPOCH, "given back"),
    }
    with pytest.raises(NotOwner):
        commit(other, queue, {1: C})
    with pytest.raises(PartitionsOwned):
        bridge.run(store.offsets.set_offsets(queue, GROUP, [OffsetChange(1, B)]))


def test_a_queue_has_so_many_groups(store: Store, other: Store) -> None:
    """Members of a group beyond the limit own nothing, until another group is forgotten; existing groups go on."""
    queue, real = make_queue(store), check_group_count
    owner = [OwnedOffset(1, None, 0.0, 1, EPOCH)]
    with replaced(check_group_count, lambda queue, groups, **how: real(queue, groups + MAX_GROUPS - 1, **how)):
        hand_over(store, queue, {1: 1})
        with pytest.raises(Conflict):
            bridge.run(other.offsets.hand_over(queue, "another", None, owner))
        hand_over(other, queue, {1: 2}, EPOCH + 1)
        bridge.run(
            store.offsets.delete_group(
                queue, GROUP, disown=bridge.run(store.offsets.owned_offsets(queue, GROUP)).version
            )
        )
        assert bridge.run(other.offsets.hand_over(queue, "another", None, owner))
        with pytest.raises(Conflict):
            bridge.run(
                store.offsets.hand_over(
                    queue, GROUP, bridge.run(store.offsets.owned_offsets(queue, GROUP)).version, owner
                )
            )
