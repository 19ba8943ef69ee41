"""Tests of the offsets of consumer groups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuey.model import ids
from queuey.model.errors import Conflict, GroupNotFound, OffsetConflict, StoreUnavailable
from queuey.model.ids import Position
from queuey.model.messages import Offset, OffsetChange
from queuey.storage import Store, bridge
from queuey.storage.offset_changes import MAX_GROUPS, check_group_count
from tests.contract.samples import call_concurrently, make_queue
from tests.replacing import replace

A, B, C = ((ids.EPOCH_TICKS + n, -n) for n in range(3))


def places(offsets: list[Offset]) -> dict[int, Position]:
    return {offset.partition: offset.position for offset in offsets}


def expect_offset(partition: int, position: Position, expected: Position | None) -> OffsetChange:
    return OffsetChange(partition, position, expected, compare=True)


def test_recorded_and_read(store: Store, other: Store) -> None:
    """Every process reads the offset that was recorded last in each partition, with its age."""
    queue = make_queue(store, partitions=3)
    answer = bridge.run(store.offsets.set_offsets(queue, "group", [OffsetChange(3, A), OffsetChange(1, B)]))
    assert places(answer) == {1: B, 3: A}
    assert places(bridge.run(other.offsets.set_offsets(queue, "group", [OffsetChange(3, C)]))) == {3: C}
    for handle in (store, other):
        offsets = bridge.run(handle.offsets.group_offsets(queue, "group"))
        assert [(offset.partition, offset.position) for offset in offsets] == [(1, B), (3, C)]
        assert all(abs(offset.updated - ids.ticks_to_seconds(ids.now_ticks())) < 60 for offset in offsets)


def test_without_comparing_any_move_is_allowed(store: Store) -> None:
    """Without a comparison an offset may move back as well as forward, so that groups can be reset."""
    queue = make_queue(store)
    for position in (B, C, A, ids.LAST, ids.FIRST):
        bridge.run(store.offsets.set_offsets(queue, "group", [OffsetChange(1, position)]))
        assert places(bridge.run(store.offsets.group_offsets(queue, "group"))) == {1: position}


def test_comparing(store: Store, other: Store) -> None:
    """A change that expects the recorded offset is made; one that expects another is not."""
    queue = make_queue(store)
    bridge.run(store.offsets.set_offsets(queue, "group", [expect_offset(1, A, None)]))
    for wrong in (None, B, ids.following(A), ids.preceding(A)):
        with pytest.raises(OffsetConflict) as refused:
            bridge.run(other.offsets.set_offsets(queue, "group", [expect_offset(1, C, wrong)]))
        assert refused.value.current == {1: ids.to_hex(A)}
        assert refused.value.applied == ()
        assert places(bridge.run(store.offsets.group_offsets(queue, "group"))) == {1: A}
    bridge.run(other.offsets.set_offsets(queue, "group", [expect_offset(1, B, A)]))
    assert places(bridge.run(store.offsets.group_offsets(queue, "group"))) == {1: B}


def test_each_partition_by_itself(store: Store) -> None:
    """A failed comparison does not keep other partitions from being set, and the error names the failed ones."""
    queue = make_queue(store, partitions=4)
    bridge.run(store.offsets.set_offsets(queue, "group", [OffsetChange(1, A), OffsetChange(2, A)]))
    changes = [expect_offset(1, B, A), expect_offset(2, B, C), expect_offset(3, B, A), expect_offset(4, B, None)]
    with pytest.raises(OffsetConflict) as refused:
        bridge.run(store.offsets.set_offsets(queue, "group", changes))
    assert sorted(refused.value.applied) == [1, 4]
    assert refused.value.current == {1: ids.to_hex(B), 2: ids.to_hex(A), 3: None, 4: ids.to_hex(B)}
    assert places(bridge.run(store.offsets.group_offsets(queue, "group"))) == {1: B, 2: A, 4: B}


def test_groups_are_apart(store: Store, other: Store) -> None:
    """Groups of a queue, and groups of one name in two queues, are independent and are listed sorted."""
    queue, neighbour = make_queue(store), make_queue(store)
    for name in ("b", "a", "B", "a:b", "a.b"):
        bridge.run(store.offsets.set_offsets(queue, name, [OffsetChange(1, A)]))
    bridge.run(store.offsets.set_offsets(neighbour, "a", [OffsetChange(1, B)]))
    assert bridge.run(other.offsets.groups(queue)) == sorted(["b", "a", "B", "a:b", "a.b"])
    assert bridge.run(other.offsets.groups(neighbour)) == ["a"]
    assert places(bridge.run(other.offsets.group_offsets(queue, "a"))) == {1: A}
    bridge.run(store.offsets.delete_group(queue, "a"))
    assert bridge.run(other.offsets.groups(queue)) == sorted(["b", "B", "a:b", "a.b"])
    assert places(bridge.run(other.offsets.group_offsets(neighbour, "a"))) == {1: B}


@pytest.fixture(name="nearly_full")
def _nearly_full() -> Iterator[None]:
    """Sets the limit of groups of a queue to three."""
    real = check_group_count
    with replace(check_group_count, lambda queue, groups, **how: real(queue, groups + MAX_GROUPS - 3, **how)):
        yield


@pytest.mark.usefixtures("nearly_full")
def test_a_queue_has_so_many_groups(store: Store, other: Store) -> None:
    """A group beyond the limit is refused until another is forgotten; existing groups and other queues go on."""
    queue, neighbour = make_queue(store, partitions=2), make_queue(store)
    for name in "abc":
        bridge.run(store.offsets.set_offsets(queue, name, [OffsetChange(1, A)]))
    with pytest.raises(Conflict, match=r"has 1000 consumer groups, .* queuey offsets delete \S+ GROUP") as refused:
        bridge.run(other.offsets.set_offsets(queue, "d", [OffsetChange(1, A)]))
    assert type(refused.value) is Conflict
    with pytest.raises(OffsetConflict):
        bridge.run(store.offsets.set_offsets(queue, "d", [expect_offset(1, B, A)]))
    bridge.run(other.offsets.set_offsets(queue, "a", [OffsetChange(1, B), OffsetChange(2, B)]))
    bridge.run(store.offsets.set_offsets(neighbour, "d", [OffsetChange(1, A)]))
    bridge.run(store.offsets.delete_group(queue, "b"))
    assert places(bridge.run(other.offsets.set_offsets(queue, "d", [OffsetChange(1, A)]))) == {1: A}
    assert bridge.run(store.offsets.groups(queue)) == ["a", "c", "d"]
    with pytest.raises(Conflict):
        bridge.run(store.offsets.set_offsets(queue, "b", [OffsetChange(1, A)]))


@pytest.mark.usefixtures("nearly_full")
def test_the_last_groups_of_a_queue_are_for_administrators(store: Store, other: Store) -> None:
    """Others are refused near the limit, if their group is new; an administrator's is recorded."""
    queue = make_queue(store)
    bridge.run(store.offsets.set_offsets(queue, "a", [OffsetChange(1, A)]))
    with pytest.raises(Conflict, match="none of the last tenth"):
        bridge.run(other.offsets.set_offsets(queue, "b", [OffsetChange(1, A)], is_admin=False))
    bridge.run(other.offsets.set_offsets(queue, "a", [OffsetChange(1, B)], is_admin=False))
    bridge.run(other.offsets.set_offsets(queue, "b", [OffsetChange(1, A)]))
    assert bridge.run(store.offsets.groups(queue)) == ["a", "b"]


