"""Plans are even, with few moves, independent of order, within limits, and follow the members' rights."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from queuey.groups.rules.group_state import (
    MAX_PARTITIONS,
    MAX_PLAN_BYTES,
    GroupState,
    JoinRequest,
    choose_chunk,
    find_changed_rows,
    read_state,
)
from queuey.groups.rules.planning import make_plan
from queuey.groups.rules.state_draft import GroupDraft
from queuey.model.groups import CHUNK, StoredGroup
from queuey.model.messages import Principal, Queue
from queuey.model.rights import Verb
from tests.groups.living import NOW, OWNER, SLACK, LivingGroup, make_credential, make_views, plan, queue

QUEUES = tuple(queue(name, partitions) for name, partitions in (("a", 5), ("ab", 3), ("b", 1), ("c.dead", 2)))
wishes = st.sampled_from((("*",), ("a*",), ("b",), ("*.dead", "a")))
acts = st.lists(st.tuples(st.sampled_from(("enter", "leave", "away", "drain")), wishes, st.integers(0, 5)), max_size=12)


@given(acts, st.randoms(use_true_random=False))
def test_all_that_members_may_read_is_shared(
    history: list[tuple[str, tuple[str, ...], int]], order: random.Random
) -> None:
    """All readable partitions are shared; every process makes the same plan, and without a cause nothing moves."""
    group = LivingGroup(*QUEUES)
    for act, patterns, which in history:
        numbers = sorted(group.state.members)
        number = numbers[which % len(numbers)] if numbers else 0
        if act == "enter":
            group.enter(patterns, instance=f"i{which}", grace=50_000)
            continue
        if act == "drain":
            group.change(lambda draft, number=number: draft.drain(number))  # type: ignore[misc]
        else:
            back = act == "away"
            group.change(lambda draft, number=number, back=back: draft.leave(number, returns=back))  # type: ignore[misc]
        group.rest()
        state = group.state
        shuffled = [dict(order.sample(list(part.items()), len(part))) for part in (state.members, state.subscriptions)]
        other = GroupState(state.head, *shuffled, state.plan)  # type: ignore[arg-type,call-arg]
        made = make_plan(state, QUEUES, make_views(state, QUEUES))
        shuffled_queues = order.sample(QUEUES, len(QUEUES))
        assert make_plan(other, shuffled_queues, make_views(other, shuffled_queues)) == made
        assert made.queues == state.plan
        members = state.members
        for (name, _), member in group.targets().items():
            assert members[member].state in {"present", "absent"}
            assert state.subscriptions[members[member].subscription].matcher()(name)
        loads = Counter({number: 0 for number, member in members.items() if member.state == "present"})
        loads.update(member for member in group.targets().values() if member in loads)
        if len({members[number].subscription for number in loads}) == 1:
            assert max(loads.values()) - min(loads.values()) <= 1
        readers = {
            each.name
            for each in QUEUES
            for member in members.values()
            if member.state == "present" and state.subscriptions[member.subscription].matcher()(each.name)
        }
        assert {place for place in group.targets() if place[0] in readers} == {
            (each.name, partition)
            for each in QUEUES
            if each.name in readers
            for partition in range(1, each.partitions + 1)
        }


def test_rights_decide() -> None:
    """A member needs rights to read and to claim a queue; one whose principals keep it out is counted as unassigned."""
    closed = replace(queue("orders-x", 3), principals=(Principal("app:other", read=True, delete=True),))
    group = LivingGroup(queue("orders", 2), closed, queue("reports", 2))
    member = group.enter(credential=make_credential("orders*"))
    assert group.targets() == {("orders", 1): member, ("orders", 2): member}
    draft = group.draft()
    plan(draft, group.queues, group.rights)
    assert draft.unassigned == 3, "a pattern means only queues within the rights"
    rights: tuple[Verb, ...] = ("read", "claim")
    for allow in rights:
        group.enter(credential=make_credential("reports", allow=(allow,)))
    two = group.enter(credential=make_credential("reports"))
    assert Counter(group.targets().values()) == {member: 2, two: 2}


def test_targets_of_the_absent_stay_while_it_may_read_them() -> None:
    """The targets of an absent member stay, unless its key or the queue's principals no longer let it read them."""
    group = LivingGroup(queue("orders", 2), queue("reports", 2))
    key = make_credential("orders")
    member = group.enter(credential=key, instance="a", grace=60_000)
    two = group.enter(("reports",))
    group.change(lambda draft: draft.leave(member, returns=True))
    group.change(lambda draft: draft.request_plan())
    group.rest()
    assert Counter(group.targets().values()) == {member: 2, two: 2}
    closed = [replace(each, principals=(Principal("app:other", read=True, delete=True),)) for each in group.queues]
    draft = group.draft()
    plan(draft, closed, group.rights)
    assert draft.state.plan == {}
    group.rights = lambda credential: None if credential == key else credential
    group.change(lambda draft: draft.request_plan())
    group.rest()
    assert set(group.targets().values()) == {two}


