"""The decisions of a member of a group. Pure: ``qdo.consumer.rebalance.group_member`` asks, and acts.

**A member**::

    new ──start──► joining ──joined──► active ──suspended──► suspended
                      ▲                  │ ◄────connected────    │
                      └──────lost────────┴──────────lost─────────┘

    every one of them ──stop──► leaving ──left──► left

joining     has no session: it owns nothing, and tries until it has one, always under the same id.
active      reads what it is to own, takes what is given to it, and gives up what is not any more. One member leads:
            it reads the members and the queues, and sets the target. Two that both believe to lead do no
            harm: the target is set at the version that was read, and only one can take a partition.
suspended   the service does not answer. It still owns what it owned, hands out nothing new, and does nothing else until
            it is connected again or lost.
leaving     revokes all that it holds, releases it and leaves. Partitions lost meanwhile are only reported.
left        final.

**Its partitions** have their own states, in :mod:`qdo.consumer.rebalance.partition_table`. A partition that is assigned
to it and has no row there is taken; while another member still owns it, it is tried again at every change. An owned
partition that is not assigned to it any more is given up. Once begun, that is finished even if the target gives the
partition back: then it is taken again.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from math import inf
from typing import Final, Literal, NamedTuple

from qdo.assignment import plan
from qdo.consumer.owned_partition import State as PartitionState
from qdo.coordination import Member, TargetAssignment
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
"""Every cause that leads to another state."""


def after(state: State, cause: Cause) -> State:
    return TRANSITIONS.get((state, cause), state)


class ComputedPlan(NamedTuple):
    """The result of a leader, so that it need not compute it again until something changes.

    Attributes:
        members, queues: Those of that time.
        target: What the target is to be.
        recheck: When it is to be computed again even so, seconds since 1970; None: never.
        unseen: Queues that are wanted and may exist, but that no member may see.
    """

    members: Mapping[str, Member]
    queues: Mapping[Queue, int]
    target: TargetAssignment
    recheck: float | None
    unseen: AbstractSet[Queue] = frozenset()

    def covers(self, view: LeaderView) -> bool:
        """Returns whether computing it again would change nothing."""
        due = self.recheck is not None and view.now >= self.recheck
        same_target = view.target is self.target or view.target == self.target
        return not due and same_target and view.members == self.members and view.queues == self.queues


class LeaderView(NamedTuple):
    """The knowledge of a leader.

    Attributes:
        members: The present members.
        queues: The queues that it sees, with their partitions. 0: there is no such queue.
        target: The target, read before the members: so it is never set on account of older members.
        planned: What it computed last.
        now: Seconds since 1970.
        age: Seconds for which members and queues have been changing.
        settle: Seconds for which it lets changes gather.
        grace: Seconds for which absent static members keep what they have.
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
    """Steps of a member with its partitions, which may be done side by side.

    Attributes:
        give_up: Partitions that it owns, or may own, and is not to have.
        claim: Partitions to take.
    """

    give_up: frozenset[Partition] = frozenset()
    claim: frozenset[Partition] = frozenset()


class LeaderDecision(NamedTuple):
    """The next step of a leader.

    Attributes:
        target: What to set the target to, at the version that was read; None: leave it.
        wait: Seconds after which to check again even if nothing changes; None: there is no need.
        planned: To be handed in with the next view.
    """

    target: TargetAssignment | None = None
    wait: float | None = None
    planned: ComputedPlan | None = None


def partition_changes(given: AbstractSet[Partition], states: Mapping[Partition, PartitionState]) -> PartitionChanges:
    """Compares the partitions that a connected member is to own with those that it owns or may own."""
    return PartitionChanges(
        frozenset(each for each, state in states.items() if state in {"owned", "unsure"} and each not in given),
        frozenset(each for each in given if states.get(each, "unsure") == "unsure"),
    )


def decide_as_leader(view: LeaderView) -> LeaderDecision:
    if view.planned is not None and view.planned.covers(view):
        return LeaderDecision(None, _until(view.planned.recheck, view.now), view.planned)
    if view.age < view.settle:
        return LeaderDecision(None, view.settle - view.age, view.planned)
    computed = plan(view.members, view.queues, view.target, view.now, view.grace)
    planned = ComputedPlan(view.members, view.queues, computed.target, computed.recheck, computed.unseen)
    target = None if computed.target == view.target else computed.target
    return LeaderDecision(target, _until(computed.recheck, view.now), planned)


def _until(instant: float | None, now: float) -> float | None:
    return None if instant is None else max(0.0, instant - now)


class RebalanceDebounce:
    """Counts the time for which members have been changing, up to the time for settling, when they are answered.

    In a group at work the first change for a while is answered at once, for it mostly is the only one; those that
    follow within the time for settling gather until that is over. A group without a target gathers from the first
    member on, because its members are often started together.

    Args:
        seconds: The time for settling.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._answered: object = None
        self._answered_at = -inf
        self._changing_since: float | None = None

    def age(self, seen: object, now: float, *, at_work: bool) -> float:
        """Returns the time; what is left of the time for settling is to be waited, and then it is asked again.

        Args:
            seen: The members and queues that are there now; compared with what was there.
            now: The present instant, of any monotonic clock.
            at_work: The group has a target.
        """
        if seen == self._answered:
            self._changing_since = None
            return self._seconds
        if self._changing_since is None:
            self._changing_since = now
        due = (self._answered_at if at_work else self._changing_since) + self._seconds
        if now < due:
            return self._seconds - (due - now)
        self._answered, self._answered_at, self._changing_since = seen, now, None
        return self._seconds
