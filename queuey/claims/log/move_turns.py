"""One turn of a move at a partition's log: records the result of the last chunk, and takes the next one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import msgspec

from queuey.claims.log.message_finder import MAX_SCAN_PAGES, ReadingRequest, Sources
from queuey.claims.rules.entry_draft import MAX_ENTRY_IDS, EntryDraft
from queuey.claims.rules.partition_state import MAX_ABOVE, MAX_OUTSTANDING, State
from queuey.model import ids
from queuey.model.ids import FIRST, LOW_MIN, Position
from queuey.model.messages import Message, Queue, Slice, bytes_of, rendered_bytes

MAX_CHUNK_MESSAGES = MAX_ENTRY_IDS
MAX_CHUNK_BYTES = 1 << 20
"""Max bytes of a chunk's messages, not counting the last one."""
FETCH_BATCH_SIZE = 32
MAX_COPIES = MAX_ABOVE
"""Max copies that a turn at a dedup queue skips."""


class MoveOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A move's request to a partition.

    Attributes:
        move: Number of the move.
        below: Upper bound of the messages to take.
        exact: All acknowledged posts lie below the horizon of any read, so the move does not have to wait.
        moved: Chunk whose messages are in the target and deleted here; 0 if none.
        last: Position of its last message in the target.
        give_back: The current chunk stays here and the move ends, because its messages can never reach the target.
        stop: Take no more messages.
    """

    move: int
    below: Position
    exact: bool = False
    moved: int = 0
    last: Position = FIRST
    give_back: bool = False
    stop: bool = False


class MoveTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A move's state in a partition after its turn.

    Attributes:
        chunk: The current chunk; 0 if none.
        positions: Positions of the chunk's messages.
        messages: The chunk's messages if they were read in this turn; None if they were taken earlier.
        moved: Number of messages that have been moved.
        last: Position of the last one in the target.
        ended: The move is over in this partition.
        left: Number of messages that stay because they are claimed.
        blocked: Another move has left a chunk here.
    """

    chunk: int = 0
    positions: list[Position] = []
    messages: list[Message] | None = None
    moved: int = 0
    last: Position = FIRST
    ended: bool = False
    left: int = 0
    blocked: bool = False


