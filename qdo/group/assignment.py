"""Assigns partitions to the members of a group, without I/O. :mod:`queuey.groups.assignment` has the algorithm.

Members report which queues they subscribe to and which they may see. The leader looks up which queues exist.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from qdo.group.records import Member, TargetAssignment
from qdo.partitions import Partition, Queue, Subscription
from queuey.groups import assignment as assignments

__all__ = ["AssignmentPlan", "assign", "find_reported_queues", "plan_assignment"]


class AssignmentPlan(NamedTuple):
    """The result of :func:`plan_assignment`.

    Attributes:
        target: The target assignment.
        recheck: When the grace period of the next absent member ends, in seconds since 1970. None if no member is
            absent.
        unseen: Queues that may exist, but that none of their subscribers may see.
    """

    target: TargetAssignment
    recheck: float | None
    unseen: frozenset[Queue] = frozenset()


def assign(
    members: Mapping[str, Mapping[Queue, int]], previous: Mapping[Partition, str], *, reserved: Container[str] = ()
) -> dict[Partition, str]:
    """Returns the new owner of each partition.

    Args:
        members: The queues of each member, with the number of partitions that it sees.
        previous: The previous assignment. Its members and partitions may be gone.
        reserved: Absent owners that keep their partitions. These are not in the result and do not count for the
            balance.
    """
    owners = assignments.assign(members, previous.items(), reserved=reserved)
    return {
        partition if isinstance(partition, Partition) else Partition._make(partition): member
        for partition, member in owners.items()
    }


def plan_assignment(
    members: Mapping[str, Member],
    queues: Mapping[Queue, int],
    target: TargetAssignment | None,
    now: float,
    grace: float,
) -> AssignmentPlan:
    """Returns the next target assignment, which equals the current one if nothing has to move.

    A queue that any member sees is assigned to subscribers that may see it. If no subscriber may see it and the queue
    may exist, its partitions stay with their owners.

    An absent static member keeps its partitions during the grace period, so that its return moves nothing. Until then,
    other members neither lose partitions to it nor get any of its partitions.

    Members that are leaving count as absent.

    Args:
        members: The current members.
        queues: The queues that the leader sees, with their numbers of partitions. 0 means that the queue does not
            exist.
        target: The current target.
        now: Seconds since 1970.
        grace: Seconds for which absent static members keep their partitions.
    """
    before = TargetAssignment() if target is None else target
    members = {name: member for name, member in members.items() if not member.leaving}
    since = {
        member: min(before.absent.get(member, now), now)
        for member in sorted(before.static | before.absent.keys())
        if member not in members
    }
    since = {member: instant for member, instant in since.items() if instant + grace > now}
    absent_owners = {partition: member for partition, member in before.owners.items() if member in since}
    visible = find_reported_queues(members.values()) | dict(queues)
    matching = {
        wants: [(queue, count) for queue, count in visible.items() if count and wants.matches(queue)]
        for wants in {member.wants for member in members.values()}
    }
    # Members with the same subscription and sight share one mapping.
    assignable = {
        kind: {queue: count for queue, count in matching[wants] if sight.includes(queue.name)}
        for kind, (wants, sight) in {
            _make_view_key(member): (member.wants, member.sight) for member in members.values()
        }.items()
    }
    listed = {queue for queue, count in visible.items() if not count}.union(*assignable.values())
    staying = {
        partition: name
        for partition, name in before.owners.items()
        if partition.queue not in listed and name in members and members[name].wants.matches(partition.queue)
    }
    named = {Queue(s.service, s.application, name) for s, *_ in assignable for name in s.names}
    unseen = frozenset(named | {partition.queue for partition in staying}) - listed
    assigned = assign(
        {name: assignable[_make_view_key(m)] for name, m in members.items()}, before.owners, reserved=since
    )
    owners = assigned | absent_owners | staying
    holders = set(absent_owners.values())
    absent = {member: instant for member, instant in since.items() if member in holders}
    static = frozenset(name for name, member in members.items() if member.static)
    recheck = min(absent.values()) + grace if absent else None
    return AssignmentPlan(TargetAssignment(owners, absent, static), recheck, unseen)


def _make_view_key(member: Member) -> tuple[Subscription, tuple[str, ...], frozenset[str]]:
    return member.wants, member.sight.patterns, member.sight.hidden


def find_reported_queues(members: Iterable[Member]) -> dict[Queue, int]:
    """Returns the partition counts that members report for queues hidden from the leader; 0 if a queue is absent."""
    by_application: dict[tuple[str, str], dict[str, int]] = {}
    for member in members:
        counts = by_application.setdefault((member.wants.service, member.wants.application), {})
        for name, count in member.sight.others.items():
            if count >= counts.get(name, 0):
                counts[name] = count
    return {Queue(*owner, name): count for owner, counts in by_application.items() for name, count in counts.items()}
