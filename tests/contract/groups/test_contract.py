"""The contract of a group: which member gets which partition when, and which commits count."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuey.model.errors import MemberGone, NotOwner
from tests.contract.groups.group import SESSION, Group, Member, Place, TakenPartition, message, places_of
from tests.waiting import until

Make = Callable[[int], str]
NEW_PARTITION = TakenPartition(None, "new")
LOST_PARTITION_ERRORS = (MemberGone, NotOwner)
"""The errors of a commit whose member has lost the partition."""


def place_of(member: Member) -> Place:
    return min(member.owned)


def join_two_members(group: Group, make: Make, partitions: int = 2) -> tuple[str, Member, Member]:
    queue = make(partitions)
    first, second = group.join(queue), group.join(queue)
    group.settle(places_of(queue, partitions), first, second)
    return queue, first, second


def owner_and_follower(group: Group, make: Make) -> tuple[str, Member, Member]:
    queue = make(2)
    first, second = group.join(queue), group.join(queue)
    group.settle(places_of(queue, 2), first)
    return queue, first, second


def check_commit_refused(member: Member, place: Place, offset: str, epoch: int) -> None:
    with pytest.raises(LOST_PARTITION_ERRORS):
        member.commit({place: offset}, epochs={place: epoch})


# Joining, taking and giving back


def test_the_first_member(group: Group, make: Make) -> None:
    """The first member owns nothing when it joins; its first heartbeat assigns it all partitions as new."""
    queue = make(3)
    member = group.join(queue)
    assert member.number == 1
    answer = member.send_heartbeat()
    group.settle(places_of(queue, 3), member)
    assert member.taken == dict.fromkeys(places_of(queue, 3), NEW_PARTITION)
    assert not answer.give_back
    assert not answer.lost
    assert [group.offset(place) for place in member.owned] == [None] * 3


def test_shared_out(group: Group, make: Make) -> None:
    """Partitions are shared evenly, with the fewest moves."""
    queue = make(6)
    first, second, third = (group.join(queue) for _ in range(3))
    group.settle(places_of(queue, 6), first)
    before = dict(first.owned)
    group.settle(places_of(queue, 6), first, second)
    assert first.owned.items() <= before.items()
    before = first.owned | second.owned
    group.settle(places_of(queue, 6), first, second, third)
    assert (first.owned | second.owned).items() <= before.items()


def test_taken_when_given_back(group: Group, make: Make) -> None:
    """A partition stays with its owner until that gives it back; the next owner gets the last committed offset."""
    queue, first, second = owner_and_follower(group, make)
    second.send_heartbeat()
    requested = wait_for_give_back_request(group, first, second)
    [place] = requested
    for number in range(1, 4):
        first.commit({place: message(number)}, note=b"half done")
        assert first.send_heartbeat().give_back == requested
        assert second.send_heartbeat().take == {}
    under = first.owned[place]
    first.send_heartbeat(requested)
    group.settle(places_of(queue, 2), first, second)
    assert second.taken == {place: TakenPartition(message(3), "given back", b"half done")}
    check_commit_refused(first, place, message(4), under)
    assert group.offset(place) == message(3)
    second.commit({place: message(5)})
    assert group.offset(place) == message(5)


def wait_for_give_back_request(group: Group, first: Member, second: Member) -> dict[Place, int]:
    """Returns the partitions that a member is asked to give back, without giving them back; both send heartbeats."""
    for _ in range(100):
        if requested := first.send_heartbeat().give_back:
            return requested
        group.pass_time(0.2)
        second.send_heartbeat()
    raise AssertionError(first.owned)


def test_answers_that_are_lost(group: Group, make: Make) -> None:
    """A partition to take or to give back is repeated in each answer until the member confirms it."""
    queue = make(2)
    first = group.join(queue)
    group.settle(places_of(queue, 2), first)
    before = dict(first.owned)
    first.owned = {}
    assert first.send_heartbeat().take.keys() == before.keys()
    assert first.owned == before
    second = group.join(queue)
    second.send_heartbeat()
    requested = wait_for_give_back_request(group, first, second)
    # As if the answer to its join and all heartbeats had been lost: silence gives nothing back.
    first.owned = {}
    group.pass_time_with_heartbeats(5, second)
    assert second.owned == {}
    answer = first.send_heartbeat()
    assert answer.give_back == requested
    assert answer.take.keys() == before.keys() - requested.keys()
    first.send_heartbeat(requested)
    group.settle(places_of(queue, 2), first, second)


def test_who_does_not_know_of_its_partition(group: Group, make: Make) -> None:
    """An owner that was never told of its partition gives it back when another member is to have it."""
    queues = make(1), make(1)
    first, second = group.join(*queues), group.join(*queues)
    group.settle([(queue, 1) for queue in queues], first)
    second.send_heartbeat()
    [place] = wait_for_give_back_request(group, first, second)
    del first.owned[place]  # As if no answer that named it had arrived; nothing else of that queue is assigned to it.

    def settled() -> bool:
        group.pass_time(0.5)
        for member in (second, first):
            member.beat_and_give_back()
        return list(second.owned) == [place]

    until(settled, every=0.05)


def test_late_heartbeats(group: Group, make: Make) -> None:
    """Neither a repeated give-back nor a heartbeat that names fewer partitions affects a later ownership."""
    queue, first, second = owner_and_follower(group, make)
    former = dict(first.owned)
    group.settle(places_of(queue, 2), first, second)
    [moved] = second.owned
    second.leave()
    group.settle(places_of(queue, 2), first)
    present = dict(first.owned)
    assert present[moved] > former[moved]
    third = group.join(queue)
    third.send_heartbeat()
    first.send_heartbeat({moved: former[moved]})
    first.owned = {}
    answer = first.send_heartbeat()
    assert first.owned | answer.give_back == present
    third.send_heartbeat()
    assert third.owned == {}


# Commits


def test_commits(group: Group, make: Make) -> None:
    """An owner's commits are recorded, and only move forward."""
    queue = make(2)
    member = group.join(queue)
    first_place, second_place = places_of(queue, 2)
    group.settle([first_place, second_place], member)
    member.commit({first_place: message(5), second_place: message(7)})
    member.commit({first_place: message(4)})
    assert [group.offset(first_place), group.offset(second_place)] == [message(5), message(7)]


