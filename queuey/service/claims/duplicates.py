"""Dedup queues: looks duplicates up in the store, and stores covers for which the state has no room."""

from __future__ import annotations

from collections.abc import Collection

from queuey import ids
from queuey.claims import ClaimTiming, CoverDraft, ScanDuplicates, State, split_duplicates
from queuey.errors import QueueyError
from queuey.ids import Position
from queuey.messages import Message, Queue
from queuey.service.core import Core
from queuey.storage import Store

MOST_COVERS = 5_000
"""Max covers in a state whose representatives are below the cursor; more are written to the store."""
TICKS_PER_MILLISECOND = 10_000


class Duplicates:
    """The covers of one partition in one process.

    Attributes:
        row: The queue; set before anything is read or written.
    """

    __slots__ = ("_core", "_partition", "_store", "_stored_until", "_timing", "_written", "row")
    row: Queue

    def __init__(self, store: Store, partition: int, core: Core, timing: ClaimTiming) -> None:
        self._store = store
        self._partition = partition
        self._core = core
        self._timing = timing
        self._written: tuple[int, tuple[int, Position]] | None = None
        self._stored_until = 0

    async def split(self, state: State, copies: ScanDuplicates, messages: list[Message]) -> list[Message]:
        """Returns the messages of a read that may be delivered, and records the others, which are copies."""
        fresh, asked = split_duplicates(state.covers, copies, messages)
        if asked:
            found = await self._core.in_thread(lambda: self._store.read_covers(self.row, self._partition, asked))
            known = dict.fromkeys(asked, 0) | found
            fresh, _ = split_duplicates(state.covers, copies, messages, known)
        return fresh

    def draft(
        self, state: State, copies: ScanDuplicates, horizon: Position, now: int, below: Position = ids.LAST
    ) -> CoverDraft:
        """Begins the next entry's changes of covers.

        Args:
            state: After the last entry.
            copies: From a scan.
            horizon: Of a read that has been made.
            now: Milliseconds since 1970.
            below: Upper bound of the copies.
        """
        until = 0 if horizon == ids.FIRST else horizon[0]
        if self._store.ids_follow_clocks:
            until = max(until, self._timing.expired(now) * TICKS_PER_MILLISECOND + ids.EPOCH_TICKS)
        return CoverDraft(state.covers, copies, min(until, below[0]))

    async def write(self, state: State) -> None:
        """Writes covers to the store if the state has too many of them.

        Raises:
            StoreUnavailable: They cannot be written. Then nothing may be delivered that makes more.
        """
        covers = state.covers
        if len(covers.by_digest) - len(covers.unconfirmed) < MOST_COVERS or self.written(state) is not None:
            return
        upto = state.number, state.cursor
        there = covers.storable(state.cursor, state.number)
        await self._core.in_thread(lambda: self._store.write_covers(self.row, self._partition, there))
        self._written = covers.version, upto
        self._stored_until = max([self._stored_until, covers.stored_until, *(until for _, until in there)])

    def written(self, state: State) -> tuple[int, Position] | None:
        """Returns ``CoverChanges.stored`` for the covers that this process has written."""
        if self._written is None or self._written[0] != state.covers.version:
            return None
        return self._written[1]

    async def forget(self, state: State) -> None:
        """Removes covers from the store, if the cursor has passed all of them. If that fails, they expire."""
        until = self._stored_until = max(self._stored_until, state.covers.stored_until)
        # Another process may be writing those that the cursor has not passed yet.
        if until and not state.covers.stored_until and (until, ids.LOW_MIN) <= ids.following(state.cursor):
            self._stored_until = 0
            try:
                await self._core.in_thread(lambda: self._store.forget_covers(self.row, self._partition, until))
            except QueueyError:
                return


def divided(
    state: State, ended: Collection[Position], most: int
) -> tuple[list[Position], list[Position], set[Position]]:
    """Divides messages whose claims have ended.

    Args:
        state: Has them.
        ended: The messages.
        most: Max deliveries of one; 0: no limit.

    Returns:
        Those that become dead letters; the others; and those of these that were delivered as often, but may be
        gone, so that copies of them would have to be delivered.
    """
    if not most:
        return [], list(ended), set()
    often = {place for place in ended if state.outstanding[place].deliveries >= most}
    doubt = often & state.covers.by_representative.keys()
    dead = often - doubt
    return [place for place in ended if place in dead], [place for place in ended if place not in dead], doubt
