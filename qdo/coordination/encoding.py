"""What members, targets and offsets look like where they are stored.

A value is a mark (``qdo1``: the number is the format), a byte that says how the rest is packed (``=`` as it is, ``~``
by zlib), and JSON. Short values stay readable in whatever shows them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, groupby
from typing import TypeVar

import msgspec

from qdo.coordination import Member, Offset, Target
from qdo.errors import CoordinationIncompatible, InvalidArgument
from qdo.partitions import Partition, Queue
from qdo.subscriptions import Subscription

MARK = b"qdo"
FORMAT = b"1"
MEMBER_FORMAT = b"2"
"""Since members say what they want, and no longer what they found."""
PLAIN, PACKED = b"=", b"~"
HEADER = len(MARK + FORMAT + PLAIN)

READABLE = 400
"""Bytes up to which a value is stored as it is."""
NAME_LIMIT = 1000
"""Characters that a group's or a member's name may have."""


class _Member(msgspec.Struct, frozen=True):
    id: str
    names: list[str]
    patterns: list[str]
    host: str
    application: str
    static: bool
    since: float
    leaving: bool = False


class Shares(msgspec.Struct, array_like=True, frozen=True):
    """Partitions of one queue.

    Attributes:
        steps: From each partition's number to the next, beginning at 0, because equal steps pack well.
    """

    host: str
    application: str
    name: str
    steps: list[int]


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


Stored = TypeVar("Stored", bound=msgspec.Struct)


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
    wants = member.wants
    stored = _Member(
        member.id,
        sorted(wants.names),
        list(wants.patterns),
        wants.host,
        wants.application,
        member.static,
        member.since,
        member.leaving,
    )
    return pack(stored, MEMBER_FORMAT)


def decode_member(data: bytes) -> Member:
    """Returns the member.

    Raises:
        CoordinationIncompatible: A newer program wrote it, or it is none.
    """
    stored = unpack("member", data, _Member, MEMBER_FORMAT)
    wants = Subscription(frozenset(stored.names), tuple(stored.patterns), stored.host, stored.application)
    return Member(stored.id, wants, stored.static, stored.since, stored.leaving)


def shares(partitions: Iterable[Partition]) -> Iterator[Shares]:
    """Yields partitions queue by queue, sorted."""
    for queue, same in groupby(sorted(partitions), key=_queue_of):
        numbers = [partition.number for partition in same]
        yield Shares(*queue, [number - before for before, number in zip([0, *numbers], numbers, strict=False)])


def _queue_of(partition: Partition) -> Queue:
    return partition.queue


def unshare(stored: Iterable[Shares]) -> Iterator[Partition]:
    """Yields the partitions that :func:`shares` was given."""
    for each in stored:
        queue = Queue(each.host, each.application, each.name)
        for number in accumulate(each.steps):
            yield Partition(queue, number)


def encode_target(target: Target) -> bytes:
    """Returns what is stored for a target."""
    members = sorted(set(target.owners.values()))
    index = {member: place for place, member in enumerate(members)}
    return pack(
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
    stored = unpack("target", data, _Target)
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
    return pack(_Offset(offset.id, offset.at, offset.member))


def decode_offset(data: bytes) -> Offset:
    """Returns the offset.

    Raises:
        CoordinationIncompatible: A newer program wrote it, or it is none.
    """
    stored = unpack("offset", data, _Offset)
    return Offset(stored.id, stored.at, stored.member)


def pack(stored: msgspec.Struct, form: bytes = FORMAT) -> bytes:
    """Returns what is stored for a value, in a format."""
    text = msgspec.json.encode(stored)
    if len(text) <= READABLE:
        return MARK + form + PLAIN + text
    return MARK + form + PACKED + zlib.compress(text)


def unpack(what: str, data: bytes, kind: type[Stored], form: bytes = FORMAT) -> Stored:
    """Returns what :func:`pack` was given.

    Raises:
        CoordinationIncompatible: It has another format, or it is none.
    """
    head, packing = data[: HEADER - 1], data[HEADER - 1 : HEADER]
    if head.startswith(MARK) and head != MARK + form and len(head) == len(MARK + form):
        age = "a newer" if head > MARK + form else "an older"
        raise CoordinationIncompatible(f"{age} program than this one wrote the {what}: {data[:HEADER]!r}")
    if head != MARK + form or packing not in {PLAIN, PACKED}:
        raise _damaged(what, data)
    try:
        text = data[HEADER:] if packing == PLAIN else zlib.decompress(data[HEADER:])
        return msgspec.json.decode(text, type=kind)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise _damaged(what, data) from error


def _damaged(what: str, data: bytes) -> CoordinationIncompatible:
    return CoordinationIncompatible(f"what is stored as a {what} is none: {data[:60]!r}")
