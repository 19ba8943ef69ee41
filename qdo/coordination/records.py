"""Values that the members of a group agree on, members, targets and offsets, and their stored form.

A stored value is a mark (``qdo1``: the number is the format), a byte that says how the rest is packed (``=`` as it is,
``~`` by zlib), and JSON. Short values stay readable in whatever shows them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import translate
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec

from qdo.errors import CoordinationIncompatible, InvalidArgument
from qdo.partitions import Partition, Queue, Subscription

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


class GroupSnapshot(NamedTuple):
    """A group at about one moment; ZooKeeper is asked part by part.

    Attributes:
        members: The live members by id.
        target: None while there is none.
        owners: The present owner of every owned partition.
        offsets: The recorded offset of each partition that has one.
    """

    members: Mapping[str, Member]
    target: TargetAssignment | None
    owners: Mapping[Partition, str]
    offsets: Mapping[Partition, CommittedOffset]


MARK = b"qdo"
PLAIN, PACKED = b"=", b"~"
HEADER = len(MARK + b"1" + PLAIN)

READABLE = 400
"""Max bytes of a value that is stored as it is."""
NAME_LIMIT = 1000
"""Max characters of a group's or a member's name."""

Value = TypeVar("Value", bound=msgspec.Struct)
_encode = msgspec.json.Encoder(order="deterministic").encode


class Codec(Generic[Value]):
    """Writes and reads values of one kind.

    Args:
        what: Its name, for errors.
        kind: The class.
        form: The number of the format.
    """

    def __init__(self, what: str, kind: type[Value], form: bytes) -> None:
        self._what = what
        self._decode = msgspec.json.Decoder(kind).decode
        self._form = MARK + form
        self._plain, self._packed = self._form + PLAIN, self._form + PACKED

    def encode(self, value: msgspec.Struct) -> bytes:
        text = _encode(value)
        return self._plain + text if len(text) <= READABLE else self._packed + zlib.compress(text)

    def decode(self, data: bytes) -> Value:
        """Returns the value.

        Raises:
            CoordinationIncompatible: It has another format, or is damaged.
        """
        head, text = data[:HEADER], data[HEADER:]
        try:
            if head == self._plain:
                return self._decode(text)
            if head == self._packed:
                return self._decode(zlib.decompress(text))
        except (zlib.error, msgspec.MsgspecError) as error:
            raise self._damaged(data) from error
        if head.startswith(MARK) and head[: len(self._form)] > self._form:
            raise CoordinationIncompatible(f"a newer program than this one wrote the {self._what}: {head!r}")
        raise self._damaged(data)

    def _damaged(self, data: bytes) -> CoordinationIncompatible:
        return CoordinationIncompatible(f"the stored {self._what} cannot be read: {data[:60]!r}")


class QueuePartitions(msgspec.Struct, array_like=True, frozen=True):
    """Partitions of one queue.

    Attributes:
        steps: From each partition's number to the next, beginning at 0, because equal steps pack well.
    """

    service: str
    application: str
    name: str
    steps: list[int]


class _Offset(msgspec.Struct, frozen=True):
    """A :class:`CommittedOffset` as it is stored: one that lacks a value without a default is damaged."""

    id: str | None
    at: float
    member: str
    held: bool = False
    note: HandlingNote | None = None


_MEMBERS = Codec("member", Member, b"3")
_OFFSETS = Codec("offset", _Offset, b"1")
encode_member, decode_member = _MEMBERS.encode, _MEMBERS.decode
encode_offset = _OFFSETS.encode


def valid_name(what: str, name: str) -> str:
    """Returns a group's or a member's name.

    Raises:
        InvalidArgument: It is empty, too long, or no text that UTF-8 can express.
    """
    if not 0 < len(name) <= NAME_LIMIT:
        raise InvalidArgument(f"the name of a {what} has 1 to {NAME_LIMIT} characters, not {len(name)}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the name of a {what} cannot be written in UTF-8: {name!r}") from error
    return name


def shares(partitions: Iterable[Partition]) -> Iterator[QueuePartitions]:
    """Yields partitions queue by queue, sorted."""
    for queue, same in groupby(sorted(partitions), key=_queue_of):
        numbers = [partition.number for partition in same]
        yield QueuePartitions(*queue, [number - before for before, number in zip([0, *numbers], numbers, strict=False)])


def _queue_of(partition: Partition) -> Queue:
    return partition.queue


def unshare(stored: Iterable[QueuePartitions]) -> Iterator[Partition]:
    for each in stored:
        queue = Queue(each.service, each.application, each.name)
        for number in accumulate(each.steps):
            yield Partition(queue, number)


def by_member(owners: Mapping[Partition, str]) -> dict[str, frozenset[Partition]]:
    found: dict[str, list[Partition]] = {}
    for partition, member in owners.items():
        found.setdefault(member, []).append(partition)
    return {member: frozenset(partitions) for member, partitions in found.items()}


def decode_offset(data: bytes) -> CommittedOffset:
    stored = _OFFSETS.decode(data)
    return CommittedOffset(stored.id, stored.at, stored.member, stored.held, stored.note)
