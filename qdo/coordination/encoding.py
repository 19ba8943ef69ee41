"""The stored form of members, assignments and offsets.

A value is a mark (``qdo1``: the number is the format), a byte that says how the rest is packed (``=`` as it is, ``~``
by zlib), and JSON. Short values stay readable in whatever shows them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, groupby
from typing import TypeVar

import msgspec

from qdo.coordination.records import CommittedOffset, HandlingNote, Member
from qdo.errors import CoordinationIncompatible, InvalidArgument
from qdo.partitions import Partition, Queue

MARK = b"qdo"
FORMAT = b"1"
MEMBER_FORMAT = b"3"
"""Members reported what they found in format 1, and named the service by its address in format 2."""
PLAIN, PACKED = b"=", b"~"
HEADER = len(MARK + FORMAT + PLAIN)

READABLE = 400
"""Max bytes of a value that is stored as it is."""
NAME_LIMIT = 1000
"""Max characters of a group's or a member's name."""


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


Stored = TypeVar("Stored", bound=msgspec.Struct)

_encode = msgspec.json.Encoder(order="deterministic").encode
_MEMBER = msgspec.json.Decoder(Member)
_OFFSET = msgspec.json.Decoder(_Offset)


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


def encode_member(member: Member) -> bytes:
    return pack(member, MEMBER_FORMAT)


def decode_member(data: bytes) -> Member:
    return unpack("member", data, _MEMBER, MEMBER_FORMAT)


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


def encode_offset(offset: CommittedOffset) -> bytes:
    return pack(offset)


def decode_offset(data: bytes) -> CommittedOffset:
    stored = unpack("offset", data, _OFFSET)
    return CommittedOffset(stored.id, stored.at, stored.member, stored.held, stored.note)


def pack(stored: msgspec.Struct, form: bytes = FORMAT) -> bytes:
    text = _encode(stored)
    if len(text) <= READABLE:
        return MARK + form + PLAIN + text
    return MARK + form + PACKED + zlib.compress(text)


def unpack(what: str, data: bytes, decoder: msgspec.json.Decoder[Stored], form: bytes = FORMAT) -> Stored:
    """Returns a value that :func:`pack` was given.

    Raises:
        CoordinationIncompatible: It has another format, or it is none.
    """
    head, text = data[:HEADER], data[HEADER:]
    try:
        if head == MARK + form + PLAIN:
            return decoder.decode(text)
        if head == MARK + form + PACKED:
            return decoder.decode(zlib.decompress(text))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise _damaged(what, data) from error
    ours = MARK + form
    if data.startswith(MARK) and len(data) >= len(ours) and not data.startswith(ours):
        age = "a newer" if head > ours else "an older"
        raise CoordinationIncompatible(f"{age} program than this one wrote the {what}: {head!r}")
    raise _damaged(what, data)


def _damaged(what: str, data: bytes) -> CoordinationIncompatible:
    return CoordinationIncompatible(f"the stored {what} cannot be read: {data[:60]!r}")
