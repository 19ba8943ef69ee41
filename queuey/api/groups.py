"""Consumer groups whose partitions the service divides among members."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from queuey.api.values import Count, Id, line

Name = Annotated[str, Meta(max_length=1000)]
MAX_EPOCH = (1 << 53) - 1
Epoch = Annotated[int, Meta(ge=0, le=MAX_EPOCH)]


class NewMember(Struct, frozen=True):
    """What a member joins with.

    Attributes:
        queues: Names of queues, which need not exist yet.
        patterns: Shell patterns of queues' names: ``*``, ``?``, ``[a-z]``.
        instance: Name of a static member: when it joins again, it gets the partitions that it had.
        session: Seconds without a heartbeat after which the member has lost its partitions.
        revoke: Seconds in which it gives partitions back.
        grace: Seconds for which an instance that is away keeps its partitions.
    """

    queues: Annotated[list[Name], Meta(max_length=1000)] = field(default_factory=list)
    patterns: Annotated[list[Name], Meta(max_length=20)] = field(default_factory=list)
    instance: Annotated[str, line(100)] = ""
    session: Annotated[float, Meta(ge=3, le=300)] = 10
    revoke: Annotated[float, Meta(ge=0, le=3600)] = 30
    grace: Annotated[float, Meta(ge=0, le=86_400)] = 0


class Joined(Struct, frozen=True, tag_field="status", tag="ok"):
    """A member that has joined.

    Attributes:
        member: Its id, a secret: with it and the credential a caller is the member.
        number: Its public number.
        session: Seconds until it is lost without a heartbeat, from the moment at which the request was sent.
        wait: Seconds after which the next heartbeat is to be sent at the latest.
    """

    member: str
    number: int
    session: float
    wait: float


Partitions = dict[str, dict[int, Epoch]]
"""By queue and partition the epoch of the ownership."""


class Heartbeat(Struct, frozen=True):
    """What a member owns, and what it gives back: by queue and partition the epoch of its ownership.

    Attributes:
        leaving: It wants no partitions any more, and gives back one by one what it has.
        wait: Seconds that the answer may take if there is nothing to do.
    """

    owned: Partitions = field(default_factory=dict)
    given_back: Partitions = field(default_factory=dict)
    leaving: bool = False
    wait: Annotated[float, Meta(ge=0, le=100)] = 0


class Taken(Struct, frozen=True):
    """A partition that the member owns now.

    Attributes:
        epoch: Names this ownership in heartbeats and commits.
        offset: The id of the last message handled, or None if nothing is recorded.
        came: How it came: nobody had it, the owner before gave it back, or was lost.
        note: What the owner before noted with its last commit, base64.
    """

    epoch: int
    offset: Id | None
    came: Literal["new", "given back", "lost"] = field(name="from")
    note: str | None = None


class ToGiveBack(Struct, frozen=True):
    """A partition that another member waits for: it is to be given back within ``within`` seconds, done or not."""

    epoch: int
    within: float


class HeartbeatAnswer(Struct, frozen=True, tag_field="status", tag="ok"):
    """What a member has to do.

    Attributes:
        epoch: Epoch of the plan that was followed.
        session, wait: As of :class:`Joined`.
        take: What it owns and did not name, by queue and partition.
        give_back: What is planned for others.
        lost: What it named and does not own; nothing more can be recorded for it.
    """

    epoch: int
    session: float
    wait: float
    take: dict[str, dict[int, Taken]] = field(default_factory=dict)
    give_back: dict[str, dict[int, ToGiveBack]] = field(default_factory=dict)
    lost: dict[str, list[int]] = field(default_factory=dict)

    @property
    def has_work(self) -> bool:
        return bool(self.take or self.give_back or self.lost)


class PartitionCommit(Struct, frozen=True):
    """A commit of one partition.

    Attributes:
        epoch: That under which its messages were read.
        offset: The id of the last message handled.
        expected: As of :class:`~queuey.api.progress.NewOffset`; with it the offset may go back.
        note: At most 1,024 bytes, base64; null removes the note, absent keeps it.
    """

    offset: str
    epoch: Epoch | None = None
    expected: str | UnsetType | None = UNSET
    note: str | UnsetType | None = UNSET


class MemberCommits(Struct, frozen=True):
    """A member's commits, by partition.

    Attributes:
        member: Its id.
        epoch: Epoch of commits without one.
    """

    member: str
    commits: dict[str, PartitionCommit]
    epoch: Epoch | None = None


class GroupQuery(Struct, frozen=True, kw_only=True):
    """The page of a group that is asked for."""

    start: Annotated[str, Meta(description="Queue to start at, inclusive")] = ""
    lag: Annotated[bool, Meta(description="1: with the lag behind each offset; a page has 16 queues, not 100")] = False


class GroupListQuery(Struct, frozen=True, kw_only=True):
    """The page of the list of groups that is asked for."""

    start: Annotated[str, Meta(description="Group to start at, inclusive")] = ""
    limit: Annotated[int, Meta(ge=1, le=100, description="Groups")] = 100


class LeaveQuery(Struct, frozen=True, kw_only=True):
    """The way in which a member leaves."""

    returns: Annotated[bool, Meta(description="1: its instance comes back within its grace")] = field(
        default=False, name="return"
    )


class MemberInfo(Struct, frozen=True):
    """A member, as others see it.

    Attributes:
        since: When it joined, in seconds since 1970.
        session: Seconds without a heartbeat after which it has lost its partitions.
        seen: When its last heartbeat came that the service has stored, or when it joined, in seconds since 1970; null
            from a service of 0.1.0.
    """

    number: int
    instance: str
    state: str
    since: float
    session: float
    seen: float | None = None


class OwnedPartition(Struct, frozen=True, kw_only=True):
    """A partition in a group.

    Attributes:
        owner, target: Numbers of the member that owns it and of the one that is to own it, or None.
        since: Since when it has its owner (seconds since 1970).
        came: As of :class:`Taken`.
        offset, updated: As of :class:`~queuey.api.progress.GroupOffset`.
        lag, lag_exact, lag_seconds: Messages after the offset, and the age of the oldest of them, or None if that was
            not requested.
    """

    owner: int | None
    since: float | None
    target: int | None
    came: Literal["new", "given back", "lost"] = field(name="from")
    offset: Id | None
    updated: float | None
    lag: Count | None = None
    lag_exact: bool | None = None
    lag_seconds: float | None = None


class GroupInfo(Struct, frozen=True, kw_only=True, tag_field="status", tag="ok"):
    """A group.

    Attributes:
        centre: Its data centre; blank: the store has none.
        epoch: Epoch of the plan, milliseconds since 1970.
        hidden_queues: Number of queues that the caller may not see.
        unassigned: Number of partitions that have no target.
        queues: A page of them, by name and partition.
        next: Begin of the next page, or None after the last.
    """

    group: str
    centre: str
    epoch: int
    members: tuple[MemberInfo, ...]
    hidden_queues: Count
    unassigned: Count
    queues: dict[str, dict[int, OwnedPartition]]
    next: str | None = None


class GroupNames(Struct, frozen=True, tag_field="status", tag="ok"):
    """Groups of an application, by name. ``next``: begin of the next page, or None after the last."""

    groups: tuple[str, ...]
    next: str | None = None