def test_a_group_without_members_keeps_its_queues() -> None:
    """A group without members keeps its queues, without targets, so that offsets of a stopped group are shown."""
    group = LivingGroup(queue("orders", 2), queue("reports", 2))
    only = group.enter()
    group.change(lambda draft: draft.leave(only))
    group.rest()
    group.change(lambda draft: plan(draft, [], group.rights))
    assert {each.name: each.targets for each in group.state.plan.values()} == {"orders": {}, "reports": {}}
    group.queues = [queue("orders", 2)]
    group.enter()
    assert {each.name for each in group.state.plan.values()} == {"orders"}


def large(queues: int, partitions: int, name: str = "reports-of-customer-{:05}") -> list[Queue]:
    return [queue(name.format(number), partitions) for number in range(queues)]


@pytest.mark.parametrize(("queues", "partitions"), [(50, 200), (10_000, 1)])
def test_rows_of_the_largest_groups(queues: int, partitions: int) -> None:
    """With 1,000 members and 10,000 partitions no row is above 64 KiB, 1 MiB in all; a leave changes few rows."""
    draft = GroupDraft(GroupState(), NOW, SLACK, {})
    for number in range(1_000):
        request = JoinRequest((), ("*",), OWNER, f"{number:0100}")
        draft.make_present(draft.join(request, bytes(32), is_admin=True).number)
    plan(draft, large(queues, partitions), lambda credential: credential)
    assert draft.unassigned == 0
    change = draft.make_change()
    assert change is not None
    sizes = [len(row.body) for row in change.rows]
    assert max(sizes) < 20 << 10
    assert sum(sizes) < 1 << 20
    state = read_state(StoredGroup(change.head, change.rows))
    assert state == draft.state
    later = GroupDraft(state, NOW + 5_000, SLACK, {})
    later.leave(500)
    plan(later, large(queues, partitions), lambda credential: credential)
    assert len(find_changed_rows(state, later.state)) < 25


def test_a_limited_key_takes_no_room_of_others() -> None:
    """If not all queues fit into a plan, those that only limited keys may read are left out first."""
    group = LivingGroup(*large(MAX_PARTITIONS // 200, 200, name="a-{:03}"), queue("z-1", 100), queue("z-2", 100))
    narrow, owner = group.enter(("a-*",), make_credential("a-*")), group.enter(("z-*",))
    left_out = f"a-{MAX_PARTITIONS // 200 - 1:03}"
    assert {q.name for q in group.queues} - {name for name, _ in group.targets()} == {left_out}
    assert {number for (name, _), number in group.targets().items() if name.startswith("z-")} == {owner}
    assert narrow in group.targets().values()


def test_what_is_beyond_the_bounds_has_no_targets() -> None:
    """Beyond the limits of queues, partitions and bytes the last queues by name have no targets."""
    group = LivingGroup(*large(MAX_PARTITIONS // 200 + 1, 200))
    group.enter()
    assert {name for name, _ in group.targets()} == {queue.name for queue in group.queues[:-1]}
    long = LivingGroup(*large(6_000, 1, name="{:05}" + 200 * "n"))
    long.enter()
    names = {name for name, _ in long.targets()}
    assert names == {queue.name for queue in long.queues[: len(names)]}
    size = sum(len(row.body) for row in find_changed_rows(GroupState(), long.state) if row.kind == CHUNK)
    assert MAX_PLAN_BYTES - (200 << 10) < size <= MAX_PLAN_BYTES


def test_a_row_of_the_plan_is_bounded() -> None:
    """If uids of queues collide, those that do not fit into the row have no targets."""
    uids = [uid for uid in range(3_000) if choose_chunk(uid) == 5][:30]
    group = LivingGroup(*(queue(f"orders-{uid:04}", 200, uid) for uid in uids))
    group.enter()
    assert set(group.state.plan) == set(uids[: len(group.state.plan)])
    assert 20 <= len(group.state.plan) < 30
