"""Members that join, are present, leave, return, and are lost; and when plans are made."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import suppress

import pytest
from msgspec.structs import replace

from queuey.groups.rules import group_state as bounds
from queuey.groups.rules.group_state import JoinRequest, MemberState
from queuey.groups.rules.state_draft import GroupDraft
from queuey.model.errors import InvalidRequest, TooManyMembers
from tests.groups.living import NOW, OWNER, SLACK, LivingGroup, make_credential, queue


def states(group: LivingGroup) -> dict[int, MemberState]:
    return {number: member.state for number, member in group.state.members.items()}


def test_an_instance_with_other_wishes_or_rights() -> None:
    """A returning instance keeps the targets that it asks for; with other rights it waits for the next plan."""
    group = LivingGroup(queue("orders"), queue("reports"))
    group.enter(instance="a")
    two = group.add(("orders",), instance="a")
    group.change(lambda draft: draft.make_present(two))
    assert set(group.targets()) == {("orders", number) for number in range(1, 5)}
    assert group.state.head.due is not None
    narrowed = OWNER.__class__(OWNER.id, make_credential("reports").caller)
    three = group.add(credential=narrowed, instance="a")
    group.change(lambda draft: draft.make_present(three))
    assert three not in group.targets().values()
    group.rest()
    assert set(group.targets()) == {("reports", number) for number in range(1, 5)}


def test_a_join_that_was_not_answered_leaves_no_member() -> None:
    """However often an instance joins without an answer, it has one new member, and a present one keeps its targets."""
    group = LivingGroup(queue("orders"))
    present = group.enter(instance="a")
    for _ in range(20):
        last = group.add(instance="a")
        other = group.add(instance="b")
        plain = group.add()
    assert {last, other, plain} <= states(group).keys()
    assert Counter(member.instance for member in group.state.members.values()) == {"a": 2, "b": 1, "": 20}
    assert set(group.targets().values()) == {present}
    group.change(lambda draft: draft.make_present(last))
    assert present not in states(group)
    assert set(group.targets().values()) == {last}


def test_plans_rest() -> None:
    """After a plan the next one waits, longer with more plans, not at all after 10 s without; changes share it."""
    group = LivingGroup(queue("orders"))
    rests = []
    group.enter()
    for _ in range(7):
        begun = group.now
        group.enter()
        rests.append(group.now - begun)
    assert rests == [200, 400, 800, 1600, 3200, 3200, 3200]
    group.now += 10_000 + 2 * SLACK
    assert group.change(lambda draft: draft.request_plan()) == 0
    assert group.state.head.due == group.now
    due = group.state.head.due
    group.now += 50
    group.change(lambda draft: draft.request_plan())
    assert group.state.head.due == due
    assert group.draft().is_plan_due()


def test_bounds_of_a_group() -> None:
    """Members, joins per hour, subscriptions and their bytes are limited: refused with a reason, without a change."""

    def join(draft: GroupDraft, *names: str) -> int:
        patterns = () if names else ("*",)
        return draft.join(JoinRequest(names, patterns, OWNER), b"", is_admin=True).number

    group = LivingGroup(queue("orders"))
    draft = group.draft()
    for _ in range(bounds.MAX_MEMBERS):
        join(draft)
    with pytest.raises(TooManyMembers, match="1,000 members"):
        join(draft)
    state = replace(draft.state, head=replace(draft.state.head, last_member=4_999), members={})
    draft = GroupDraft(state, NOW + 3_599_999, SLACK, {})
    join(draft)
    with pytest.raises(TooManyMembers, match="5,000 joins"):
        join(draft)
    later = GroupDraft(draft.state, NOW + 3_600_000, SLACK, {})
    assert [join(later), join(later)] == [5_001, 5_002]
    draft = group.draft()
    for number in range(bounds.MAX_SUBSCRIPTIONS):
        join(draft, f"q{number}")
        join(draft, f"q{number}")
    with pytest.raises(InvalidRequest, match="64 different subscriptions"):
        join(draft, "another")
    with pytest.raises(InvalidRequest, match="16,384 at most"):
        join(draft, *(f"q{number:05}" for number in range(4_000)))
    large = group.draft()
    for number in range(16):
        join(large, f"{number:02}", "q" * 16_000)
    with pytest.raises(InvalidRequest, match="262,144 bytes"):
        join(large, "16", "q" * 16_000)
    assert len(draft.state.members) == 2 * bounds.MAX_SUBSCRIPTIONS
    assert len(draft.state.subscriptions) == bounds.MAX_SUBSCRIPTIONS


@pytest.mark.parametrize(
    ("length", "half", "most", "limit"), [(0, 500, 900, 1000), (1, 32, 58, 64), (15_900, 8, 14, 16)]
)
def test_one_credential_fills_half_of_a_group(length: int, half: int, most: int, limit: int) -> None:
    """A limited key gets half of each limit, all of them together nine tenths; an administrator joins even then.

    The limits are those of members, of different subscriptions, and of the bytes of long ones.
    """
    draft = LivingGroup(queue("orders")).draft()
    numbers = itertools.count()
    joined: Counter[str] = Counter()

    def fill(key: str) -> int:
        """Joins, each time with another subscription if the length is not 0, until that is refused."""
        credential = replace(make_credential("*"), id=key.encode())
        with suppress(TooManyMembers, InvalidRequest):
            while joined[key] <= limit:
                names = (f"{next(numbers):05}".ljust(length, "q"),) if length else ("orders",)
                draft.join(JoinRequest(names, (), credential), b"", is_admin=key == "admin")
                joined[key] += 1
        return joined[key]

    assert [fill(key) for key in ("a", "b", "c", "admin")] == [half, most - half, 0, limit - most]


def test_slots_are_used_again() -> None:
    """Slots of former members are reused, so that no rows are left."""
    group = LivingGroup(queue("orders"))
    for number in range(1, 6):
        group.enter((f"orders-{number}",))
        group.change(lambda draft, number=number: draft.leave(number))  # type: ignore[misc]
    group.enter()
    (member,) = group.state.members.values()
    assert (member.slot, member.subscription) == (0, 0)
    assert len(group.state.subscriptions) == 1


def test_a_repeated_leave_keeps_the_grace() -> None:
    """A leave repeated after a lost answer keeps the grace: the instance stays absent, and its targets are kept."""
    group = LivingGroup(queue("orders"))
    member = group.enter(instance="a", grace=60_000)
    for _ in range(2):
        group.change(lambda draft: draft.leave(member, returns=True))
    assert states(group) == {member: "absent"}
