"""What a member of a group does next. Pure: ``qdo.consumer.group`` looks, asks here, and acts.

**A member**::

    new ──start──► joining ──joined──► active ──suspended──► suspended
                      ▲                  │ ◄────connected────    │
                      └──────lost────────┴──────────lost─────────┘

    every one of them ──stop──► leaving ──left──► left

joining     has no session: it owns nothing, and tries until it has one, always under the same id.
active      reads who is there and the target, takes what the target gives it, revokes what the target takes away. The
            member with the lowest id leads: it sets the target. Two that both believe to lead do no harm: the target
            is set at the version that was read, and who owns a partition is decided where it is taken.
suspended   nobody answers. It still owns what it owned, hands out nothing new, and does nothing else until it is
            connected again or lost.
leaving     revokes all that it holds, releases it and leaves. What is lost meanwhile is only told.
left        final.

**Its partitions** have states of their own, in :mod:`qdo.consumer.partition_table`. What is given to it and has no row
there is taken; while somebody else still owns it, again at every change. What is owned and is not given to it any more
is given up. Once begun that is carried through, even if the target gives the partition back: then it is taken anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from qdo.assignment import plan
from qdo.consumer.partition_table import State as PartitionState
from qdo.coordination import Member, Target, Versioned
from qdo.partitions import Partition

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
    """Returns the state that a cause leads to: the same one where nothing else is written down."""
    return TRANSITIONS.get((state, cause), state)


class Planned(NamedTuple):
    """What a leader has computed, so that it need not do so again until something changes.

    Attributes:
        members: Who was there.
        target: What the target is to be.
        look_again: When it is to be computed again even so, seconds since 1970; None: never.
    """

    members: Mapping[str, Member]
    target: Target
    look_again: float | None

    def covers(self, members: Mapping[str, Member], target: Target | None, now: float) -> bool:
        """Tells whether computing it again would change nothing."""
        due = self.look_again is not None and now >= self.look_again
        same_target = target is self.target or target == self.target
        return not due and same_target and members == self.members


class View(NamedTuple):
    """What a connected member knows.

    Attributes:
        me: Its id.
        members: Who is there, as it read last; None: it has not looked yet, and leads nobody.
        target: The target, read before the members: so it is never set on account of older members.
        states: Of its partitions; what has none is not its own.
        planned: What it computed last as the leader.
        now: Seconds since 1970.
        age: Seconds for which members have been changing.
        settle: Seconds for which a leader lets changes gather.
        grace: Seconds for which absent static members keep what they have.
    """

    me: str
    members: Mapping[str, Member] | None
    target: Versioned
    states: Mapping[Partition, PartitionState]
    planned: Planned | None
    now: float
    age: float
    settle: float
    grace: float


class Decision(NamedTuple):
    """What a member does next; everything may be done side by side.

    Attributes:
        target: What to set the target to, at the version that was read; None: leave it.
        give_up: What it owns, or may own, and is not to have.
        take: What to take.
        wait: Seconds after which to look again even if nothing changes; None: there is no need.
        planned: To be handed in with the next view.
    """

    target: Target | None = None
    give_up: frozenset[Partition] = frozenset()
    take: frozenset[Partition] = frozenset()
    wait: float | None = None
    planned: Planned | None = None


def decide(view: View) -> Decision:
    """Returns what a connected member does next."""
    target, wait, planned = _lead(view)
    if view.target.target is None:
        # Nobody said anything about what is held, if there is such a thing.
        return Decision(target=target, wait=wait, planned=planned)
    given = frozenset(partition for partition, owner in view.target.target.owners.items() if owner == view.me)
    return Decision(
        target=target,
        give_up=frozenset(
            each for each, state in view.states.items() if state in {"owned", "unsure"} and each not in given
        ),
        take=frozenset(each for each in given if view.states.get(each, "unsure") == "unsure"),
        wait=wait,
        planned=planned,
    )


def leads(me: str, members: Mapping[str, Member]) -> bool:
    """Tells whether a member is the one that sets the target."""
    return me == min(members, default=None)


def _lead(view: View) -> tuple[Target | None, float | None, Planned | None]:
    """Returns the target to set, when to look again, and what was computed."""
    if view.members is None or not leads(view.me, view.members):
        return None, None, None
    if view.planned is not None and view.planned.covers(view.members, view.target.target, view.now):
        return None, _until(view.planned.look_again, view.now), view.planned
    if view.age < view.settle:
        return None, view.settle - view.age, view.planned
    computed = plan(view.members, view.target.target, view.now, view.grace)
    planned = Planned(view.members, computed.target, computed.look_again)
    target = None if computed.target == view.target.target else computed.target
    return target, _until(computed.look_again, view.now), planned


def _until(instant: float | None, now: float) -> float | None:
    return None if instant is None else max(0.0, instant - now)
