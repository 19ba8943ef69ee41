"""Values shared by the members of a group (members, targets, offsets) and their stored form.

A stored value is a mark (``qdo1``: the digit is the format), a byte for the packing (``=`` for plain, ``~`` for zlib),
and JSON. Short values stay plain, so that generic tools can show them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import translate
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar

import msgspec

from qdo.errors import CoordinationIncompatible, InvalidArgument
from qdo.partitions import Partition, Queue, Subscription

Event = Literal["changed", "suspended", "connected", "lost"]
"""``changed``: something that was read from the session may have changed: its assignment, the leader, the members, the
target, or the owner of a partition that could not be claimed."""
Listen = Callable[[Event], None]


class Visibility(msgspec.Struct, frozen=True):
    """The queues that a member's credential may see.

    Attributes:
        patterns: Patterns of queue names; ``*`` stands for any text.
        others: Partition counts of the queues that the member subscribes to and the leader may not see, by queue name.
            0 means that the queue does not exist.
        hidden: Queues that match the patterns, but that the member may not read.
    """

    patterns: tuple[str, ...] = ()
    others: Mapping[str, int] = {}
    hidden: frozenset[str] = frozenset()

    def includes(self, name: str) -> bool:
        return name not in self.hidden and _make_matcher(self.patterns)(name)


@lru_cache(256)
def _make_matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Returns a predicate for names that match any pattern; its time does not grow with the wildcards."""
    names = frozenset(p for p in patterns if "*" not in p)
    texts = (p.replace("[", "[[]").replace("?", "[?]") for p in patterns if "*" in p)
    match = re.compile("|".join(map(translate, texts)) or "(?!)").match
    return lambda name: name in names or match(name) is not None


class Member(msgspec.Struct, frozen=True):
    """A member as other members see it.

    Attributes:
        id: The member's name, unique in the group.
        wants: The queues that the member subscribes to.
        static: Whether the member chose its name and keeps its partitions for a while when it is gone.
        since: When the member joined, in seconds since 1970.
        leaving: Whether the member only finishes its running messages and must get no partitions.
        sight: The queues that the member may see.
    """

    id: str
    wants: Subscription = Subscription()
    static: bool = False
    since: float = 0.0
    leaving: bool = False
    sight: Visibility = Visibility(("*",))


class TargetAssignment(msgspec.Struct, frozen=True):
    """The planned owner of each partition.

    Attributes:
        owners: The member for each partition.
        absent: Static members that are gone but keep their partitions, and since when (seconds since 1970).
        static: The static members at the time of the computation. Once a member is gone, only this shows that it was
            static.
    """

    owners: Mapping[Partition, str] = {}
    absent: Mapping[str, float] = {}
    static: frozenset[str] = frozenset()


class Versioned(NamedTuple):
    """A target and its version; ``None`` and -1 if the group has no target yet."""

    target: TargetAssignment | None
    version: int


class HandlingNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """Messages that an owner began in a partition that is watched, because an earlier owner was lost.

    Attributes:
        until: The id of the last begun message; the first one follows the recorded offset.
        lost: The number of lost sessions if the owner's session is lost, too; 0 if the owner has handed the messages
            back.
        last: Whether the owner handled one message, and no other at the same time.
    """

    until: str
    lost: int = 1
    last: bool = False


class CommittedOffset(msgspec.Struct, frozen=True):
    """How far a partition was processed.

    Attributes:
        id: The id of the last processed message, or the point before which everything counts as processed; None if
            nothing was recorded yet.
        at: When the offset was recorded, in seconds since 1970.
        member: The member that recorded the offset; empty for a program outside the group.
        held: Whether an owner has the partition. In the answer to a claim: whether the previous owner lost it instead
            of releasing it.
        note: The messages that an owner had begun or handed back; None if the partition is not watched, unless it was
            not released.
    """

    id: str | None = None
    at: float = 0.0
    member: str = ""
    held: bool = False
    note: HandlingNote | None = None


class SessionOffset(msgspec.Struct, frozen=True):
    """The offset of a partition that a session claimed or committed since. Pass the latest one of each partition.

    Attributes:
        offset: The recorded offset; after a claim, the offset as it was before the claim.
        version: The offset's version; it changes with each claim and each commit.
    """

    partition: Partition
    offset: CommittedOffset
    version: int


class GroupSnapshot(NamedTuple):
    """A group at about one moment; from ZooKeeper, the parts are read one after the other.

    Attributes:
        members: The live members by id.
        target: The target, or None if the group has none.
        owners: The present owner of every owned partition.
        offsets: The recorded offset of each partition that has one.
    """

    members: Mapping[str, Member]
    target: TargetAssignment | None
    owners: Mapping[Partition, str]
    offsets: Mapping[Partition, CommittedOffset]


