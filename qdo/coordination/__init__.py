"""The coordination contract: a group's members, the owners of partitions, and how far each partition was processed.

A group's members share out partitions. What they agree on lies with a coordination service::

    members   each live member and the queues it wants      gone when its session ends
    leader    the member that sets the target               gone when its session ends
    target    the owner that each partition is to have      set at the version that was read, all of it or nothing
    owners    the owner of each partition                   gone when the owner's session ends
    offsets   how far each partition was processed          kept; each with a version

**Fencing.** Taking a partition and raising its offset's version is one transaction, and a commit is another: it
demands that the partition is still owned by the very session and that the offset has the version of the taking, or of
the last commit since. So a member that was stopped for longer than its session never commits afterwards, whether or not
another member has taken the partition.

**States of a session**::

    connected ──(no answer from the service)──► suspended ──(answers again, in time)──► connected
        │                                           │
        └─────────────(it has ended)────────────────┴──► lost (final)

While it is suspended, it is uncertain what it still owns: take no new work. When it is lost, abandon everything; the
member may join again under a new session.

**Names** of groups and members are any text of 1 to 1,000 characters that UTF-8 can express; others are refused with
``InvalidArgument``. A group is known from the first join or the first offset on until it is forgotten: reading it does
not make it known.

Every method is a coroutine of one event loop; an implementation does its waiting elsewhere.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import translate
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from qdo.partitions import Partition, Queue
from qdo.subscriptions import Subscription

Event = Literal["changed", "suspended", "connected", "lost"]
"""``changed``: something that was read from the session may have changed: its assignment, the leader, the members, the
target, or the owner of a partition that could not be taken."""
Listen = Callable[[Event], None]


class Sight(msgspec.Struct, frozen=True):
    """The queues that a member's credential may see.

    Attributes:
        patterns: Of their names; ``*`` stands for any text.
        others: Queues that the member wants and found, with their partitions, as far as the leader may not see them. 0:
            there is no queue of this name.
        hidden: Queues that match the patterns, but that the member may not read.
    """

    patterns: tuple[str, ...] = ()
    others: Mapping[str, int] = {}
    hidden: frozenset[str] = frozenset()

    def covers(self, name: str) -> bool:
        """Returns whether the member may see a queue of this name."""
        return name not in self.hidden and _matcher(self.patterns)(name)


@lru_cache(256)
def _matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Returns what matches names with any of the patterns, in time that does not grow with the number of wildcards."""
    names = frozenset(each for each in patterns if "*" not in each)
    texts = (each.replace("[", "[[]").replace("?", "[?]") for each in patterns if "*" in each)
    match = re.compile("|".join(map(translate, texts)) or "(?!)").match
    return lambda name: name in names or match(name) is not None


class Member(msgspec.Struct, frozen=True):
    """A member as other members see it.

    Attributes:
        id: Its name, unique in the group.
        wants: The queues that it subscribes to.
        static: It chose its name and keeps its partitions for a while when it is gone.
        since: When it joined, seconds since 1970.
        leaving: It finishes its running messages, and must get no partitions.
        sight: What it may see; None: it is an older program, which does not say it.
    """

    id: str
    wants: Subscription = Subscription()
    static: bool = False
    since: float = 0.0
    leaving: bool = False
    sight: Sight | None = None


class TargetAssignment(msgspec.Struct, frozen=True):
    """The owner that each partition is to have.

    Attributes:
        owners: The member for each partition.
        absent: Static members that are gone but keep their partitions, with the instant since when (seconds
            since 1970).
        static: The static members that were there when it was computed: once one is gone, only this says that it was
            static.
    """

    owners: Mapping[Partition, str] = {}
    absent: Mapping[str, float] = {}
    static: frozenset[str] = frozenset()


class Versioned(NamedTuple):
    """A target and its version; ``None`` and -1 while the group has none."""

    target: TargetAssignment | None
    version: int


class HandlingNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """Messages that an owner began in a partition that is watched, because an owner was lost before.

    Attributes:
        until: The last of them; the first one follows the recorded offset.
        lost: How many sessions are lost, if the owner's is, too; 0: the owner has handed them back.
        last: The owner handled one message, and no other at the same time.
    """

    until: str
    lost: int = 1
    last: bool = False


