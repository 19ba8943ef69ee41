"""Consumer groups, whose partitions the service assigns to members."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from queuey.api.values import Count, Id, one_line_text

Name = Annotated[str, Meta(max_length=1000)]
MAX_EPOCH = (1 << 53) - 1
Epoch = Annotated[int, Meta(ge=0, le=MAX_EPOCH)]


class NewMember(Struct, frozen=True):
    """The options of a member that joins.

    Attributes:
        queues: Names of queues, which need not exist yet.
        patterns: Shell patterns of queues' names: ``*``, ``?``, ``[a-z]``.
        instance: Name of a static member. When it joins again, it gets its previous partitions.
        session: Seconds without a heartbeat after which the member loses its partitions.
        revoke: Seconds in which the member must give back a partition.
        grace: Seconds for which a static member that has left keeps its partitions.
        name: Name that people read, such as host and process. It need not be unique.
    """

    queues: Annotated[list[Name], Meta(max_length=1000)] = field(default_factory=list)
    patterns: Annotated[list[Name], Meta(max_length=20)] = field(default_factory=list)
    instance: Annotated[str, one_line_text(100)] = ""
    session: Annotated[float, Meta(ge=3, le=300)] = 10
    revoke: Annotated[float, Meta(ge=0, le=3600)] = 30
    grace: Annotated[float, Meta(ge=0, le=86_400)] = 0
    name: Annotated[str, one_line_text(100)] = ""


class Joined(Struct, frozen=True, tag_field="status", tag="ok"):
    """A member that has joined.

    Attributes:
        member: Secret id of the member: a caller with it and the credential acts as the member.
        number: Public number of the member.
        session: Seconds until the member is lost without a heartbeat, counted from the sending of the request.
        wait: Max seconds until the next heartbeat.
    """

    member: str
    number: int
    session: float
    wait: float


Partitions = dict[str, dict[int, Epoch]]
"""The epochs of ownerships, by queue and partition."""


class Heartbeat(Struct, frozen=True):
    """The partitions that a member owns and gives back, with the epoch of each ownership.

    Attributes:
        leaving: The member accepts no more partitions, and gives back its partitions one by one.
        wait: Max seconds until the answer if there is nothing to do.
    """

    owned: Partitions = field(default_factory=dict)
    given_back: Partitions = field(default_factory=dict)
    leaving: bool = False
    wait: Annotated[float, Meta(ge=0, le=100)] = 0


class Taken(Struct, frozen=True):
    """A partition that the member owns now.

    Attributes:
        epoch: Identifies this ownership in heartbeats and commits.
        offset: The id of the last message handled, or None if nothing is recorded.
        came: Why the member gets it: it had no owner, the previous owner gave it back, or that owner was lost.
        note: The note of the previous owner's last commit, base64.
    """

    epoch: int
    offset: Id | None
    came: Literal["new", "given back", "lost"] = field(name="from")
    note: str | None = None


class ToGiveBack(Struct, frozen=True):
    """A partition that another member waits for. Its owner must give it back within ``within`` seconds."""

    epoch: int
    within: float


class HeartbeatAnswer(Struct, frozen=True, tag_field="status", tag="ok"):
    """The changes that a member must make.

    Attributes:
        epoch: Epoch of the plan that was followed.
        session, wait: As in :class:`Joined`.
        take: Partitions that the member owns now and did not name, by queue.
        give_back: Partitions that are planned for other members, by queue.
        lost: Partitions that the member named and does not own, by queue. It can no longer commit for them.
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
        epoch: Epoch of the ownership under which the messages were read.
        offset: The id of the last message handled.
        expected: As in :class:`~queuey.api.progress.NewOffset`; with it the offset may go back.
        note: At most 1,024 bytes, base64. Null removes the note; if absent, the note is kept.
    """

    offset: str
    epoch: Epoch | None = None
    expected: str | UnsetType | None = UNSET
    note: str | UnsetType | None = UNSET


class MemberCommits(Struct, frozen=True):
    """A member's commits, by partition.

    Attributes:
        member: Secret id of the member.
        epoch: Epoch of commits without an epoch of their own.
    """

    member: str
    commits: dict[str, PartitionCommit]
    epoch: Epoch | None = None


class GroupQuery(Struct, frozen=True, kw_only=True):
    """The requested page of a group."""

    start: Annotated[str, Meta(description="Queue to start at, inclusive")] = ""
    lag: Annotated[bool, Meta(description="1: show the lag behind each offset; a page has 16 queues, not 100")] = False


class GroupListQuery(Struct, frozen=True, kw_only=True):
    """The requested page of the list of groups."""

    start: Annotated[str, Meta(description="Group to start at, inclusive")] = ""
    limit: Annotated[int, Meta(ge=1, le=100, description="Groups")] = 100


class DeleteQuery(Struct, frozen=True, kw_only=True):
    """Options of the deletion of a group."""

    force: Annotated[bool, Meta(description="1: delete the group even if it has members")] = False


class LeaveQuery(Struct, frozen=True, kw_only=True):
    """Options of a member that leaves."""

    returns: Annotated[bool, Meta(description="1: the instance will join again within its grace")] = field(
        default=False, name="return"
    )


class MemberInfo(Struct, frozen=True):
    """The public state of a member.

    Attributes:
        name: The name that it gave, or else its instance, or else ``#`` and its number.
        since: When the member joined, in seconds since 1970.
        session: Seconds without a heartbeat after which the member loses its partitions.
        seen: Time of the last heartbeat that the service has stored, or of the join, in seconds since 1970.
    """

    number: int
    name: str
    instance: str
    state: str
    since: float
    session: float
    seen: float


class OwnedPartition(Struct, frozen=True, kw_only=True):
    """A partition in a group.

    Attributes:
        owner, target: Numbers of the member that owns it and of the member that will own it, or None.
        since: Start of the ownership, in seconds since 1970.
        came: As in :class:`Taken`.
        offset, updated: As in :class:`~queuey.api.progress.GroupOffset`.
        lag, lag_exact, lag_seconds: Number of messages after the offset, and the age of the oldest of them, or None if
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
        centre: Data centre of the group; blank if the store has no data centres.
        epoch: Epoch of the plan, milliseconds since 1970.
        members: Members that the caller may see.
        unassigned: Number of partitions without a target, in the queues that the caller may see.
        queues: A page of the group's partitions, by queue and number, of the queues that the caller may see.
        next: Start of the next page; None on the last page.
    """

    group: str
    centre: str
    epoch: int
    members: tuple[MemberInfo, ...]
    unassigned: Count
    queues: dict[str, dict[int, OwnedPartition]]
    next: str | None = None


class GroupNames(Struct, frozen=True, tag_field="status", tag="ok"):
    """Groups of an application, by name. ``next`` is the start of the next page; None on the last page."""

    groups: tuple[str, ...]
    next: str | None = None
