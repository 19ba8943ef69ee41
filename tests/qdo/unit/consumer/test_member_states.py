"""The decisions of a group member, and when a leader reacts to changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from qdo.group.member_states import LeaderDecision, LeaderView, RebalanceDebounce, decide_as_leader
from qdo.group.records import Member, TargetAssignment
from qdo.partitions import Partition, Queue, Subscription

QUEUE = Queue("host", "app", "orders")
ONE, TWO, THREE, FOUR = (Partition(QUEUE, number) for number in (1, 2, 3, 4))
QUEUES_THERE = {QUEUE: 4}
WANTS = Subscription(frozenset({"orders"}), (), "host", "app")
A, B = Member("a", WANTS), Member("b", WANTS)
BOTH: Mapping[str, Member] = {"a": A, "b": B}
HALVES = TargetAssignment({ONE: "a", TWO: "b", THREE: "a", FOUR: "b"})


def view(**changes: Any) -> LeaderView:  # noqa: ANN401 - any field
    """Returns the view of the leader of a stable group of two, with some changes."""
    rest = LeaderView(
        members=BOTH, queues=QUEUES_THERE, target=HALVES, planned=None, now=1000.0, age=60.0, settle=0.05, grace=10.0
    )
    return rest._replace(**changes)


def test_a_leader_waits_for_more_changes_to_come() -> None:
    """A leader waits for further changes, and says for how long."""
    members = {**BOTH, "c": Member("c", WANTS)}
    early = decide_as_leader(view(members=members, age=0.02))
    assert early.target is None
    assert early.wait == pytest.approx(0.03)
    assert decide_as_leader(view(members=members, age=0.05)).target is not None


def test_a_leader_looks_again_when_an_absent_member_is_given_up() -> None:
    """A leader knows when an absent member is given up, and computes again then."""
    before = TargetAssignment(HALVES.owners, static=frozenset("b"))
    away = decide_as_leader(view(members={"a": A}, target=before))
    assert away.target is not None
    assert away.target.absent == {"b": 1000.0}
    assert away.wait == 10.0
    later = view(members={"a": A}, target=away.target, planned=away.planned, now=1004.0)
    assert decide_as_leader(later) == LeaderDecision(wait=6.0, planned=away.planned)
    over = decide_as_leader(later._replace(now=1010.0))
    assert over.target is not None
    assert set(over.target.owners.values()) == {"a"}


SECONDS = 0.05
NOW = 1000.0


def group(names: str) -> Mapping[str, Member]:
    return {name: Member(name) for name in names}


@pytest.fixture
def settling() -> RebalanceDebounce:
    """A stable group whose members a and b were settled long ago."""
    made = RebalanceDebounce(SECONDS)
    assert made.update_age(group("ab"), NOW - 60, has_target=True) == SECONDS
    return made


def test_changes_that_follow_soon_gather(settling: RebalanceDebounce) -> None:
    """Changes that follow soon are answered together when the settling time is over; so are later ones."""
    settling.update_age(group("abc"), NOW, has_target=True)
    assert settling.update_age(group("abcd"), NOW + 0.01, has_target=True) == pytest.approx(0.01)
    assert settling.update_age(group("abcde"), NOW + 0.04, has_target=True) == pytest.approx(0.04)
    assert settling.update_age(group("abcde"), NOW + 0.0501, has_target=True) == SECONDS
    assert settling.update_age(group("abcdef"), NOW + 0.06, has_target=True) < SECONDS