class CommittedOffset(msgspec.Struct, frozen=True):
    """How far a partition was processed.

    Attributes:
        id: Of the last message that was processed, or the point before which everything counts as processed; None:
            nothing was recorded yet.
        at: When it was recorded, seconds since 1970.
        member: The member that recorded it; empty: a program outside the group.
        held: An owner has it. When it is taken: the owner before lost it, and did not release it.
        note: What an owner had begun, or handed back; None: the partition is not watched, unless it was not released.
    """

    id: str | None = None
    at: float = 0.0
    member: str = ""
    held: bool = False
    note: HandlingNote | None = None


class OwnedOffset(NamedTuple):
    """A partition that a session took, or committed since. Hand in the latest for each partition.

    Attributes:
        partition: The partition.
        offset: As it is recorded now; of a partition that was just taken: as it was before.
        version: Of the offset; it changes with each taking and each commit.
    """

    partition: Partition
    offset: CommittedOffset
    version: int


class Session(abc.ABC):
    """A member's session in a group, until it leaves or is lost."""

    @property
    @abc.abstractmethod
    def state(self) -> Literal["connected", "suspended", "lost"]:
        """See the module. A session that has left is lost."""

    @abc.abstractmethod
    async def assignment(self) -> frozenset[Partition]:
        """Returns what the target gives to this member. A ``changed`` event follows the next change.

        Costs the same however many members and partitions the group has.

        Raises:
            CoordinationLost, SessionLost, CoordinationIncompatible
        """

    @abc.abstractmethod
    async def lead(self) -> bool:
        """Returns whether this member sets the target. If no member does, it may start to, unless it has retired.

        At most one live session leads. A ``changed`` event follows when the leader may have changed: only after the
        present one retires or is gone, or a member joins.

        Raises:
            CoordinationLost, SessionLost
        """

    @abc.abstractmethod
    async def leader(self) -> Member | None:
        """Returns the member that leads, None if none does. A ``changed`` event follows when that or its sight changes.

        Costs the same however many members the group has, on services for many machines.

        Raises:
            CoordinationLost, SessionLost, CoordinationIncompatible
        """

    @abc.abstractmethod
    async def set_sight(self, sight: Sight) -> None:
        """Changes what others see of this member.

        Raises:
            CoordinationLost: It was changed or not.
            SessionLost
        """

    @abc.abstractmethod
    async def members(self) -> dict[str, Member]:
        """Returns all live members by id, this one among them. A ``changed`` event follows the next change.

        It is for the leader: the cost grows with the number of members.

        Raises:
            CoordinationLost, SessionLost, CoordinationIncompatible
        """

    @abc.abstractmethod
    async def target(self) -> Versioned:
        """Returns the target. A ``changed`` event follows the next change.

        Raises:
            CoordinationLost, SessionLost, CoordinationIncompatible
        """

    @abc.abstractmethod
    async def set_target(self, target: TargetAssignment, version: int) -> bool:
        """Replaces the target, at one instant for all members, if it still has the version; returns whether it did.

        Raises:
            CoordinationLost: It was replaced or not; a part of it never is.
            SessionLost
        """

    @abc.abstractmethod
    async def claim(self, partitions: Iterable[Partition]) -> dict[Partition, OwnedOffset]:
        """Takes partitions, each for itself; returns those that this session owns now.

        A partition that another session owns is left out; a ``changed`` event follows when it becomes free. One that
        this session owns already is in the answer, with a new version. One whose offset cannot be understood, because a
        newer program wrote it or it is damaged, is left out and named in the log.

        Raises:
            CoordinationLost: Some may have been taken; take them again to know.
            SessionLost
        """

    @abc.abstractmethod
    async def release(self, partitions: Iterable[Partition]) -> None:
        """Gives partitions up; those that this session does not own are passed over.

        Raises:
            CoordinationLost, SessionLost
        """

    @abc.abstractmethod
    async def commit(self, offsets: Iterable[tuple[OwnedOffset, str | None]]) -> dict[Partition, OwnedOffset | None]:
        """Records the last processed id of partitions, each for itself, and the note that ``offset`` of each carries.

        Returns:
            For each what is held now, or None: it is no longer this session's, or the version is not the latest, and
            nothing was recorded for it.

        Raises:
            CoordinationLost: Each was recorded or not; take the partitions again to know.
            SessionLost: None was recorded.
        """

    @abc.abstractmethod
    async def retire(self) -> None:
        """Announces that this member is leaving and leads no more. It keeps its partitions until it goes.

        Raises:
            CoordinationLost, SessionLost
        """

    @abc.abstractmethod
    async def leave(self) -> None:
        """Gives up whatever it holds and leaves the group. Never raises; idempotent.

        No event follows; the other methods raise ``SessionLost`` from then on.
        """


