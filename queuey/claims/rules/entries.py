"""Entries of a claim log and their encoding."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from queuey.model.ids import FIRST, Position

FORMAT = 1
ClaimGroup = tuple[int, list[Position]]
"""Expiry of claims (milliseconds since 1970), and the claimed messages."""

OutboxItem = tuple[Position, str, int]
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
        move: Number of the move; later moves of the queue have higher numbers.
        taken: Messages of the chunk that this entry takes. They are done for consumers of this queue.
        moved: Number of the chunk whose messages are in the target and deleted here, or 0.
        last: Position in the target of that chunk's last message.
        returned: Number of the chunk whose messages stay here and can be delivered again, or 0.
        ended: The move takes no more messages of this partition.
    """

    move: int
    taken: list[Position] = []
    moved: int = 0
    last: Position = FIRST
    returned: int = 0
    ended: bool = False


class PartitionMoveState(msgspec.Struct, array_like=True):
    """Progress of the newest move of the partition's messages to another queue.

    Attributes:
        number: Number of the move.
        moved: Number of messages moved so far.
        last: Position in the target of the last message moved.
        chunk: Number of the entry that took the chunk under way, or 0.
        taken: Messages of that chunk, each with its number of deliveries.
        ended: The move takes no more messages.
    """

    number: int
    moved: int = 0
    last: Position = FIRST
    chunk: int = 0
    taken: list[tuple[Position, int]] = []
    ended: bool = False


class CoverChanges(msgspec.Struct, frozen=True, array_like=True):
    """Changes of covers (:mod:`queuey.claims.rules.covers`).

    Attributes:
        made: Covers of this entry's deliveries.
        until: Bound of those covers (ticks).
        withdrawn: Digests of covers that end because their representatives are gone.
        stored: A pair (number, position): the store has all covers made by entries up to that number for
            representatives at or below that position, except covers that hold copies.
    """

    made: list[CoverMade] = []
    until: int = 0
    withdrawn: list[bytes] = []
    stored: tuple[int, Position] | None = None


class ClaimEntry(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One change of a partition's state; applied by :meth:`.partition_state.State.apply`.

    Attributes:
        format: :data:`FORMAT`.
        token: A random number by which the writer recognizes its own entry.
        at: The writer's clock (milliseconds since 1970).
        cursor: The new cursor, or ``FIRST`` if it has not moved.
        claims: Deliveries, one group for each caller.
        finals: Messages that become done: acknowledged or gone.
        renewals: New expiries of claims. A claim begins if the message was not claimed.
        releases: Messages whose claims end now.
        delete: The messages of ``finals`` are to be deleted.
        deleted: All deletions requested by entries up to this number have been carried out.
        snapshot: Number of the newest snapshot, or 0.
        outs: Messages that become dead letters.
        sent: Dead letters that are published.
        release_all: Every claim ends now.
        superseded: Messages that become done because a newer value has taken their name. Their receipts are
            superseded. Their rows were removed before; a process that has read them does not deliver them any more.
        move: A step of a move to another queue.
        covers: Changes of covers, in a dedup queue.
        secrets: A random number for the receipts of each group of ``claims``.
        workers: The caller's name for each group of ``claims``; empty if no caller gave a name.
        keys: Digests of the messages' keys for each group of ``claims``, with 0 for a message without a key; empty in
            queues that do not keep keys.
        cancels: Claimed messages that will not be delivered again, and whose workers are asked to stop.
        unbegun: Messages of ``releases`` whose delivery does not count as an attempt.
        keeps: From now on readers of the log must see expired messages, because they become dead letters.
    """

    format: int = FORMAT
    token: int = 0
    at: int = 0
    cursor: Position = FIRST
    claims: list[ClaimGroup] = []
    finals: list[Position] = []
    renewals: list[ClaimGroup] = []
    releases: list[Position] = []
    delete: bool = False
    deleted: int = 0
    snapshot: int = 0
    outs: list[OutboxItem] = []
    sent: list[Position] = []
    release_all: bool = False
    superseded: list[Position] = []
    move: MoveStep | None = None
    covers: CoverChanges | None = None
    secrets: list[int] = []
    workers: list[str] = []
    keys: list[list[int]] = []
    cancels: list[Position] = []
    unbegun: list[Position] = []
    keeps: bool = False


def group_by_expiry(expiries: dict[Position, int]) -> list[ClaimGroup]:
    groups: defaultdict[int, list[Position]] = defaultdict(list)
    for position, expires in expiries.items():
        groups[expires].append(position)
    return list(groups.items())


encode_entry = msgspec.msgpack.Encoder().encode
_entry_decoder = msgspec.msgpack.Decoder(ClaimEntry)
_any_decoder = msgspec.msgpack.Decoder()


def decode_entry(body: bytes) -> ClaimEntry:
    """Decodes an entry.

    Raises:
        UnknownFormat: The entry cannot be decoded, or has a format that this program does not know.
    """
    try:
        entry = _entry_decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise UnknownFormat(f"an entry of format {format_of(body)} cannot be read: {error}") from error
    require_known_format(entry.format, "an entry")
    return entry


def require_known_format(form: int, what: str) -> None:
    if form != FORMAT:
        raise UnknownFormat(f"{what} has format {form}; this program knows format {FORMAT}")


def format_of(body: bytes) -> object:
    """Returns the first item of an encoded entry or snapshot, or None if the body is not a list with items."""
    try:
        items = _any_decoder.decode(body)
    except msgspec.MsgspecError:
        return None
    return items[0] if isinstance(items, list) and items else None
