"""Tests of which member becomes owner of a partition, and when it stops."""

from __future__ import annotations

from queuey.groups import owners
from queuey.groups.owners import HandOver
from queuey.groups.ownership import OwnedOffset, OwnedOffsets
from queuey.groups.state import GroupState, Head, Member, MemberState, PlannedQueue, Target

UID = 7


def group(targets: dict[int, int], *, epoch: int = 20, born: int = 10, **members: MemberState) -> GroupState:
    """Returns a group with members, named ``m`` and a number, and targets by partition."""
    made = {
        int(name[1:]): Member(0, int(name[1:]), b"", 0, "", 10_000, 30_000, 0, 1, state)
        for name, state in members.items()
    }
    plan = {
        UID: PlannedQueue(UID, "orders", {partition: Target(member, epoch) for partition, member in targets.items()})
    }
    return GroupState(Head(epoch=epoch, born=born), made, {}, plan)


def make_owned(owner: int, epoch: int, came: str = "new") -> dict[int, OwnedOffset]:
    return {1: OwnedOffset(1, (5, 5), 1.0, owner, epoch, came)}  # type: ignore[arg-type]


def hand_over(
    state: GroupState,
    rows: dict[int, OwnedOffset],
    given_back: dict[int, tuple[int, int]] | None = None,
    *,
    deleted_epoch: int = 0,
) -> HandOver:
    return owners.hand_over(state, UID, OwnedOffsets(1, rows, deleted_epoch), given_back or {})


def list_owners(made: HandOver) -> list[tuple[int, int, str]]:
    return [(row.owner, row.epoch, row.came) for row in made.owners]


def test_a_free_partition_goes_to_its_target() -> None:
    """A free partition goes to its target, with or without a row; only owner, epoch and origin change."""
    state = group({1: 3, 2: 3}, m3="present")
    rows = {1: OwnedOffset(1, (5, 5), 1.0)}
    made = hand_over(state, rows)
    assert made == HandOver((OwnedOffset(1, (5, 5), 1.0, 3, 20), OwnedOffset(2, owner=3, epoch=20)), needs_plan=False)
    assert hand_over(state, {row.partition: row for row in made.owners}) == HandOver((), needs_plan=False)


def test_only_present_members_take() -> None:
    """New, leaving, absent and removed members get no partitions, and without a plan no member does."""
    states: tuple[MemberState, ...] = ("new", "leaving", "absent")
    for state in states:
        assert hand_over(group({1: 3}, m3=state), {}) == HandOver((), needs_plan=False)
    assert hand_over(group({1: 3}), {}).owners == ()
    assert hand_over(GroupState(), make_owned(0, 5)).owners == ()


def test_the_living_keep_what_they_have() -> None:
    """A living member keeps its partitions until it gives them back, under the epoch of its ownership."""
    state = group({1: 3}, m2="present", m3="present")
    assert list_owners(hand_over(state, make_owned(2, 15))) == []
    assert list_owners(hand_over(state, make_owned(2, 15), {1: (2, 14)})) == []
    assert list_owners(hand_over(state, make_owned(2, 15), {1: (3, 15)})) == []
    assert list_owners(hand_over(state, make_owned(2, 15), {1: (2, 15)})) == [(3, 20, "given back")]
    leaving = group({1: 3}, m2="leaving", m3="present")
    assert list_owners(hand_over(leaving, make_owned(2, 15))) == []


def test_what_the_lost_had_is_told_lost() -> None:
    """Partitions of members that are gone, absent, or of a removed group of the same name become lost."""
    for others in ({}, {"m2": "absent"}, {"m2": "new"}):
        state = group({1: 3}, m3="present", **others)  # type: ignore[arg-type]
        assert list_owners(hand_over(state, make_owned(2, 15, "given back"))) == [(3, 20, "lost")]
    state = group({1: 3}, m2="present", m3="present")
    assert list_owners(hand_over(state, make_owned(2, 9))) == [(3, 20, "lost")]
    assert list_owners(hand_over(group({}, epoch=0, m2="present"), make_owned(2, 9))) == [(0, 9, "lost")]


def test_it_waits_for_its_next_owner_as_it_was_left() -> None:
    """Without a target a partition has no owner, and the next one is told how it came."""
    nobody = group({}, m2="present", m3="present")
    (row,) = hand_over(nobody, make_owned(2, 15), {1: (2, 15)}).owners
    assert (row.owner, row.epoch, row.came) == (0, 15, "given back")
    later = group({1: 3}, epoch=21, m3="present")
    assert list_owners(hand_over(later, {1: row})) == [(3, 21, "given back")]
    assert list_owners(hand_over(group({}), make_owned(2, 15))) == [(0, 15, "lost")]


def test_a_partition_moves_once_in_an_epoch() -> None:
    """A partition moves once per epoch, since two ownerships of one epoch look the same; instead a new plan is due."""
    state = group({1: 3}, m2="present", m3="present")
    made = hand_over(state, make_owned(2, 20), {1: (2, 20)})
    assert made.needs_plan
    assert list_owners(made) == [(0, 20, "given back")]


def test_a_deleted_partition_moves_once_in_an_epoch() -> None:
    """A partition whose offset was deleted gets no owner under an epoch that it had before."""
    for rows in ({}, {1: OwnedOffset(1, (5, 5), 1.0)}):
        for deleted_epoch in (20, 21):
            made = hand_over(group({1: 3}, m3="present"), rows, deleted_epoch=deleted_epoch)
            assert made == HandOver((), needs_plan=True)
        assert list_owners(hand_over(group({1: 3}, m3="present"), rows, deleted_epoch=19)) == [(3, 20, "new")]


def test_an_owner_of_a_later_plan_is_none_that_is_gone() -> None:
    """If the state is older than the row, its owner may have joined since, and does not count as gone."""
    assert hand_over(group({1: 3}, m3="present"), make_owned(9, 21)) == HandOver((), needs_plan=False)