class Coordinator(abc.ABC):
    """The connection of a group to its coordination service. Many members of one process may use it.

    Every method but ``open`` and ``close`` raises ``CoordinationLost`` while the service cannot be reached, before
    ``open`` and after ``close``.

    Example:
        >>> from qdo import Coordinator, open_coordinator
        >>> isinstance(open_coordinator("local:", "billing"), Coordinator)
        True

    Attributes:
        group: Its name.
        session_timeout: Seconds after which the service takes a member that it did not hear of for gone.
        outlast: Seconds for which members that join from now on stay members while this program cannot run, because
            something holds the interpreter: a helper process gives the signs of life then. A program that has ended, or
            is stopped by a signal, is not kept. 0: there is no such process.
    """

    group: str
    session_timeout: float
    outlast: float = 0.0

    @abc.abstractmethod
    async def open(self) -> None:
        """Connects. Idempotent.

        Raises:
            CoordinationLost: Not within the time allowed.
            CoordinationIncompatible
        """

    @abc.abstractmethod
    async def join(self, member: Member, listen: Listen, *, replace: bool = False) -> Session:
        """Adds a member with its own session.

        Args:
            member: The member that joins; ``since`` is set here.
            listen: Called with events, in the loop of the caller; must not raise. After ``lost`` nothing more comes.
            replace: A live member of this id is put out of the group: its session is lost, it can record nothing from
                the moment on when this one takes what it owned, which can be taken at once.

        Raises:
            MemberExists: A live member has this id, and it is not to be replaced.
            InvalidArgument: The id is no name.
            CoordinationLost
        """

    @abc.abstractmethod
    async def members(self) -> dict[str, Member]:
        """Returns all live members by id."""

    @abc.abstractmethod
    async def target(self) -> TargetAssignment | None:
        """Returns the target, None while there is none."""

    @abc.abstractmethod
    async def owners(self) -> dict[Partition, str]:
        """Returns the present owner of every owned partition."""

    @abc.abstractmethod
    async def offsets(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, CommittedOffset]:
        """Returns the recorded offsets, of all partitions or of some; those without one are left out."""

    @abc.abstractmethod
    async def set_offsets(
        self,
        offsets: Mapping[Partition, str | None],
        *,
        expected: Mapping[Partition, str | None] | None = None,
    ) -> None:
        """Moves offsets from outside, those of one queue all or none; None removes what is recorded.

        Args:
            offsets: The new ids.
            expected: What must be recorded now, for any of them.

        Raises:
            GroupActive: One of the partitions has an owner.
            OffsetMoved: Something else is recorded than expected.
            CoordinationLost: They were set or not.
        """

    @abc.abstractmethod
    async def services(self) -> set[str]:
        """Returns the ids of the stores for which the group has recorded something. It need not read the offsets."""

    @abc.abstractmethod
    async def groups(self) -> list[str]:
        """Returns the names of all groups that the service knows, sorted."""

    @abc.abstractmethod
    async def forget(self, queues: Collection[Queue] | None = None) -> None:
        """Removes the group with its offsets, or only what is kept of some queues; what is not there is passed over.

        Raises:
            GroupActive: It has members.
            CoordinationLost: It is gone, in part, or not at all; forget it again.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """Ends all sessions and the connection. Idempotent, never raises.

        Sessions that have not left get the event ``lost``.
        """
