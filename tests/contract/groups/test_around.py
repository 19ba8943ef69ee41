"""Events around a group: plain commits, queues that change, credentials that are narrowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuey.model.errors import GroupActive, GroupNotFound, MemberGone
from queuey.model.messages import QueueSpec
from queuey.storage import Store, bridge
from tests.backends import APP
from tests.contract.groups.group import Group, TakenPartition, message, places_of
from tests.contract.groups.test_contract import NEW_PARTITION, check_commit_refused
from tests.contract.samples import fresh_name, make_queue

Make = Callable[[int], str]


def test_plain_commits(group: Group, make: Make) -> None:
    """While a group has members only they commit, and offsets cannot be forgotten; afterwards former members cannot."""
    queue = make(2)
    first_place, second_place = places_of(queue, 2)
    group.commit_plainly(first_place, message(1))
    member = group.join(queue)
    group.settle([first_place, second_place], member)
    assert member.taken == {first_place: TakenPartition(message(1), "new"), second_place: NEW_PARTITION}
    with pytest.raises(GroupActive):
        group.commit_plainly(first_place, message(9))
    with pytest.raises(GroupActive):
        group.forget_offsets(queue)
    member.commit({first_place: message(2), second_place: message(1)})
    group.end_session(member)
    group.commit_plainly(first_place, message(1))
    assert [group.offset(first_place), group.offset(second_place)] == [message(1)] * 2
    for place in (first_place, second_place):
        check_commit_refused(member, place, message(3), member.owned[place])
    group.forget_offsets(queue)
    with pytest.raises(GroupNotFound):
        group.forget_offsets(queue)
    check_commit_refused(member, first_place, message(3), member.owned[first_place])
    again = group.join(queue)
    group.settle([first_place, second_place], again)
    assert [taken.offset for taken in again.taken.values()] == [None, None]


def test_purged(group: Group, make: Make, store: Store) -> None:
    """A purge changes nothing for a group."""
    queue = make(2)
    member = group.join(queue)
    group.settle(places_of(queue, 2), member)
    before = dict(member.owned)
    member.commit({(queue, 1): message(1)})
    row = bridge.run(store.catalogue.queue(APP, queue))
    assert row is not None
    bridge.run(store.catalogue.purge_queue(row))
    group.pass_time_with_heartbeats(40, member)
    assert member.owned == before
    member.commit({(queue, 1): message(2)})
    assert group.offset((queue, 1)) == message(2)


def test_deleted_and_made_again(group: Group, make: Make, store: Store) -> None:
    """A deleted queue is lost to members; one made again under its name is a new queue, also for late commits."""
    queue, stays = make(2), make(1)
    member = group.join(queue, stays)
    group.settle([*places_of(queue, 2), (stays, 1)], member)
    under = dict(member.owned)
    member.commit({(queue, 1): message(1)})
    row = bridge.run(store.catalogue.queue(APP, queue))
    assert row is not None
    bridge.run(store.catalogue.delete_queue(row))
    group.beat_until(lambda: list(member.owned) == [(stays, 1)], member)
    make_queue(store, queue, partitions=2)
    check_commit_refused(member, (queue, 1), message(2), under[queue, 1])
    group.settle([*places_of(queue, 2), (stays, 1)], member)
    assert member.taken[queue, 1] == NEW_PARTITION
    check_commit_refused(member, (queue, 1), message(2), under[queue, 1])
    assert group.offset((queue, 1)) is None


def test_widened(group: Group, make: Make, store: Store) -> None:
    """New partitions of a queue are assigned like the others."""
    queue = make(2)
    first, second = group.join(queue), group.join(queue)
    group.settle(places_of(queue, 2), first, second)
    before = first.owned | second.owned
    row = bridge.run(store.catalogue.queue(APP, queue))
    assert row is not None
    bridge.run(store.catalogue.update_queue(row, QueueSpec(partitions=4)))
    group.settle(places_of(queue, 4), first, second)
    assert before.items() <= (first.owned | second.owned).items()


def test_patterns(group: Group, store: Store) -> None:
    """Members get queues that newly match a pattern, and named queues as soon as they exist."""
    prefix, later = fresh_name(), fresh_name()
    old = make_queue(store, f"{prefix}-a").name
    member = group.join(later, patterns=[f"{prefix}-*"])
    group.settle([(old, 1)], member)
    new = make_queue(store, f"{prefix}-b", partitions=2).name
    make_queue(store, f"x-{prefix}-c")
    group.settle([(old, 1), *places_of(new, 2)], member)
    make_queue(store, later)
    group.settle([(old, 1), *places_of(new, 2), (later, 1)], member)


@pytest.mark.parametrize("silent", [False, True])
def test_narrowed(group: Group, make: Make, *, silent: bool) -> None:
    """A member that may not read a queue any more is removed, and others get its partitions."""
    one, two = make(2), make(2)
    first, second = group.join(one, two, key="first"), group.join(one, two, key="second")
    group.settle(places_of(one, 2) + places_of(two, 2), first, second)
    group.limit_key("first", one)
    if not silent:
        with pytest.raises(MemberGone):
            first.send_heartbeat()
    group.pass_time_with_heartbeats(10, second)
    with pytest.raises(MemberGone):
        first.send_heartbeat()
    again = group.join(one, two, key="first")
    group.settle(places_of(one, 2) + places_of(two, 2), again, second)
    assert {queue for queue, _ in again.owned} == {one}


def test_forgotten_and_made_again(group: Group, make: Make) -> None:
    """A group can be forgotten when it has no members; its offsets stay, and its former members cannot commit."""
    queue = make(1)
    [place] = places_of(queue, 1)
    with pytest.raises(GroupNotFound):
        group.remove()
    member = group.join(queue)
    group.settle([place], member)
    member.commit({place: message(1)})
    with pytest.raises(GroupActive):
        group.remove()
    group.end_session(member)
    group.remove()
    assert group.offset(place) == message(1)
    again = group.join(queue)
    assert again.number == member.number
    group.settle([place], again)
    assert again.taken[place] == TakenPartition(message(1), "lost")
    assert again.owned[place] > member.owned[place]
    check_commit_refused(member, place, message(9), member.owned[place])
    check_commit_refused(again, place, message(9), member.owned[place])
    assert group.offset(place) == message(1)
