"""Rows of a group's state are read as they were written, and only changed rows are written."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.groups.rules.group_state import (
    MAX_PARTITION_BYTES,
    MAX_QUEUE_BYTES,
    GroupState,
    GroupSubscription,
    JoinedMember,
    PlannedOwner,
    PlannedQueue,
    find_changed_rows,
    max_queue_bytes,
    read_state,
)
from queuey.model.errors import StoreIncompatible
from queuey.model.groups import CHUNK, MEMBER, GroupHead, GroupRow, StoredGroup
from queuey.model.rights import Caller, Grant, MemberCredential

numbers = st.integers(1, 1 << 53)
targets = st.dictionaries(st.integers(1, 5), st.builds(PlannedOwner, numbers, numbers), max_size=3)
plans = st.dictionaries(numbers, st.tuples(st.text(max_size=9), targets), max_size=4).map(
    lambda plan: {uid: PlannedQueue(uid, name, owners) for uid, (name, owners) in plan.items()}
)
grants = st.builds(
    Grant,
    st.sampled_from(("shop", None)),
    st.frozensets(st.sampled_from(("read", "claim"))),
    st.one_of(st.text(max_size=3), st.just(("a*", "b"))),
)
callers = st.builds(Caller, st.frozensets(st.text(max_size=3)), st.lists(grants, max_size=2).map(tuple))
names = st.lists(st.text(max_size=3), max_size=3).map(tuple)
subscriptions = st.dictionaries(
    st.integers(0, 63),
    st.builds(GroupSubscription, names, names, st.builds(MemberCredential, st.binary(), callers)),
    max_size=3,
)


def by_number(members: list[JoinedMember]) -> dict[int, JoinedMember]:
    """Returns members by number, no two in one slot."""
    return {number: msgspec.structs.replace(each, slot=number, number=number) for number, each in enumerate(members, 1)}


times = st.integers(0, 1 << 41)
members = st.lists(
    st.builds(
        JoinedMember,
        *[st.just(0)] * 2,
        st.binary(max_size=3),
        st.integers(0, 63),
        st.text(max_size=2),
        *[times] * 4,
        st.sampled_from(("new", "absent")),
        times,
    ),
    max_size=3,
).map(by_number)
states = st.builds(GroupState, st.just(GroupHead()), members, subscriptions, plans)


def apply_changes(rows: dict[tuple[int, int], GroupRow], changed: tuple[GroupRow, ...]) -> None:
    rows.update({(row.kind, row.key): row for row in changed})


@given(states, states)
def test_what_is_written_is_read(first: GroupState, second: GroupState) -> None:
    """Each state is read after the one before; freed slots are blank, and an equal state writes nothing."""
    rows: dict[tuple[int, int], GroupRow] = {}
    before = GroupState()
    for state in (first, second, GroupState()):
        apply_changes(rows, find_changed_rows(before, state))
        assert read_state(StoredGroup(state.head, tuple(rows.values()))) == state
        assert find_changed_rows(state, state) == ()
        before = state
    assert all(row.body == b"" for row in rows.values())


@given(plans)
def test_a_queue_takes_at_most_what_is_counted_for_it(plan: dict[int, PlannedQueue]) -> None:
    """A queue takes at most its counted bytes, so that limits by bytes hold; 16 bytes are for the row itself."""
    rows = find_changed_rows(GroupState(), GroupState(plan=plan))
    counted = sum(max_queue_bytes(queue.name, max(queue.targets, default=0)) for queue in plan.values())
    assert sum(len(row.body) for row in rows) <= counted + 16 * len(rows)
    assert MAX_PARTITION_BYTES * 200 + MAX_QUEUE_BYTES < 4 << 10


def test_what_a_later_version_wrote_is_refused() -> None:
    """Rows of a later version, and invalid rows, are refused with what to do."""
    for kind, body in (
        (CHUNK, msgspec.msgpack.encode((2, []))),
        (CHUNK, b"\xc1"),
        (MEMBER, msgspec.msgpack.encode((1, {}))),
    ):
        with pytest.raises(StoreIncompatible, match=f"Row {kind}/5 .*Update"):
            read_state(StoredGroup(GroupHead(), (GroupRow(kind, 5, body),)))


def test_rows_that_stand_beside_each_other() -> None:
    """A moved partition changes one chunk; the order of queues changes nothing."""
    plan = {uid: PlannedQueue(uid, str(uid), {1: PlannedOwner(1, 5), 2: PlannedOwner(2, 5)}) for uid in range(100)}
    state = GroupState(plan=plan)
    moved = GroupState(plan=plan | {7: PlannedQueue(7, "7", {1: PlannedOwner(1, 5), 2: PlannedOwner(1, 6)})})
    (row,) = find_changed_rows(state, moved)
    assert row.kind == CHUNK
    assert len({row.key for row in find_changed_rows(GroupState(), state)}) > 32
    assert find_changed_rows(state, GroupState(plan=dict(reversed(plan.items())))) == ()