def test_an_epoch_is_over_for_good(group: Group, make: Make) -> None:
    """A member that has a partition again cannot commit what it read in its former ownership."""
    queue, first, second = owner_and_follower(group, make)
    former = dict(first.owned)
    group.settle(places_of(queue, 2), first, second)
    [moved] = second.owned
    second.commit({moved: message(3)})
    second.leave()
    group.settle(places_of(queue, 2), first)
    with pytest.raises(NotOwner):
        first.commit({moved: message(9)}, epochs=former)
    assert group.offset(moved) == message(3)
    first.commit({moved: message(4)})
    assert group.offset(moved) == message(4)


def test_given_back_unasked(group: Group, make: Make) -> None:
    """A partition that a member gives back although the plan gives it to the member comes again under another epoch."""
    queue = make(1)
    [place] = places_of(queue, 1)
    member = group.join(queue)
    group.settle([place], member)
    former = dict(member.owned)
    member.send_heartbeat(former)
    group.settle([place], member)
    assert member.taken[place] == TakenPartition(None, "given back")
    assert member.owned[place] > former[place]
    with pytest.raises(NotOwner):
        member.commit({place: message(1)}, epochs=former)


# Ends of members


def test_session_over(group: Group, make: Make) -> None:
    """A member that is silent for a session and the clock difference has lost its partitions, but not earlier."""
    queue, first, second = join_two_members(group, make)
    [place], under = first.owned, dict(first.owned)
    first.commit({place: message(1)}, note=b"at 2")
    group.pass_time_with_heartbeats(SESSION / 2, second)
    first.send_heartbeat()  # A third of a session has passed, so this heartbeat is recorded.
    group.pass_time_with_heartbeats(SESSION - 0.5, second)
    first.commit({place: message(2)})
    group.pass_time_with_heartbeats(0.5 + group.slack / 10, second)
    group.join(queue)  # Expired sessions are ended now, and the plan is carried out soon.
    for _ in range(4):
        group.pass_time(group.slack / 5)
        second.beat_and_give_back()
    assert place not in second.owned
    group.pass_time_with_heartbeats(1, second)
    group.settle(places_of(queue, 2), second)
    assert second.taken[place] == TakenPartition(message(2), "lost", b"at 2")
    check_commit_refused(first, place, message(9), under[place])
    assert group.offset(place) == message(2)
    with pytest.raises(MemberGone):
        first.send_heartbeat()
    with pytest.raises(MemberGone):
        first.leave()


def test_a_commit_after_the_session(group: Group, make: Make) -> None:
    """A commit of a member whose session is over may be recorded until another member owns the partition."""
    queue = make(1)
    [place] = places_of(queue, 1)
    member = group.join(queue)
    group.settle([place], member)
    group.pass_time(SESSION + group.slack + 1)
    try:
        member.commit({place: message(1)})
    except MemberGone:
        recorded = None
    else:
        recorded = message(1)
    with pytest.raises(MemberGone):
        member.send_heartbeat()
    again = group.join(queue)
    group.settle([place], again)
    assert again.taken[place] == TakenPartition(recorded, "lost")
    check_commit_refused(member, place, message(9), member.owned[place])
    assert group.offset(place) == recorded


