"""The state of a group: head, members, subscriptions and plan. Times are milliseconds since 1970."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Literal

import msgspec

from queuey.model.deadletters import matches_patterns
from queuey.model.groups import Head
from queuey.model.rights import Credential, matches

MAX_MEMBERS, MAX_PARTITIONS = 1000, 10_000
MAX_SUBSCRIPTIONS = 64
MAX_SUBSCRIPTION_BYTES, MAX_SUBSCRIPTIONS_BYTES = 16 << 10, 256 << 10
"""Max bytes of a subscription's row, and of all these rows."""
CHUNK_COUNT = 64
MAX_CHUNK_BYTES, MAX_PLAN_BYTES = 64 << 10, 1 << 20
"""Max bytes of a row of the plan, and of all these rows."""


class Subscription(msgspec.Struct, frozen=True):
    """The queues that members with the same credential subscribe to.

    Attributes:
        names, patterns: Sorted names of queues, and sorted shell patterns of names, as in Qdo.
        credential: The members' credential. The rights of a key are read from its row; those of a user come from the
            last token.
    """

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    credential: Credential

    @property
    def scope(self) -> tuple[str, ...]:
        """Patterns of the queues for which the credential may have rights, as for :func:`queuey.model.rights.matches`.

        Patterns of the subscription mean only these queues. Names were checked when the member joined.
        """
        caller = self.credential.caller
        queues = [(g.queues,) if isinstance(g.queues, str) else g.queues for g in caller.grants]
        return ("*",) if caller.names or ("*",) in queues else tuple(chain.from_iterable(queues))

    def matcher(self) -> Callable[[str], bool]:
        names, scope = frozenset(self.names), self.scope

        def is_matched(name: str) -> bool:
            within = matches_patterns(name, self.patterns) and any(matches(pattern, name) for pattern in scope)
            return name in names or within

        return is_matched


MemberState = Literal["new", "present", "leaving", "absent"]


class Member(msgspec.Struct, frozen=True):
    """A member of a group.

    Attributes:
        slot: Key of its row.
        number: Public number; each new member gets the next one.
        digest: SHA-256 of the secret part of its id, which is ``<number>-<32 hex digits>``.
        subscription: Slot of its subscription.
        instance: Name of a static member; blank for other members.
        session, revoke, grace: Timeouts in milliseconds.
        joined: When it joined.
        absent: Since when it is absent, or 0.
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
    """The member that is to own a partition, and the epoch of the plan that chose it."""

    member: int
    epoch: int


class PlannedQueue(msgspec.Struct, frozen=True):
    """A queue in the plan, with the target of each partition that is to have an owner."""

    uid: int
    name: str
    targets: dict[int, Target]


class GroupState(msgspec.Struct, frozen=True):
    """A consistent snapshot of a group.

    Attributes:
        members: Members by number.
        subscriptions: Subscriptions by slot.
        plan: Queues by uid.
    """

    head: Head = Head()
    members: dict[int, Member] = {}
    subscriptions: dict[int, Subscription] = {}
    plan: dict[int, PlannedQueue] = {}


class JoinRequest(msgspec.Struct, frozen=True):
    """A request to join a group. Its rights and names have been checked. Times are milliseconds."""

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    credential: Credential
    instance: str = ""
    session: int = 10_000
    revoke: int = 30_000
    grace: int = 0
