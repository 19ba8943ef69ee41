"""Dedup queues: of several waiting messages with equal bodies, only one is delivered.

Its delivery makes it the representative of its body, and makes a cover that hides the copies posted before
(:mod:`queuey.claims.rules.covers`). An acknowledgement changes no cover: a copy that was posted after the delivery is
delivered in any case. If a representative is gone before it is done, its cover ends, and its copies are delivered.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from queuey.claims.rules.covers import Cover
from queuey.claims.rules.entries import CoverChanges, CoverMade
from queuey.claims.rules.kinds.limited import LimitedRules
from queuey.claims.rules.kinds.plain import Filter
from queuey.model import ids
from queuey.model.ids import Position
from queuey.model.kinds import compute_body_digest
from queuey.model.messages import Message


class DedupRules(LimitedRules):
    """A message is delivered unless a cover hides it. Its first delivery makes a cover."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.delivers_early = False  # Its copies would hold the cursor.
        self._covers = self.entry.state.covers
        self._made: dict[bytes, Cover] = {}
        self._withdrawn: dict[bytes, None] = {}
        self._present: Collection[Position] = ()

    def _choose(self, caller: int, *, claims: bool) -> Filter | None:
        return self._deliver if claims else self._is_representative

    def _is_representative(self, message: Message) -> bool:
        """Returns whether no cover hides a message; always True for a message that was delivered before."""
        is_outstanding = message.position in self.entry.state.outstanding
        return is_outstanding or self._find_representative(message.position, self._find_digest(message)) is None

    def _deliver(self, message: Message) -> bool:
        if is_representative := self._is_representative(message):
            self.on_moved(message)
        return is_representative

    def on_moved(self, message: Message) -> None:
        # Undelivered copies below `until` are duplicates from now on, also those of what a move takes.
        before = self.entry.state.outstanding.get(message.position)
        if before is None or not before.deliveries:
            self._made[self._find_digest(message)] = Cover(message.position, self.parts.until, (), 0)

    def end_delivery(self) -> int:
        # The new covers hold the copies that the scan has read above `until`.
        copies: dict[bytes, list[Position]] = {}
        count, room = 0, self.entry.room
        for position, digest in self.parts.copies.hidden.items() if self._made else ():
            if digest in self._made and position[0] >= self.parts.until and count < room:
                copies.setdefault(digest, []).append(position)
                count += 1
        for digest, held in copies.items():
            self._made[digest] = replace(self._made[digest], held=tuple(sorted(held)))
        return count

    def on_gone(self, position: Position) -> None:
        # The cover of a representative ends, if it is in memory.
        digest = self._covers.by_representative.get(position)
        if digest is not None:
            self._withdrawn[digest] = None
            self.withdraws_covers = True

    def begin_advance(self, bound: Position, seen: Sequence[Position]) -> None:
        # The covers of unfinished representatives above the cursor end that `seen` lacks below `bound`.
        self._present = {position for position in seen if position < bound}
        for representative in self._covers.unconfirmed if bound > ids.FIRST else ():
            is_missing = representative < bound and representative not in self._present
            if is_missing and self.entry.is_unfinished(representative):
                self.on_gone(representative)

    def is_done_copy(self, position: Position) -> bool:
        # The delivered one certainly exists, or is done.
        digest = self.parts.copies.hidden.get(position)
        first = None if digest is None else self._find_representative(position, digest)
        return first is not None and (first in self._present or self.entry.is_known_for_good(first))

    def _find_representative(self, position: Position, digest: bytes) -> Position | None:
        """Returns the representative of the cover that includes a message; ``ids.FIRST`` for a cover in the store."""
        if position[0] < self.parts.copies.stored.get(digest, 0):
            # Stored covers have representatives below the cursor.
            return ids.FIRST
        for cover in (self._covers.by_digest.get(digest), self._made.get(digest)):
            if cover is not None and cover.includes_position(position) and digest not in self._withdrawn:
                return cover.representative
        return None

    def _find_digest(self, message: Message) -> bytes:
        digest = self.parts.copies.digests.get(message.position)
        return compute_body_digest(message.body, message.meta) if digest is None else digest

    def make_cover_changes(self, cursor: Position) -> CoverChanges | None:
        made, written = self.find_needed(cursor), self.parts.written
        if not (made or self._withdrawn or written):
            return None
        return CoverChanges(made, self.parts.until if made else 0, list(self._withdrawn), written)

    def find_needed(self, cursor: Position) -> list[CoverMade]:
        """Returns the new covers that reach above the cursor. Others hide nothing."""
        above = ids.following(cursor)
        return [
            (digest, cover.representative, list(cover.held))
            for digest, cover in self._made.items()
            if cover.end > above
        ]
