"""Assigns partitions to the members of a group. Pure; :mod:`queuey.groups.assignment` says what an assignment is.

Members say which queues they want and may see, and the leader looks up which there are.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from qdo.coordination import Member, TargetAssignment
from qdo.partitions import Partition, Queue, Subscription
from queuey.groups import assignment as assignments

__all__ = ["AssignmentPlan", "assign", "plan", "reported"]


class AssignmentPlan(NamedTuple):
    """A target that was computed.

    Attributes:
        target: The target.
        recheck: When the next absent member's time is over, seconds since 1970; None: no member is absent.
        unseen: Queues that are wanted and may exist, but that no member which wants them may see.
    """

    target: TargetAssignment
    recheck: float | None
    unseen: frozenset[Queue] = frozenset()


def assign(
    members: Mapping[str, Mapping[Queue, int]],
    previous: Mapping[Partition, str],
    *,
    reserved: Container[str] = (),
) -> dict[Partition, str]:
    """Returns the owner that each partition is to have.

    Args:
        members: For each member its queues, with the number of partitions that it sees.
        previous: The previous assignment; its members and partitions need not exist any more.
        reserved: Absent owners that keep their partitions, which are left out of the result and of the balance.
    """
    owners = assignments.assign(members, previous.items(), reserved=reserved)
    return {
        partition if isinstance(partition, Partition) else Partition._make(partition): member
        for partition, member in owners.items()
    }


def plan(
    members: Mapping[str, Member],
    queues: Mapping[Queue, int],
    target: TargetAssignment | None,
    now: float,
    grace: float,
) -> AssignmentPlan:
    """Returns what the target is to be, which is the present one if that is right.

    A queue that any member sees goes to members that want it and may see it. If there are none, and the queue may
    exist, its partitions stay with their owners. A member that does not say what it sees is taken to see what the
    leader does.

    A static member that is gone keeps its partitions for a while, so that its return moves nothing. Meanwhile other
    members neither lose partitions to it nor get any of its.

    Members that are leaving count as gone.

    Args:
        members: The present members.
        queues: The queues that the leader sees, with their partitions. 0: there is no such queue.
        target: The present one.
        now: Seconds since 1970.
        grace: Seconds for which absent static members keep what they have.
    """
    before = TargetAssignment() if target is None else target
    members = {name: member for name, member in members.items() if not member.leaving}
    since = {
        member: min(before.absent.get(member, now), now)
        for member in sorted(before.static | before.absent.keys())
        if member not in members
    }
    since = {member: instant for member, instant in since.items() if instant + grace > now}
    kept = {partition: member for partition, member in before.owners.items() if member in since}
    seen = reported(members.values()) | dict(queues)
    taken = {
        wants: [(queue, count) for queue, count in seen.items() if count and wants.takes(queue)]
        for wants in {member.wants for member in members.values()}
    }
    # Of members that want and may see the same each is looked up once: they share one mapping.
    wanted = {
        each: {
            queue: count
            for queue, count in taken[wants]
            if (queue in queues if sight is None else sight.covers(queue.name))
        }
        for each, (wants, sight) in {_kind(member): (member.wants, member.sight) for member in members.values()}.items()
    }
    known = {queue for queue, count in seen.items() if not count}.union(*wanted.values())
    stay = {
        partition: name
        for partition, name in before.owners.items()
        if partition.queue not in known and name in members and members[name].wants.takes(partition.queue)
    }
    named = {Queue(one.service, one.application, name) for one, _ in wanted for name in one.names}
    unseen = frozenset(named | {partition.queue for partition in stay}) - known
    assigned = assign({name: wanted[_kind(member)] for name, member in members.items()}, before.owners, reserved=since)
    owners = assigned | kept | stay
    holders = set(kept.values())
    away = {member: instant for member, instant in since.items() if member in holders}
    static = frozenset(name for name, member in members.items() if member.static)
    recheck = min(away.values()) + grace if away else None
    return AssignmentPlan(TargetAssignment(owners, away, static), recheck, unseen)


def _kind(member: Member) -> tuple[Subscription, tuple[tuple[str, ...], frozenset[str]] | None]:
    return member.wants, None if member.sight is None else (member.sight.patterns, member.sight.hidden)


def reported(members: Iterable[Member]) -> dict[Queue, int]:
    """Returns what members know of queues that the leader may not see: their partitions, 0: no such queue."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for member in members:
        counts = found.setdefault((member.wants.service, member.wants.application), {})
        for name, count in member.sight.others.items() if member.sight is not None else ():
            if count >= counts.get(name, 0):
                counts[name] = count
    return {Queue(*where, name): count for where, counts in found.items() for name, count in counts.items()}
