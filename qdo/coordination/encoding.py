"""What members, targets and offsets look like where they are stored.

A value is a mark (``qdo1``: the number is the format), a byte that says how the rest is packed (``=`` as it is, ``~``
by zlib), and JSON. Short values stay readable in whatever shows them; a target of 10,000 partitions and 1,000 members
packs into some 30 to 200 kB, well below the 1 MB of a node in ZooKeeper.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from qdo.coordination import Member, Offset, Target
from qdo.errors import CoordinationIncompatible, InvalidArgument
from qdo.partitions import Partition, Queue

MARK = b"qdo"
FORMAT = b"1"
PLAIN, PACKED = b"=", b"~"
HEADER = len(MARK + FORMAT + PLAIN)

READABLE = 400
"""Bytes up to which a value is stored as it is."""
NAME_LIMIT = 1000
"""Characters that a group's or a member's name may have."""


class _Queue(msgspec.Struct, array_like=True, frozen=True):
    """A queue with its number of partitions."""

    host: str
    application: str
    name: str
    partitions: int


class _Member(msgspec.Struct, frozen=True):
    id: str
    queues: list[_Queue]
    static: bool
    since: float


class _Shares(msgspec.Struct, array_like=True, frozen=True):
    """Who owns the partitions of one queue.

    Attributes:
        steps: From each partition's number to the next, beginning at 0, because equal steps pack well.
        members: For each of them its owner, as an index.
    """

    host: str
    application: str
    name: str
    steps: list[int]
    members: list[int]


class _Target(msgspec.Struct, frozen=True):
    members: list[str]
    owners: list[_Shares]
    absent: dict[str, float]
    static: list[str]


class _Offset(msgspec.Struct, frozen=True):
    id: str | None
    at: float
    member: str


Stored = TypeVar("Stored", _Member, _Target, _Offset)


def valid_name(what: str, name: str) -> str:
    """Returns a group's or a member's name.

    Args:
        what: What it names, for the error.
        name: Any text but the empty one.

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
    """Returns what is stored for a member."""
    queues = [_Queue(*queue, count) for queue, count in sorted(member.queues.items())]
    return _pack(_Member(member.id, queues, member.static, member.since))


def decode_member(data: bytes) -> Member:
    """Returns the member.

    Raises:
        CoordinationIncompatible: A newer program wrote it, or it is none.
    """
    stored = _unpack("member", data, _Member)
    queues = {Queue(each.host, each.application, each.name): each.partitions for each in stored.queues}
    return Member(stored.id, queues, stored.static, stored.since)


def encode_target(target: Target) -> bytes:
    """Returns what is stored for a target."""
    members = sorted(set(target.owners.values()))
    index = {member: place for place, member in enumerate(members)}
    return _pack(
        _Target(
            members, list(_shares(target.owners, index)), dict(sorted(target.absent.items())), sorted(target.static)
        )
    )


def _shares(owners: Mapping[Partition, str], index: Mapping[str, int]) -> Iterable[_Shares]:
    queues: dict[Queue, list[int]] = {}
    for partition in sorted(owners):
        queues.setdefault(partition.queue, []).append(partition.number)
    for queue, numbers in queues.items():
        steps = [number - before for before, number in zip([0, *numbers], numbers, strict=False)]
        yield _Shares(*queue, steps, [index[owners[Partition(queue, number)]] for number in numbers])


def decode_target(data: bytes) -> Target:
    """Returns the target.

    Raises:
        CoordinationIncompatible: A newer program wrote it, or it is none.
    """
    stored = _unpack("target", data, _Target)
    owners: dict[Partition, str] = {}
    try:
        for shares in stored.owners:
            queue, number = Queue(shares.host, shares.application, shares.name), 0
            for step, member in zip(shares.steps, shares.members, strict=True):
                number += step
                owners[Partition(queue, number)] = stored.members[member]
    except (IndexError, ValueError) as error:
        raise _damaged("target", data) from error
    return Target(owners, stored.absent, frozenset(stored.static))


def encode_offset(offset: Offset) -> bytes:
    """Returns what is stored for an offset."""
    return _pack(_Offset(offset.id, offset.at, offset.member))


def decode_offset(data: bytes) -> Offset:
    """Returns the offset.

    Raises:
        CoordinationIncompatible: A newer program wrote it, or it is none.
    """
    stored = _unpack("offset", data, _Offset)
    return Offset(stored.id, stored.at, stored.member)


def _pack(stored: _Member | _Target | _Offset) -> bytes:
    text = msgspec.json.encode(stored)
    if len(text) <= READABLE:
        return MARK + FORMAT + PLAIN + text
    return MARK + FORMAT + PACKED + zlib.compress(text)


def _unpack(what: str, data: bytes, kind: type[Stored]) -> Stored:
    head, packing = data[: HEADER - 1], data[HEADER - 1 : HEADER]
    if head.startswith(MARK) and head != MARK + FORMAT:
        raise CoordinationIncompatible(f"a newer program than this one wrote the {what}: {data[:HEADER]!r}")
    if head != MARK + FORMAT or packing not in {PLAIN, PACKED}:
        raise _damaged(what, data)
    try:
        text = data[HEADER:] if packing == PLAIN else zlib.decompress(data[HEADER:])
        return msgspec.json.decode(text, type=kind)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise _damaged(what, data) from error


def _damaged(what: str, data: bytes) -> CoordinationIncompatible:
    return CoordinationIncompatible(f"what is stored as a {what} is none: {data[:60]!r}")
