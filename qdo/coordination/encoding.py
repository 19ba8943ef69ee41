"""The stored form of members, assignments and offsets.

A value is a mark (``qdo1``: the number is the format), a byte that says how the rest is packed (``=`` as it is, ``~``
by zlib), and JSON. Short values stay readable in whatever shows them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, groupby
from typing import Generic, TypeVar

import msgspec

from qdo.coordination.records import CommittedOffset, HandlingNote, Member
from qdo.errors import CoordinationIncompatible, InvalidArgument
from qdo.partitions import Partition, Queue

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