def test_a_give_back_that_is_late(group: Group, make: Make) -> None:
    """A member that does not give back in time is not renewed any more; only then others get its partitions."""
    queue = make(2)
    first, second = group.join(queue, revoke=5), group.join(queue)
    group.settle(places_of(queue, 2), first)
    second.send_heartbeat()
    wait_for_give_back_request(group, first, second)
    over = None
    for elapsed in range(60):
        try:
            first.send_heartbeat()
        except MemberGone:
            over = elapsed
            break
        assert second.owned == {}
        group.pass_time_with_heartbeats(1, second)
    assert over is not None
    assert over >= 5
    group.settle(places_of(queue, 2), second)
    assert {taken.came for taken in second.taken.values()} == {"lost"}


def test_leaving(group: Group, make: Make) -> None:
    """A member that leaves gives back its partitions at once, and is not a member any more."""
    queue, first, second = join_two_members(group, make)
    [place], under = first.owned, dict(first.owned)
    first.commit({place: message(1)})
    first.leave()
    check_commit_refused(first, place, message(2), under[place])
    with pytest.raises(MemberGone):
        first.send_heartbeat()
    group.settle(places_of(queue, 2), second)
    assert second.taken[place] == TakenPartition(message(1), "given back")


def test_draining(group: Group, make: Make) -> None:
    """A draining member gives back one partition after another, and gets none again."""
    queue, first, second = join_two_members(group, make, 4)
    first.send_heartbeat(leaving=True)
    group.beat_until(lambda: first.send_heartbeat().give_back == first.owned, second)
    for count in (3, 4):
        first.send_heartbeat(first.epochs([place_of(first)]), leaving=True)
        group.beat_until(lambda: len(second.owned) == count, second)  # noqa: B023 - at once
    assert first.send_heartbeat().take == {}
    group.settle(places_of(queue, 4), second)
    first.leave()


# Instances


def test_an_instance_is_replaced(group: Group, make: Make) -> None:
    """A member that joins with the instance name of another gets its partitions; no other partition moves."""
    queue = make(4)
    first, second = group.join(queue, instance="a"), group.join(queue, instance="b")
    group.settle(places_of(queue, 4), first, second)
    others, mine = dict(second.owned), dict(first.owned)
    first.commit({place_of(first): message(1)})
    next_one = group.join(queue, instance="a")
    first.send_heartbeat()  # It is a member until its successor has shown that it got the answer.
    group.beat_until(lambda: next_one.owned.keys() == mine.keys(), next_one, second)
    assert second.owned == others
    assert next_one.taken[min(mine)] == TakenPartition(message(1), "lost")
    check_commit_refused(first, min(mine), message(2), mine[min(mine)])
    group.pass_time_with_heartbeats(3, next_one, second)  # Other processes know within 2 s.
    with pytest.raises(MemberGone):
        first.send_heartbeat()


@pytest.mark.parametrize("word", ["given back", "lost"])
def test_an_instance_returns(group: Group, make: Make, word: str) -> None:
    """An instance that is away within its grace keeps its partitions, whether it has left or was lost."""
    queue = make(4)
    first, second = group.join(queue, instance="a", grace=60), group.join(queue)
    group.settle(places_of(queue, 4), first, second)
    others, mine = dict(second.owned), dict(first.owned)
    if word == "given back":
        first.leave(returns=True)
    else:
        group.end_session(first, second)
    group.pass_time_with_heartbeats(30, second)
    assert second.owned == others
    again = group.join(queue, instance="a", grace=60)
    group.beat_until(lambda: again.owned.keys() == mine.keys(), again, second)
    assert second.owned == others
    assert {taken.came for taken in again.taken.values()} == {word}


def test_an_instance_that_stays_away(group: Group, make: Make) -> None:
    """When the grace is over, others get the partitions."""
    queue = make(4)
    first, second = group.join(queue, instance="a", grace=60), group.join(queue)
    group.settle(places_of(queue, 4), first, second)
    first.leave(returns=True)
    group.pass_time_with_heartbeats(60 + group.slack + 1, second)
    group.settle(places_of(queue, 4), second)


def test_an_instance_of_somebody_else(group: Group, make: Make) -> None:
    """Another credential may use the name of an instance: both members stay, and share the partitions."""
    queue = make(2)
    first, other = group.join(queue, instance="a"), group.join(queue, instance="a", key="other")
    group.settle(places_of(queue, 2), first, other)
    assert len(first.owned) == len(other.owned) == 1
