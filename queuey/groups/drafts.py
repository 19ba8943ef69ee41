"""Changes of a group's state, gathered into one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from queuey.groups.state import Credential, GroupChange, GroupState, JoinRequest, Member
from queuey.messages import Queue

REST_AFTER, REST, MAX_REST = 10_000, 200, 3_200
"""Plans rest if there was one less than so many ms ago; ms for the first and at most."""

Rights = Callable[[Credential], Credential | None]
"""Returns a credential with its rights as they are now; None: it has ended."""


class GroupDraft:
    """A working copy of a group's state, changed by what waits.

    Args:
        state: As it was read.
        now: By a sound clock.
        slack: S, in ms: clocks differ by at most this.
        seen: The highest time at which each member was seen, by number, read after ``now`` was sampled.
    """

    def __init__(self, state: GroupState, now: int, slack: int, seen: Mapping[int, int]) -> None:
        raise NotImplementedError

    def end_sessions(self) -> list[Member]:
        """Removes members whose session is over, and absent ones whose grace is over; returns them.

        Those with an instance and a grace become absent instead.
        """
        raise NotImplementedError

    def join(self, request: JoinRequest, digest: bytes) -> Member:
        """Adds a member in the state *new*, which has no targets yet.

        Raises:
            InstanceTaken: Its instance belongs to another credential.
            TooManyMembers: The group has as many as it may have, after sessions that are over were ended.
            TooManyJoins: More than 5,000 within the hour.
            InvalidRequest: The subscriptions of all members would be too long.
        """
        raise NotImplementedError

    def be_present(self, number: int) -> None:
        """Makes a new member present: by targets of the same instance and credential, or by a plan that is due.

        A member that is leaving stays so. Unknown numbers are ignored.
        """
        raise NotImplementedError

    def leave(self, number: int, *, returns: bool = False) -> None:
        """Removes a member; with ``returns`` one with an instance and a grace becomes absent and keeps its targets."""
        raise NotImplementedError

    def drain(self, number: int) -> None:
        """Makes a member leaving: it loses its targets with the plan that is due now."""
        raise NotImplementedError

    def remove(self, number: int) -> None:
        """Removes a member whose credential or rights have ended or changed."""
        raise NotImplementedError

    def ask_for_plan(self) -> None:
        """Makes a plan due, after the rest: queues, their partitions or principals have changed."""
        raise NotImplementedError

    def is_plan_due(self) -> bool:
        """Returns whether a plan is to be made with what is gathered, now."""
        raise NotImplementedError

    def plan(self, queues: Sequence[Queue], rights: Rights) -> None:
        """Plans anew: targets, epoch, due and busy.

        Args:
            queues: All queues that names or patterns of a present member match, as they are now.
            rights: Of credentials; a member whose rights differ from its subscription's is removed (O6).
        """
        raise NotImplementedError

    def change(self) -> GroupChange | None:
        """Returns what is to be written; None: nothing has changed."""
        raise NotImplementedError

    @property
    def state(self) -> GroupState:
        """The state as it will be, the version of its head aside."""
        raise NotImplementedError