def test_unknown_group(store: Store) -> None:
    """A group is not found before it has offsets and after they were deleted."""
    queue = make_queue(store)
    for _ in range(2):
        assert bridge.run(store.offsets.groups(queue)) == []
        with pytest.raises(GroupNotFound):
            bridge.run(store.offsets.group_offsets(queue, "group"))
        with pytest.raises(GroupNotFound):
            bridge.run(store.offsets.delete_group(queue, "group"))
        bridge.run(store.offsets.set_offsets(queue, "group", [OffsetChange(1, A)]))
        bridge.run(store.offsets.delete_group(queue, "group"))
    bridge.run(store.offsets.set_offsets(queue, "group", [expect_offset(1, B, None)]))
    assert places(bridge.run(store.offsets.group_offsets(queue, "group"))) == {1: B}


def test_no_increment_is_lost(store: Store, other: Store) -> None:
    """Callers that each raise an offset by compare-and-set, retrying until it works, raise it once each.

    A caller whose change is in doubt, as on nodes too busy for so many at once, may have raised it.
    """
    queue = make_queue(store)
    bridge.run(store.offsets.set_offsets(queue, "group", [OffsetChange(1, (0, 0))]))

    def count(one: Store) -> int:
        raised = 0
        for _ in range(10):
            while True:
                (now,) = bridge.run(one.offsets.group_offsets(queue, "group"))
                ticks, low = now.position
                try:
                    bridge.run(
                        one.offsets.set_offsets(queue, "group", [expect_offset(1, (ticks + 1, low), now.position)])
                    )
                except OffsetConflict:
                    continue
                except StoreUnavailable as error:
                    if error.outcome != "unknown":
                        raise
                else:
                    raised += 1
                break
        return raised

    raised = sum(call_concurrently(count, [store, other] * 4))
    assert raised > 0
    assert places(bridge.run(store.offsets.group_offsets(queue, "group"))) in [
        {1: (total, 0)} for total in range(raised, 81)
    ]