class MoveRequest(ReadingRequest):
    """Adds messages to a move's chunk. The result is a :class:`MoveTurn`."""

    __slots__ = ("_candidates", "_gone", "_is_complete", "_order")

    def __init__(self, queue: Queue, order: MoveOrder) -> None:
        self._order = order
        super().__init__(queue)

    def _reset(self) -> None:
        super()._reset()
        self._candidates: list[Message] = []
        self._gone: list[Position] = []
        self._is_complete = False

    @property
    def below(self) -> Position:
        return self._order.below

    async def gather(self, state: State, sources: Sources) -> None:
        # Reads at most one chunk of messages, unless the move stops or the log allows none now.
        # Only below the horizon, where messages can no longer be undone.
        expiry_limit = sources.expiry_limit
        self._reset()
        if (
            self._order.stop
            or self._order.give_back
            or not self._is_log_free(state)
            or self._is_too_early(expiry_limit)
        ):
            return
        fresh, bound, reached = await self._scan(state, sources)
        ended = sorted(position for position in state.find_ended(expiry_limit, MAX_OUTSTANDING) if position < bound)
        redelivered, fetched = await self._fetch_again(ended, sources)
        available = sorted(redelivered + fresh, key=lambda message: message.position)
        self._candidates = list(_cut_to_chunk(available))
        self._is_complete = (
            reached and fetched == len(ended) and len(self._candidates) == len(available) and not self.expired.expiries
        )

    def _is_too_early(self, expiry_limit: int) -> bool:
        """Returns whether copies below the move's bound may still be posted: its covers would not hide them."""
        if not self.queue.traits.unites_bodies or self._order.exact:
            return False
        return ids.seconds_to_ticks(expiry_limit / 1000) < self.below[0]

    def _is_log_free(self, state: State) -> bool:
        """Returns whether no chunk of another move is under way, and ours is settled. Ignores ``stop``.

        Our chunk counts as settled if the order says that it was moved. False if the log has the move as ended.
        """
        move = state.move
        if move is None or move.number < self._order.move:
            return move is None or not move.chunk
        return not move.ended and move.chunk in {0, self._order.moved}

    async def _scan(self, state: State, sources: Sources) -> tuple[list[Message], Position, bool]:
        """Reads from the cursor; returns new messages, the end of complete reads, and whether it is the move's end."""
        below, horizon = self._order.below, self.horizon
        lower = ids.following(state.cursor)
        fresh: list[Message] = []
        for _ in range(MAX_SCAN_PAGES):
            if lower >= below:
                return fresh, below, True
            chunk = Slice(
                sources.partition, lower, below, limit=MAX_CHUNK_MESSAGES, max_bytes=MAX_CHUNK_BYTES, ahead=True
            )
            page = await sources.read(chunk)
            if horizon == FIRST:
                horizon = self.horizon = (page.horizon, LOW_MIN)
            self.chain.seen += [message.position for message in page.messages]
            new = [m for m in page.messages if m.position < horizon and not state.is_known(m.position)]
            fresh += sources.split_expired(await sources.split_copies(state, self.copies, new), self.expired)
            self.expired.record_live(fresh)
            lower = page.next or lower
            self.chain.bound = min(horizon, lower)
            if not page.more:
                return fresh, min(horizon, below), self._order.exact or horizon >= below
            if len(fresh) >= MAX_CHUNK_MESSAGES or bytes_of(fresh) >= MAX_CHUNK_BYTES:
                break
            if len(self.copies.hidden) >= MAX_COPIES or self.expired.are_many:
                break
        return fresh, self.chain.bound, False

    async def _fetch_again(self, positions: list[Position], sources: Sources) -> tuple[list[Message], int]:
        """Reads messages whose claims are over, up to a chunk; returns them, and how many positions were tried.

        Sets expired messages and missing positions aside.
        """
        redelivered: list[Message] = []
        weight = tried = 0
        while tried < len(positions) and len(redelivered) < MAX_CHUNK_MESSAGES and weight < MAX_CHUNK_BYTES:
            batch = positions[tried : tried + FETCH_BATCH_SIZE]
            messages = await sources.fetch([(sources.partition, position) for position in batch])
            existing = {message.position for message in messages}
            redelivered += sources.split_expired(messages, self.expired)
            weight += bytes_of(messages)
            self._gone += [position for position in batch if position not in existing]
            tried += len(batch)
        return redelivered, tried

    def edit(self, draft: EntryDraft) -> None:
        # Settles the last chunk and takes what was read; ends the move if nothing remains or it stops.
        order = self._order
        if order.give_back:
            draft.settle_chunk(order.move, 0, None)
        elif order.moved:
            draft.settle_chunk(order.move, order.moved, order.last)
        may_take = draft.may_move(order.move)
        taken: list[Position] = []
        if may_take:
            draft.end_gone(self._gone)
            taken = draft.add_to_move(order.move, self._candidates)
            self.add_dead_letters(draft)
        delete = self.queue.on_ack == "delete"
        self.passed = draft.advance(self.chain.bound, self.chain.seen, delete=delete)
        # If the entry is full of copies to delete, the cursor may not have passed all of them.
        is_over = (
            self._is_complete
            and not taken
            and not draft.rules.withdraws_covers
            and not (delete and draft.size >= MAX_ENTRY_IDS)
        )
        if may_take and (is_over or order.stop or order.give_back):
            draft.end_move(order.move)

    def result(self, state: State) -> MoveTurn:
        left = sum(position < self._order.below for position in state.outstanding)
        move = state.move
        if move is None or move.number < self._order.move:
            return MoveTurn(left=left, blocked=bool(move and move.chunk))
        if move.number > self._order.move:
            return MoveTurn(left=left, ended=True)
        positions = [position for position, _ in move.taken]
        found_by_position = {message.position: message for message in self._candidates}
        messages = [found_by_position[position] for position in positions if position in found_by_position]
        return MoveTurn(
            chunk=move.chunk,
            positions=positions,
            messages=messages if len(messages) == len(positions) else None,
            moved=move.moved,
            last=move.last,
            ended=move.ended and not move.chunk,
            left=left,
        )


def _cut_to_chunk(messages: Sequence[Message]) -> list[Message]:
    limited, weight = [], 0
    for message in islice(messages, MAX_CHUNK_MESSAGES):
        if weight >= MAX_CHUNK_BYTES:
            break
        limited.append(message)
        weight += rendered_bytes(message.body, message.meta)
    return limited
