"""Dedup queues: copies of a delivered message become done without being delivered.

The first delivery of a message makes it the **representative** of its body and creates a **cover**: undelivered copies
with ids below ``until`` are duplicates. ``until`` is chosen so that all of them were posted before the delivery; a copy
posted later is delivered. Copies above ``until`` that the scan had already read were posted earlier too; the cover
**holds** each of them by its id.

A cover is needed until the cursor has passed ``until``. Covers are kept in the state. If there are too many, they are
written to the store (``queuey.storage.contracts.covers``), and a log entry records it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

import msgspec

from queuey.claims.rules.entries import CoverChanges
from queuey.model import ids
from queuey.model.ids import LOW_MIN, Position
from queuey.model.kinds import compute_body_digest
from queuey.model.messages import Message

MAX_UNCONFIRMED = 20_000
"""Max covers with representatives above the cursor. With more, polls read more slowly."""

StoredCover = tuple[bytes, int]
"""A digest, and ``until`` in ticks."""


class Cover(msgspec.Struct, frozen=True, gc=False):
    """Makes the copies of a delivered message duplicates.

    Attributes:
        representative: Position of the delivered message.
        until: Copies with ids below this are duplicates (ticks).
        held: Copies above ``until`` that are duplicates too, ascending.
        number: Number of the entry that made the cover.
    """

    representative: Position
    until: int
    held: tuple[Position, ...]
    number: int

    def includes_position(self, position: Position) -> bool:
        """Returns whether an id is below ``until`` or is held. The representative's own id is not excluded."""
        if position[0] < self.until:
            return True
        index = bisect_left(self.held, position)
        return index < len(self.held) and self.held[index] == position

    @property
    def end(self) -> Position:
        """The position from which on no message is a duplicate."""
        below = (self.until, LOW_MIN)
        return max(below, ids.following(self.held[-1])) if self.held else below


EncodedCover = tuple[bytes, Position, int, list[Position], int]
"""A digest and its cover in a snapshot."""


class PartitionCovers:
    """The covers of a partition.

    Attributes:
        by_digest: The covers in memory, which are not in the store.
        by_representative: Digests of the same covers. If a representative that is not done is deleted or expires, its
            cover is withdrawn.
        unconfirmed: Digests of representatives above the cursor. Such a message is missing if its post failed and was
            undone. So these covers are not written to the store, from which they could not be withdrawn.
        stored_until: The highest ``until`` in the store that may still be needed (ticks), or 0.
        version: Number of the last entry that moved covers to the store. Results of earlier lookups are out of date.
    """

    def __init__(self) -> None:
        self.by_digest: dict[bytes, Cover] = {}
        self.by_representative: dict[Position, bytes] = {}
        self.unconfirmed: dict[Position, bytes] = {}
        self.stored_until = 0
        self.version = 0
        self._ends: list[tuple[Position, bytes]] = []
        self._representatives: list[Position] = []
        self._held = 0

    @property
    def count(self) -> int:
        return len(self.by_digest) + self._held

    def apply(self, number: int, changes: CoverChanges, cursor: Position) -> None:
        """Applies the changes of an entry, withdrawals first; ``cursor`` is the cursor before that entry."""
        for digest in changes.withdrawn:
            self._remove(digest)
        for digest, representative, held in changes.made:
            self._add(digest, Cover(representative, changes.until, tuple(held), number), cursor)
        if changes.stored is not None:
            self._forget_stored(number, *changes.stored)

    def _add(self, digest: bytes, cover: Cover, cursor: Position) -> None:
        """Adds a cover.

        It takes over the copies of an earlier cover of the same digest, and its ``until`` if that is higher.
        """
        before = self._remove(digest)
        if before is not None:
            # Clocks differ, so a later delivery may have chosen a lower bound.
            until = max(cover.until, before.until)
            held = tuple(sorted({copy for copy in before.held + cover.held if copy[0] >= until}))
            cover = Cover(cover.representative, until, held, cover.number)
        self.by_digest[digest] = cover
        self.by_representative[cover.representative] = digest
        self._held += len(cover.held)
        if cover.representative > cursor:
            self.unconfirmed[cover.representative] = digest
            heappush(self._representatives, cover.representative)
        heappush(self._ends, (cover.end, digest))

    def _remove(self, digest: bytes) -> Cover | None:
        cover = self.by_digest.pop(digest, None)
        if cover is not None:
            self._held -= len(cover.held)
            self.by_representative.pop(cover.representative, None)
            self.unconfirmed.pop(cover.representative, None)
        return cover

    def _forget_stored(self, number: int, made_by: int, confirmed: Position) -> None:
        """Removes covers that are in the store now (see :meth:`find_storable`). ``stored_until`` rises to theirs."""
        for digest in [digest for digest, _ in self.find_storable(confirmed, made_by)]:
            cover = self._remove(digest)
            if cover is not None:
                self.stored_until = max(self.stored_until, cover.until)
        self.version = number

    def find_storable(self, confirmed: Position, made_by: int) -> list[StoredCover]:
        """Returns the covers that may be written to the store; covers that hold copies stay in memory.

        Args:
            confirmed: The highest position of a representative.
            made_by: Number of the last entry whose covers are included.
        """
        return [
            (digest, cover.until)
            for digest, cover in self.by_digest.items()
            if cover.representative <= confirmed and cover.number <= made_by and not cover.held
        ]

    def advance_cursor(self, cursor: Position) -> None:
        while self._representatives and self._representatives[0] <= cursor:
            self.unconfirmed.pop(heappop(self._representatives), None)
        above = ids.following(cursor)
        while self._ends and self._ends[0][0] <= above:
            digest = heappop(self._ends)[1]
            cover = self.by_digest.get(digest)
            if cover is not None and cover.end <= above:
                self._remove(digest)
        if (self.stored_until, LOW_MIN) <= above:
            self.stored_until = 0

    # Snapshots

    def encode(self) -> list[EncodedCover]:
        return [
            (digest, cover.representative, cover.until, list(cover.held), cover.number)
            for digest, cover in sorted(self.by_digest.items(), key=lambda item: item[0])
        ]

    @classmethod
    def decode(
        cls, encoded: Iterable[EncodedCover], stored_until: int, cursor: Position, number: int
    ) -> PartitionCovers:
        covers = cls()
        for digest, representative, until, held, made_by in encoded:
            covers.by_digest[digest] = Cover(representative, until, tuple(held), made_by)
            covers.by_representative[representative] = digest
            covers._held += len(held)
            if representative > cursor:
                covers.unconfirmed[representative] = digest
        covers._representatives = list(covers.unconfirmed)
        covers._ends = [(cover.end, digest) for digest, cover in covers.by_digest.items()]
        heapify(covers._representatives)
        heapify(covers._ends)
        covers.stored_until, covers.version = stored_until, number
        return covers


