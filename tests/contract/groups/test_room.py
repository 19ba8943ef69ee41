"""Room for another group: abandoned groups give way, all others stay."""

from __future__ import annotations

import pytest

from queuey.groups import groups, queue_searches
from queuey.groups.rules.group_state import MAX_PARTITIONS
from queuey.groups.rules.state_draft import ABANDONED_MS
from queuey.model.errors import TooManyGroups
from queuey.storage import Store, bridge
from tests.backends import Clock
from tests.contract.groups.group import Group, GroupService
from tests.contract.samples import fresh_name, make_queue
from tests.replacing import replace_in

SESSION, HOUR = 300.0, ABANDONED_MS / 1000


class Groups:
    """Groups of an application, which share their credentials."""

    def __init__(self, services: list[GroupService], clock: Clock) -> None:
        self.application = fresh_name()
        self._services, self._clock = services, clock

    def __call__(self, name: str) -> Group:
        return Group(self._services, self._clock, name, self.application)


def keep_alive(group: Group, seconds: float) -> None:
    """Passes time in which a group has a member, which sends heartbeats."""
    member = group.join("q", session=SESSION)
    for _ in range(int(seconds / SESSION * 4)):
        member.send_heartbeat()
        group.pass_time(SESSION / 4)


def test_abandoned_groups_make_room(store: Store, services: list[GroupService], clock: Clock) -> None:
    """A group without members for an hour gives way to a new one; with a member, or one in its grace, it stays."""
    make = Groups(services, clock)
    names = "absent", "dead", "left", "never-present", "present"
    absent, dead, left, never, present = map(make, names)
    with replace_in(groups, groups.MAX_GROUPS, len(names)):
        instance = absent.join("q", session=SESSION, instance="a", grace=10_000)
        instance.send_heartbeat()
        instance.leave(returns=True)
        leaver = left.join("q", session=SESSION)
        leaver.send_heartbeat()
        leaver.leave()
        dead.join("q", session=SESSION).send_heartbeat()
        never.join("q", session=SESSION)
        more = make("more")
        keep_alive(present, HOUR - SESSION)
        with pytest.raises(TooManyGroups):
            more.join("q")
        assert bridge.run(store.groups.group_names(make.application)) == sorted(names)
        keep_alive(present, 4 * SESSION)
        more.join("q")
    assert bridge.run(store.groups.group_names(make.application)) == ["absent", "more", "present"]


@pytest.mark.parametrize(
    ("rights", "limit"), [("k-*", queue_searches.MAX_LISTED), ("*-k", MAX_PARTITIONS)], ids=["read", "matched"]
)
def test_patterns_mean_queues_within_the_rights(
    store: Store, services: list[GroupService], clock: Clock, rights: str, limit: int
) -> None:
    """However many queues a limited key's ``*`` matches, it and others get theirs: only what it may have counts.

    The limit is set to 10: of queues that a search reads for a pattern, and of those that it may match.
    """
    group = Groups(services, clock)("g")
    bridge.run(store.applications.create_application(group.application))
    for number in range(12):
        make_queue(store, f"a-{number:02}", application=group.application)
    for name in ("k-1-k", "k-2-k", "z-1"):
        make_queue(store, name, application=group.application)
    group.limit_key("narrow", rights)
    with replace_in(queue_searches, limit, 10), replace_in(queue_searches, queue_searches.PAGE_SIZE, 5):
        narrow, owner = group.join(patterns=["*"], key="narrow"), group.join(patterns=["z-*"])
        group.settle([("k-1-k", 1), ("k-2-k", 1), ("z-1", 1)], narrow, owner)
    assert set(narrow.owned) == {("k-1-k", 1), ("k-2-k", 1)}


def test_a_credential_makes_room_among_its_own(store: Store, services: list[GroupService], clock: Clock) -> None:
    """A limited key that has its half of the groups gets another one once one of its own is abandoned."""
    make = Groups(services, clock)
    names = iter("abcdefgh")

    def create(key: str) -> Group:
        group = make(next(names))
        group.limit_key("narrow", "q*")
        group.join("q", session=SESSION, key=key).send_heartbeat()
        return group

    with replace_in(groups, groups.MAX_GROUPS, 6):
        old = [create(key) for key in ("narrow", "owner", "narrow")]
        create("narrow")
        with pytest.raises(TooManyGroups):
            create("narrow")
        keep_alive(old[0], HOUR + 2 * SESSION)
        create("narrow")
    assert bridge.run(store.groups.group_names(make.application)) == ["a", "b", "f"]
