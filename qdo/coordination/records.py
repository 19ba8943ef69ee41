"""Values that the members of a group agree on: members, targets, offsets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import translate
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from qdo.partitions import Partition, Subscription

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
    """Matches names with any of the patterns, in time that does not grow with the number of wildcards."""
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
        sight: The queues that it may see; None: it is an older program, which does not say so.
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


class OwnedOffset(msgspec.Struct, frozen=True):
    """A partition that a session took, or committed since. Hand in the latest for each partition.

    Attributes:
        offset: As it is recorded now; of a partition that was just taken: as it was before.
        version: Of the offset; it changes with each taking and each commit.
    """

    partition: Partition
    offset: CommittedOffset
    version: int