class ScanDuplicates(msgspec.Struct):
    """Duplicates found by a scan of a dedup queue.

    Attributes:
        digests: Digest of each message that may be delivered.
        first: The first deliverable message of each digest.
        hidden: Digests of copies of a delivered message, or of another message of the scan.
        stored: ``until`` by digest, from the store.
    """

    digests: dict[Position, bytes] = {}
    first: dict[bytes, Position] = {}
    hidden: dict[Position, bytes] = {}
    stored: dict[bytes, int] = {}


def split_duplicates(
    covers: PartitionCovers,
    copies: ScanDuplicates,
    messages: Sequence[Message],
    stored_bounds: Mapping[bytes, int] | None = None,
) -> tuple[list[Message], Collection[bytes]]:
    """Separates deliverable messages from duplicates. The first of several new copies of a body is deliverable.

    Args:
        covers: Covers of the state.
        copies: Receives the duplicates.
        messages: Undelivered messages, in order.
        stored_bounds: ``until`` by digest, as answered by the store; None before the lookup.

    Returns:
        The messages to deliver, and the digests to look up in the store first. With digests to look up, no messages
        are returned.
    """
    digests, stored, hidden = copies.digests, copies.stored, copies.hidden
    stored.update(stored_bounds or {})
    lookups: dict[bytes, None] = {}
    messages = [message for message in messages if message.position not in hidden]
    for message in messages:
        if message.position not in digests:
            digests[message.position] = compute_body_digest(message.body, message.meta)
        if message.ticks < covers.stored_until and digests[message.position] not in stored:
            lookups[digests[message.position]] = None
    if lookups and stored_bounds is None:
        return [], lookups
    fresh = []
    for message in messages:
        position, digest = message.position, digests[message.position]
        cover = covers.by_digest.get(digest)
        if (
            (cover is not None and cover.includes_position(position))
            or position[0] < stored.get(digest, 0)
            or copies.first.setdefault(digest, position) != position
        ):
            hidden[position] = digests.pop(position)
        else:
            fresh.append(message)
    return fresh, ()
