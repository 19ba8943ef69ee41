"""Entries of a claim log and their encoding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from queuey.ids import FIRST, Position

FORMAT = 1
"""Version of the encoding of entries and snapshots."""
KEEPING = 2
"""Version of the same encoding in the log of a queue whose expired messages become dead letters. Version 0.1.0, whose
cursor would pass them, does not read it."""
Group = tuple[int, list[Position]]
"""Expiry of claims (milliseconds since 1970), and their messages."""

Out = tuple[Position, str, int]
"""A message that becomes a dead letter, the queue for it, and its number of deliveries."""


CoverMade = tuple[bytes, Position, list[Position]]
"""A digest, its representative, and copies above ``CoverChanges.until`` that are duplicates."""


class UnknownFormat(ValueError):
    """This program cannot read an entry or a snapshot."""


class MoveStep(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A step of a move of the partition's messages to another queue.

    The messages that one entry takes are a **chunk**, numbered like the entry. At most one chunk of a partition is
    under way: taken, and neither moved nor returned.

    Attributes:
        move: Its number; later moves of the queue have higher ones.
        taken: The chunk of this entry: done for consumers of this queue.
        moved: The chunk whose messages are in the target, and deleted here; 0: none.
        last: The last of them in the target.
        returned: The chunk whose messages stay here and can be delivered again; 0: none.
        ended: The move takes no more of this partition.
    """

    move: int
    taken: list[Position] = []
    moved: int = 0
    last: Position = FIRST
    returned: int = 0
    ended: bool = False


class CoverChanges(msgspec.Struct, frozen=True, array_like=True):
    """Changes of covers (:mod:`queuey.claims.covers`).

    Attributes:
        made: Covers of this entry's deliveries.
        until: Their bound (ticks).
        withdrawn: Digests whose covers end, because their representatives are gone.
        stored: (number, position): in the store are the covers that entries up to the number made, of representatives
            at or below the position, except those that hold copies.
    """

    made: list[CoverMade] = []
    until: int = 0
    withdrawn: list[bytes] = []
    stored: tuple[int, Position] | None = None


class Entry(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One change of a partition's state; applied by :meth:`.state.State.apply`.

    Attributes:
        format: :data:`FORMAT`, or :data:`KEEPING` in a log whose readers must see expired messages.
        token: A random number, by which the writer recognizes its own entry.
        at: The writer's clock (milliseconds since 1970); for people.
        cursor: The new cursor, never below the one before.
        claims: Deliveries, a group for each caller.
        finals: Done: acknowledged, or gone.
        renewals: Claims that last longer, or begin if the message was not claimed.
        releases: Claims that end now.
        delete: The messages of ``finals`` are to be deleted.
        deleted: Deletions that entries up to this number asked for are carried out.
        snapshot: The snapshot that this entry names; 0: none.
        outs: Messages that become dead letters.
        sent: Dead letters that are published.
        release_all: Every claim ends now.
        superseded: Done, because a newer value has taken their name; their receipts are superseded. They were removed
            before; a process that has read them does not deliver them any more.
        move: A step of a move to another queue.
        covers: Changes of covers, in a dedup queue.
        secrets: A random number for the receipts of each group of ``claims``.
        workers: The caller's name for each group of ``claims``; empty: none has one.
        keys: Digests of the messages' keys for each group of ``claims``, 0 for those without; empty in queues that do
            not keep keys.
    """

    cancels: ClassVar[Sequence[Position]] = ()

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


class CancellingEntry(Entry, frozen=True, array_like=True):
    """An entry by which an operator cancels messages. Version 0.1.0 reads it as one that does not.

    Attributes:
        cancels: Claimed messages whose workers are asked to stop: they will not be delivered again.
    """

    cancels: list[Position] = []  # type: ignore[misc] # others have none


def grouped(expiries: dict[Position, int]) -> list[Group]:
    groups: defaultdict[int, list[Position]] = defaultdict(list)
    for position, expires in expiries.items():
        groups[expires].append(position)
    return list(groups.items())


encode_entry = msgspec.msgpack.Encoder().encode
"""Encodes an entry."""
_entries = msgspec.msgpack.Decoder(CancellingEntry)
_any = msgspec.msgpack.Decoder()


def decode_entry(body: bytes) -> Entry:
    """Reads an entry.

    Raises:
        UnknownFormat: It has another format.
    """
    try:
        entry = _entries.decode(body)
    except msgspec.MsgspecError as error:
        raise UnknownFormat(f"an entry of format {format_of(body)} cannot be read: {error}") from error
    require_known(entry.format, "an entry")
    return entry


def require_known(form: int, what: str) -> None:
    """Raises ``UnknownFormat`` for a format that this program does not know."""
    if form not in {FORMAT, KEEPING}:
        raise UnknownFormat(f"{what} has format {form}; this program knows {FORMAT} and {KEEPING}")


def format_of(body: bytes) -> object:
    try:
        whole = _any.decode(body)
    except msgspec.MsgspecError:
        return None
    return whole[0] if isinstance(whole, list) and whole else None