MARK = b"qdo"
PLAIN, PACKED = b"=", b"~"
HEADER_LENGTH = len(MARK + b"1" + PLAIN)

MAX_PLAIN_BYTES = 400
"""Max bytes of a value that is stored without compression."""
MAX_NAME_LENGTH = 1000

Value = TypeVar("Value", bound=msgspec.Struct)
_encode = msgspec.json.Encoder(order="deterministic").encode


class Codec(Generic[Value]):
    """Encodes and decodes values of one class.

    Args:
        what: The name of the kind of value, for errors.
        kind: The class.
        form: The digit of the format.
    """

    def __init__(self, what: str, kind: type[Value], form: bytes) -> None:
        self._what = what
        self._decode = msgspec.json.Decoder(kind).decode
        self._form = MARK + form
        self._plain, self._packed = self._form + PLAIN, self._form + PACKED

    def encode(self, value: msgspec.Struct) -> bytes:
        text = _encode(value)
        return self._plain + text if len(text) <= MAX_PLAIN_BYTES else self._packed + zlib.compress(text)

    def decode(self, data: bytes) -> Value:
        """Returns the value.

        Raises:
            CoordinationIncompatible: The data has another format, or is damaged.
        """
        head, text = data[:HEADER_LENGTH], data[HEADER_LENGTH:]
        try:
            if head == self._plain:
                return self._decode(text)
            if head == self._packed:
                return self._decode(zlib.decompress(text))
        except (zlib.error, msgspec.MsgspecError) as error:
            raise self._make_error(data) from error
        if head.startswith(MARK) and head[: len(self._form)] > self._form:
            raise CoordinationIncompatible(f"a newer program than this one wrote the {self._what}: {head!r}")
        raise self._make_error(data)

    def _make_error(self, data: bytes) -> CoordinationIncompatible:
        return CoordinationIncompatible(f"the stored {self._what} cannot be read: {data[:60]!r}")


class QueuePartitions(msgspec.Struct, array_like=True, frozen=True):
    """Partitions of one queue.

    Attributes:
        steps: The differences between successive partition numbers, starting at 0: equal steps compress well.
    """

    service: str
    application: str
    name: str
    steps: list[Annotated[int, msgspec.Meta(ge=1)]]


class _Offset(msgspec.Struct, frozen=True):
    """A :class:`CommittedOffset` as stored. Data that lacks a field without a default is damaged."""

    id: str | None
    at: float
    member: str
    held: bool = False
    note: HandlingNote | None = None


_MEMBERS = Codec("member", Member, b"3")
_OFFSETS = Codec("offset", _Offset, b"1")
encode_member, decode_member = _MEMBERS.encode, _MEMBERS.decode
encode_offset = _OFFSETS.encode


def check_name(what: str, name: str) -> str:
    """Returns a group's or a member's name.

    Raises:
        InvalidArgument: The name is empty, too long, or cannot be encoded in UTF-8.
    """
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise InvalidArgument(f"the name of a {what} must have 1 to {MAX_NAME_LENGTH} characters, not {len(name)}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"the name of a {what} cannot be encoded in UTF-8: {name!r}") from error
    return name


def pack_partitions(partitions: Iterable[Partition]) -> Iterator[QueuePartitions]:
    for queue, same in groupby(sorted(partitions), key=_queue_of):
        numbers = [partition.number for partition in same]
        yield QueuePartitions(*queue, [number - before for before, number in zip([0, *numbers], numbers, strict=False)])


def _queue_of(partition: Partition) -> Queue:
    return partition.queue


def unpack_partitions(stored: Iterable[QueuePartitions]) -> Iterator[Partition]:
    for share in stored:
        queue = Queue(share.service, share.application, share.name)
        for number in accumulate(share.steps):
            yield Partition(queue, number)


def group_by_member(owners: Mapping[Partition, str]) -> dict[str, frozenset[Partition]]:
    partitions_by_member: dict[str, list[Partition]] = {}
    for partition, member in owners.items():
        partitions_by_member.setdefault(member, []).append(partition)
    return {member: frozenset(partitions) for member, partitions in partitions_by_member.items()}


def decode_offset(data: bytes) -> CommittedOffset:
    stored = _OFFSETS.decode(data)
    return CommittedOffset(stored.id, stored.at, stored.member, stored.held, stored.note)
