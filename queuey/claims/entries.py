"""Entries of a claim log and their encoding."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from queuey.ids import FIRST, Position

FORMAT = 1
"""Version of the encoding of entries and snapshots."""
Group = tuple[int, list[Position]]
"""When claims expire (milliseconds since 1970), and whose."""

Out = tuple[Position, str, int]
"""A message that is to become a dead letter, the queue for it, and how often it was delivered."""


CoverMade = tuple[bytes, Position, list[Position]]
"""A digest, the message of which a copy was delivered first, and copies above ``Entry.until`` that are duplicates."""


class UnknownFormat(ValueError):
    """An entry or a snapshot that this program cannot read."""


class MoveStep(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What an entry says of a move of the partition's messages to another queue.

    The messages that one entry takes are a **chunk**, named by the entry's number. Of a partition, one chunk at most is
    under way: taken, and neither moved nor returned.

    Attributes:
        move: Its number; that of a later move of the same queue is higher.
        taken: The chunk of this entry: done for consumers of this queue.
        moved: The chunk whose messages are in the target, and deleted here; 0: none.
        last: The last of them in the target.
        returned: The chunk whose messages stay here after all: they can be delivered again; 0: none.
        ended: This move takes no more of this partition.
    """

    move: int
    taken: list[Position] = []
    moved: int = 0
    last: Position = FIRST
    returned: int = 0
    ended: bool = False


class CoverChanges(msgspec.Struct, frozen=True, array_like=True):
    """What an entry says of covers (:mod:`queuey.claims.covers`).

    Attributes:
        made: Covers that its deliveries make.
        until: Their bound (ticks).
        withdrawn: Digests whose covers end now, because their representatives are gone.
        stored: The covers are in the store that entries up to a number made, of representatives at or below a position,
            except those that hold copies.
    """

    made: list[CoverMade] = []
    until: int = 0
    withdrawn: list[bytes] = []
    stored: tuple[int, Position] | None = None


class Entry(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One change of a partition's state. :meth:`State.apply` says what each field does.

    Attributes:
        token: A random number of the writer, by which it recognizes its own entry.
        at: The writer's clock (milliseconds since 1970) when it decided; for people.
        cursor: The cursor from now on; never below the one before.
        claims: Delivered by this entry, a group for each caller.
        finals: Done: acknowledged, or their messages are gone.
        renewals: Claims that last longer, or begin if the message was not claimed.
        releases: Claims that end now.
        delete: The messages of ``finals`` are to be deleted.
        deleted: Deletions that entries up to this number asked for are carried out.
        snapshot: The snapshot that this entry names; 0: none.
        outs: To become dead letters.
        sent: Those that have become dead letters.
        release_all: Every claim ends now.
        superseded: Done, and those who had claimed them are told: a newer value has taken their name. They were
            removed before; a process that has read them does not deliver them any more.
        move: What is done for a move to another queue.
        covers: What it says of copies, in a dedup queue.
        secrets: For each group of ``claims``, a random number in its receipts.
        workers: For each group of ``claims``, what its caller calls itself; empty: none says so.
        keys: For each group of ``claims``, digests of the keys of its messages, 0 for those without; empty in queues
            that do not keep keys.
    """

    format: int = FORMAT
    token: int = 0
    at: int = 0
    cursor: Position = FIRST
    claims: list[Group] = []
    finals: list[Position] = []
    renewals: list[Group] = []
    releases: list[Position] = []
    delete: bool = False
    deleted: int = 0
    snapshot: int = 0
    outs: list[Out] = []
    sent: list[Position] = []
    release_all: bool = False
    superseded: list[Position] = []
    move: MoveStep | None = None
    covers: CoverChanges | None = None
    secrets: list[int] = []
    workers: list[str] = []
    keys: list[list[int]] = []


def grouped(expiries: dict[Position, int]) -> list[Group]:
    """Returns messages by when their claims expire."""
    groups: defaultdict[int, list[Position]] = defaultdict(list)
    for position, expires in expiries.items():
        groups[expires].append(position)
    return list(groups.items())


_encoder = msgspec.msgpack.Encoder()
_entries = msgspec.msgpack.Decoder(Entry)
_any = msgspec.msgpack.Decoder()


def encode_entry(entry: Entry) -> bytes:
    return _encoder.encode(entry)


def decode_entry(body: bytes) -> Entry:
    """Reads an entry.

    Raises:
        UnknownFormat: It is of a later format, or none.
    """
    try:
        entry = _entries.decode(body)
    except msgspec.MsgspecError as error:
        raise UnknownFormat(f"an entry of format {format_of(body)} cannot be read: {error}") from error
    if entry.format != FORMAT:
        raise UnknownFormat(f"an entry has format {entry.format}; this program knows {FORMAT}")
    return entry


def format_of(body: bytes) -> object:
    """Returns the format that an entry or a snapshot says it has; None if it says none."""
    try:
        whole = _any.decode(body)
    except msgspec.MsgspecError:
        return None
    return whole[0] if isinstance(whole, list) and whole else None
