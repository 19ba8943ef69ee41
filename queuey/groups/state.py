"""The state of a group: its head, its members, what they ask for, and the plan. Times are milliseconds since 1970."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from queuey.access import Caller
from queuey.deadletters import matches_patterns

MAX_MEMBERS, MAX_PARTITIONS = 1000, 10_000
MAX_SUBSCRIPTIONS = 64
MAX_SUBSCRIPTION, MAX_SUBSCRIPTIONS_SIZE = 16 << 10, 256 << 10
"""Max bytes of a row, and of all of them."""
CHUNKS = 64
MAX_CHUNK, MAX_PLAN = 64 << 10, 1 << 20
"""Max bytes of a row of the plan, and of all of them."""


class Head(msgspec.Struct, frozen=True):
    """What each change of a group's state writes anew.

    Attributes:
        version: Token; 0: there is no group yet.
        epoch: Epoch of the plan.
        born: First epoch of the group.
        due: When the next plan is due, if one is.
        busy: Number of plans that followed each other closely.
        last_member: The highest number of a member.
        hour, hour_member: Beginning of the hour in which joins are counted, and the highest number at that time.
        centre: Data centre of the group; blank on stores that have none.
        moved: When it was moved there; 0: never.
    """

    version: int = 0
    epoch: int = 0
    born: int = 0
    due: int | None = None
    busy: int = 0
    last_member: int = 0
    hour: int = 0
    hour_member: int = 0
    centre: str = ""
    moved: int = 0


RowKind = Literal[0, 1, 2]
SUBSCRIPTION, MEMBER, CHUNK = 0, 1, 2


class GroupRow(msgspec.Struct, frozen=True):
    """A row of a group's state, which stores do not interpret.

    Attributes:
        kind: Subscription, member or chunk of the plan.
        key: Its slot.
        body: Blank: the slot is free.
    """

    kind: int
    key: int
    body: bytes


class StoredGroup(msgspec.Struct, frozen=True):
    head: Head
    rows: tuple[GroupRow, ...] = ()


class Credential(msgspec.Struct, frozen=True):
    """The credential with which a member joined.

    Attributes:
        id: Digest of its key, or the name of its user; what joined is compared with what asks later.
        caller: Its rights at that time.
    """

    id: bytes
    caller: Caller


class Subscription(msgspec.Struct, frozen=True):
    """What members with the same credential ask for.

    Attributes:
        names, patterns: Sorted names of queues, and patterns of them. Patterns are shell patterns, as Qdo's.
        credential: Theirs. A key's rights are read from its row, a user's are those of the last token.
    """

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    credential: Credential

    def matcher(self) -> Callable[[str], bool]:
        """Returns what decides whether it asks for the queue of a name."""
        names = frozenset(self.names)
        return lambda name: name in names or matches_patterns(name, self.patterns)


MemberState = Literal["new", "present", "leaving", "absent"]


class Member(msgspec.Struct, frozen=True):
    """A member.

    Attributes:
        slot: Key of its row.
        number: Public; counted up in the head.
        digest: SHA-256 of the secret part of its id, which is ``<number>-<32 hex digits>``.
        subscription: Slot of what it asks for.
        instance: Name of a static member; blank: it has none.
        session, revoke, grace: Milliseconds.
        joined: When.
        absent: Since when it is absent; 0: it is not.
    """

    slot: int
    number: int
    digest: bytes
    subscription: int
    instance: str
    session: int
    revoke: int
    grace: int
    joined: int
    state: MemberState = "new"
    absent: int = 0


class Target(msgspec.Struct, frozen=True):
    """The member that is to own a partition, and the epoch since which that is so."""

    member: int
    epoch: int


class PlannedQueue(msgspec.Struct, frozen=True):
    """A queue in the plan. ``targets`` has each partition that is to have an owner."""

    uid: int
    name: str
    targets: dict[int, Target]


class GroupState(msgspec.Struct, frozen=True):
    """A group as one transaction left it.

    Attributes:
        members: By number.
        subscriptions: By slot.
        plan: By uid of the queue.
    """

    head: Head = Head()
    members: dict[int, Member] = {}
    subscriptions: dict[int, Subscription] = {}
    plan: dict[int, PlannedQueue] = {}


class GroupChange(msgspec.Struct, frozen=True):
    """What a transaction writes: the new head, its version left to the store, and the rows that change."""

    head: Head
    rows: tuple[GroupRow, ...]


class JoinRequest(msgspec.Struct, frozen=True):
    """What a caller joins with; its rights and the form of names are checked. Times are milliseconds."""

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    credential: Credential
    instance: str = ""
    session: int = 10_000
    revoke: int = 30_000
    grace: int = 0
