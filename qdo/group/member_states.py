"""The decisions of a group member. Pure: ``qdo.group.member`` carries them out.

**A member**::

    new ──start──► joining ──joined──► active ──suspended──► suspended
                      ▲                  │ ◄────connected────    │
                      └──────lost────────┴──────────lost─────────┘

    each state but leaving and left ──stop──► leaving ──left──► left

joining     has no session: owns nothing, and retries under the same id until it has a session.
active      reads its assignment, claims the partitions assigned to it, and releases those that no longer are. One
            member leads: it reads the members and the queues, and sets the target. Two members that both believe to
            lead do no harm: the target is set at the version that was read, and only one member can claim a partition.
suspended   the service does not answer. The member still owns its partitions, hands out no new messages, and does
            nothing else until it is connected again or lost.
leaving     revokes and releases all its partitions and leaves. It only reports partitions lost meanwhile.
left        final.

**Its partitions** have their own states, in :mod:`qdo.group.partition_table`. An assigned partition
without a row is claimed. While another member still owns it, the claim is retried at every change. An owned partition
that is no longer assigned is revoked and released. This is completed even if the target assigns the partition to this
member again; it is claimed again afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from math import inf
from typing import Final, Literal, NamedTuple

from qdo.group.assignment import plan_assignment
from qdo.group.offsets import State as PartitionState
from qdo.group.records import Member, TargetAssignment
from qdo.partitions import Partition, Queue

State = Literal["new", "joining", "active", "suspended", "leaving", "left"]
Cause = Literal["start", "joined", "suspended", "connected", "lost", "stop", "left"]

TRANSITIONS: Final[Mapping[tuple[State, Cause], State]] = {
    ("new", "start"): "joining",
    ("new", "stop"): "leaving",
    ("joining", "joined"): "active",
    ("joining", "stop"): "leaving",
    ("active", "suspended"): "suspended",
    ("active", "lost"): "joining",
    ("active", "stop"): "leaving",
    ("suspended", "connected"): "active",
    ("suspended", "lost"): "joining",
    ("suspended", "stop"): "leaving",
    ("leaving", "left"): "left",
}
"""The next state for each state and cause; all other causes leave the state unchanged."""


def find_next_state(state: State, cause: Cause) -> State:
    return TRANSITIONS.get((state, cause), state)


class ComputedPlan(NamedTuple):
    """The result of the leader's last computation, kept until something changes.

    Attributes:
        members, queues: The inputs of the computation.
        target: The computed target.
        recheck: When to compute again even without changes, in seconds since 1970, if ever.
        unseen: Subscribed queues that may exist, but that no member may see.
    """

    members: Mapping[str, Member]
    queues: Mapping[Queue, int]
    target: TargetAssignment
    recheck: float | None
    unseen: AbstractSet[Queue] = frozenset()

    def is_current_for(self, view: LeaderView) -> bool:
        """Returns whether members, queues and the stored target are those of the plan, and no recheck is due."""
        due = self.recheck is not None and view.now >= self.recheck
        same_target = view.target is self.target or view.target == self.target
        return not due and same_target and view.members == self.members and view.queues == self.queues


class LeaderView(NamedTuple):
    """The inputs of a leader's decision.

    Attributes:
        members: The present members.
        queues: The visible queues and their partition counts; 0 means that the queue does not exist.
        target: The target. It is read before the members, so it is never replaced because of older members.
        planned: The last computed plan.
        now: Seconds since 1970.
        age: Seconds for which members and queues have been changing.
        settle: Seconds for which changes are collected.
        grace: Seconds for which absent static members keep their partitions.
    """

    members: Mapping[str, Member]
    queues: Mapping[Queue, int]
    target: TargetAssignment | None
    planned: ComputedPlan | None
    now: float
    age: float
    settle: float
    grace: float


class PartitionChanges(NamedTuple):
    """Changes to a member's partitions, which may be made concurrently.

    Attributes:
        give_up: Partitions that the member owns, or may own, and that are not assigned to it.
        claim: Assigned partitions that have no row or are unsure.
    """

    give_up: frozenset[Partition] = frozenset()
    claim: frozenset[Partition] = frozenset()


class LeaderDecision(NamedTuple):
    """The next step of a leader.

    Attributes:
        target: The new target, to be set at the version that was read, or None to keep the present one.
        wait: Seconds after which to check again even if nothing changes, if needed.
        planned: The plan to pass in the next view.
    """

    target: TargetAssignment | None = None
    wait: float | None = None
    planned: ComputedPlan | None = None


def find_partition_changes(
    assigned: AbstractSet[Partition], states: Mapping[Partition, PartitionState]
) -> PartitionChanges:
    return PartitionChanges(
        frozenset(p for p, state in states.items() if state in {"owned", "unsure"} and p not in assigned),
        frozenset(p for p in assigned if states.get(p, "unsure") == "unsure"),
    )


def decide_as_leader(view: LeaderView) -> LeaderDecision:
    """Returns the new target, or None if it is unchanged or changes are still collected, and when to decide again."""
    if view.planned is not None and view.planned.is_current_for(view):
        return LeaderDecision(None, _seconds_until(view.planned.recheck, view.now), view.planned)
    if view.age < view.settle:
        return LeaderDecision(None, view.settle - view.age, view.planned)
    computed = plan_assignment(view.members, view.queues, view.target, view.now, view.grace)
    planned = ComputedPlan(view.members, view.queues, computed.target, computed.recheck, computed.unseen)
    target = None if computed.target == view.target else computed.target
    return LeaderDecision(target, _seconds_until(computed.recheck, view.now), planned)


def _seconds_until(instant: float | None, now: float) -> float | None:
    return None if instant is None else max(0.0, instant - now)


class RebalanceDebounce:
    """Delays rebalances to collect changes of members and queues.

    In a group that has a target, the first change after a quiet period is handled at once, because it is usually the
    only one. Changes within ``seconds`` of it are collected until that time is over. A group without a target collects
    changes from the first member on, because members are often started together.

    Args:
        seconds: The time for which changes are collected.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._answered: object = None
        self._answered_at = -inf
        self._changing_since: float | None = None

    def update_age(self, seen: object, now: float, *, has_target: bool) -> float:
        """Returns the time for which changes have been collected; ``seconds`` at once if nothing has changed.

        If it is ``seconds``, handle the changes now: they count as handled. Otherwise call again after the rest of that
        time. With a target, time counts from the last handled change, else from the first new one.

        Args:
            seen: The present members and queues; compared with those handled last.
            now: The present time of any monotonic clock.
            has_target: Whether the group has a target.
        """
        if seen == self._answered:
            self._changing_since = None
            return self._seconds
        if self._changing_since is None:
            self._changing_since = now
        due = (self._answered_at if has_target else self._changing_since) + self._seconds
        if now < due:
            return self._seconds - (due - now)
        self._answered, self._answered_at, self._changing_since = seen, now, None
        return self._seconds
