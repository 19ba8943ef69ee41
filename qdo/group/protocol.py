"""What a group needs of a coordination service.

Members and commands know a coordinator and its sessions by these protocols only; :mod:`qdo.group.opening` makes them.
Differences between services are capabilities: :attr:`Coordinator.in_service` and :attr:`Session.leadership`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, Protocol

from qdo.group.records import (
    CommittedOffset,
    GroupSnapshot,
    Listen,
    Member,
    SessionOffset,
    TargetAssignment,
    Versioned,
    Visibility,
)
from qdo.partitions import Partition, Queue


class Leadership(Protocol):
    """How the members of a group assign its partitions themselves: one of them leads.

    Each method raises CoordinationLost and SessionLost; one that reads also raises CoordinationIncompatible.
    """

    async def lead(self) -> bool:
        """Returns whether this member leads. If no member leads, this one tries to, unless it has retired.

        The leader sets the target. At most one live session leads. A ``changed`` event reports that the leader may have
        changed: the present one retired or is gone, or a member joined.
        """

    async def leader(self) -> Member | None:
        """Returns the leader, or None if the group has none.

        A ``changed`` event reports a new leader or a change of its sight. The cost does not grow with the number of
        members.
        """

    async def set_sight(self, sight: Visibility) -> None:
        """Publishes the queues that this member may see."""

    async def members(self) -> Mapping[str, Member]:
        """Returns all live members by id, including this one. A ``changed`` event reports the next change.

        Only the leader calls this: the cost grows with the number of members.
        """

    async def target(self) -> Versioned:
        """Returns the target. A ``changed`` event reports the next change."""

    async def set_target(self, target: TargetAssignment, version: int) -> bool:
        """Replaces the whole target atomically if it still has the version; returns whether it did."""


class Session(Protocol):
    """A member's session in a group, until it leaves or is lost.

    Its events go to the function that was given to :meth:`Coordinator.join`; ``lost`` is the last one.
    """

    @property
    def state(self) -> Literal["connected", "suspended", "lost"]:
        """The state, by the session's own clock; it may change before its event arrives."""

    @property
    def leadership(self) -> Leadership | None:
        """Lets this member lead; None if the service finds the queues and assigns the partitions."""

    async def assignment(self) -> frozenset[Partition]:
        """Returns the partitions that this member is to own. A ``changed`` event reports the next change.

        Raises:
            CoordinationLost, SessionLost, CoordinationIncompatible
        """

    async def claim(self, partitions: Iterable[Partition]) -> Mapping[Partition, SessionOffset]:
        """Claims partitions independently of each other; returns the ones that this session owns now.

        A partition that another session owns is left out; a ``changed`` event follows when it becomes free. A partition
        that this session already owns is in the answer, with its present version.

        Raises:
            CoordinationLost: Some partitions may have been claimed. Claim them again to find out.
            SessionLost
        """

    async def release(self, partitions: Iterable[Partition]) -> None:
        """Releases partitions. Partitions that this session does not own are skipped.

        Raises:
            CoordinationLost: They may or may not have been released. Call again.
            SessionLost
        """

    async def commit(
        self, offsets: Iterable[tuple[SessionOffset, str | None]]
    ) -> Mapping[Partition, SessionOffset | None]:
        """Records the id of the last processed message of each partition, with the note in its ``offset``.

        Returns:
            The new state of each partition, or None if this session no longer owns it or the version is not the latest.
            Nothing was recorded then.

        Raises:
            CoordinationLost: Each offset may or may not have been recorded. Claim the partitions again to find out.
            SessionLost
        """

    def begin_to_leave(self) -> None:
        """Stops the assignment of partitions to this member, as far as it needs no request."""

    async def retire(self) -> None:
        """Announces that this member is leaving. It keeps each partition until it releases it.

        Raises:
            CoordinationLost, SessionLost
        """

    async def leave(self) -> None:
        """Releases all partitions and leaves the group. Never raises; idempotent.

        No event follows. The other methods raise ``SessionLost`` afterwards.
        """


class Coordinator(Protocol):
    """The connection of a group to its coordination service. Many members of one process may share it.

    Every method but ``close`` raises ``CoordinationLost`` while the service cannot be reached.

    Attributes:
        group: The group's name.
        session_timeout: Seconds without a heartbeat after which the service ends a member's session.
        outlast: Seconds for which members that join from now on stay members while the interpreter of this program is
            blocked: a helper process sends the heartbeats meanwhile. 0 means no helper process.
    """

    group: str
    session_timeout: float
    outlast: float

    @property
    def in_service(self) -> bool:
        """Whether Queuey's service has the group: it shows the offsets, and members need the right ``claim``."""

    async def open(self) -> None:
        """Connects. Idempotent.

        Raises:
            CoordinationLost, CoordinationIncompatible
        """

    async def join(self, member: Member, listen: Listen, *, replace: bool = False) -> Session:
        """Adds a member with its own session.

        Args:
            member: The member that joins.
            listen: Called with each event on the caller's event loop; must not raise. ``lost`` is the last event.
            replace: Removes a live member with this id from the group. The removed session is lost. It cannot commit
                once the new session claims its partitions, which is possible at once.

        Raises:
            MemberExists: A live member has this id, and ``replace`` is not set.
            InvalidArgument: The service does not allow the member's name, or another argument.
            CoordinationRefused: The member lacks a right, or the group is served elsewhere.
            CoordinationLost
        """

    async def close(self) -> None:
        """Ends all sessions and the connection. Idempotent; never raises."""

    async def snapshot(self) -> GroupSnapshot:
        """Returns the members, the target, the owners and the offsets."""

    async def members(self) -> Mapping[str, Member]:
        """Returns all live members by id."""

    async def offsets(self, partitions: Iterable[Partition] | None = None) -> Mapping[Partition, CommittedOffset]:
        """Returns the recorded offsets of all or some partitions; partitions without an offset are left out."""

    async def set_offsets(
        self, offsets: Mapping[Partition, str | None], *, expected: Mapping[Partition, str | None] | None = None
    ) -> None:
        """Moves offsets from outside the group. None as an id moves the offset before all messages.

        Queues are changed one after the other; the first refusal ends the call and undoes nothing.

        Args:
            offsets: The new ids.
            expected: The ids that must be recorded now.

        Raises:
            GroupActive: A member may own one of the partitions.
            OffsetMoved: A recorded id differs from the expected one.
            InvalidArgument: A queue has too many partitions for one change.
            CoordinationLost: The offsets may or may not have been set.
        """

    async def groups(self) -> list[str]:
        """Returns the names of all groups, sorted."""

    async def services(self) -> set[str]:
        """Returns the ids of the stores for which the group may have recorded offsets."""

    async def forget(self, queues: Collection[Queue] | None = None) -> None:
        """Deletes the group with its offsets, or the offsets of some queues. Missing ones are not an error.

        Raises:
            GroupActive: The group has members.
            CoordinationLost: All, part or nothing of it was deleted. Call again.
        """
