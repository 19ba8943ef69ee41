"""One turn of a move at a partition's log: records the result of the last chunk, and takes the next one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from queuey import ids
from queuey.claims.covers import ScanDuplicates
from queuey.claims.drafts import MOST_IDS, EntryDraft
from queuey.claims.expiry import EndedMessages
from queuey.claims.state import MOST_ABOVE, MOST_OUTSTANDING, State
from queuey.deadletters import queue_for
from queuey.ids import FIRST, LAST, LOW_MIN, Position
from queuey.messages import Message, Queue, Slice, bytes_of, rendered_bytes
from queuey.service.claims.requests import Request
from queuey.service.claims.scans import MOST_PAGES, ContiguousRead, Fetch, Read, SplitDuplicates, SplitEnded

CHUNK = MOST_IDS
"""Max messages of a chunk."""
CHUNK_BYTES = 1 << 20
"""Max bytes of a chunk's messages, not counting the last one."""
FETCHED = 32
"""Number of messages that are fetched at once."""
MOST_COPIES = MOST_ABOVE
"""Max copies that a turn at a dedup queue passes over."""


class MoveOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A move's request to a partition.

    Attributes:
        move: Its number.
        below: It takes only messages below this.
        exact: All that was acknowledged lies below the horizon of any read, so there is no need to wait.
        moved: A chunk whose messages are in the target, and deleted here; 0: none.
        last: The last of them in the target.
        give_back: The chunk under way stays here, and the move ends: its messages can never be in the target.
        stop: Take no more.
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
        chunk: The chunk under way; 0: none.
        places: Its messages' positions.
        messages: The messages, if they were read just now; None: they were taken earlier.
        moved: Number of messages that have been moved.
        last: The last of them in the target.
        ended: It is over in this partition.
        left: Messages that stay because they are claimed.
        blocked: Another move has left a chunk here.
    """

    chunk: int = 0
    places: list[Position] = []
    messages: list[Message] | None = None
    moved: int = 0
    last: Position = FIRST
    ended: bool = False
    left: int = 0
    blocked: bool = False


class Sources(NamedTuple):
    """What a :class:`ReadingRequest` reads with.

    Attributes:
        partition: Its number.
        expired: Claims with an expiry below this are over (milliseconds since 1970).
        split: In a dedup queue.
        split_ended: In a log that keeps messages that have ended.
    """

    partition: int
    expired: int
    fetch: Fetch
    read: Read
    split: SplitDuplicates | None
    split_ended: SplitEnded

    async def firsts(self, state: State, copies: ScanDuplicates, messages: list[Message]) -> list[Message]:
        """Leaves out copies."""
        return messages if self.split is None else await self.split(state, copies, messages)


class ReadingRequest(Request):
    """A request that reads messages for itself, and is alone in its entry."""

    __slots__ = ("chain", "copies", "ended", "horizon", "passed")

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue, MOST_IDS)
        self._begin()

    def _begin(self) -> None:
        self.chain = ContiguousRead()
        """Contiguous reads from the cursor, up to the horizon."""
        self.copies = ScanDuplicates()
        """Found in a dedup queue, and not to be moved."""
        self.ended = EndedMessages()
        """In a log that keeps them."""
        self.horizon: Position = FIRST
        """The horizon of the first read."""
        self.passed = 0
        """Messages that the cursor passes."""

    @property
    def below(self) -> Position:
        """Upper bound of the messages."""
        return LAST

    @abstractmethod
    async def gather(self, state: State, sources: Sources) -> None:
        """Reads messages."""

    def expire(self, draft: EntryDraft) -> None:
        """Gives up the messages that have ended."""
        draft.expire(self.ended, queue_for(self.queue.name, self.queue.dead_letter))


class MoveRequest(ReadingRequest):
    """Adds messages to a move's chunk. The result is a :class:`MoveTurn`."""

    __slots__ = ("_complete", "_found", "_gone", "_order")

    def __init__(self, queue: Queue, order: MoveOrder) -> None:
        self._order = order
        super().__init__(queue)

    def _begin(self) -> None:
        super()._begin()
        self._found: list[Message] = []
        self._gone: list[Position] = []
        self._complete = False

    @property
    def below(self) -> Position:
        return self._order.below

    async def gather(self, state: State, sources: Sources) -> None:
        # Only below the horizon: there no message can be undone any more.
        expired = sources.expired
        self._begin()
        if self._order.stop or self._order.give_back or not self._may_take(state) or self._is_too_early(expired):
            return
        fresh, bound, reached = await self._scan(state, sources)
        ended = sorted(place for place in state.ended(expired, MOST_OUTSTANDING) if place < bound)
        again, fetched = await self._fetch_again(ended, sources)
        found = sorted(again + fresh, key=lambda message: message.position)
        self._found = list(_limited(found))
        self._complete = reached and fetched == len(ended) and len(self._found) == len(found) and not self.ended.all

    def _is_too_early(self, expired: int) -> bool:
        """Returns whether a copy that this move would take may still be posted: then its covers would hide too few."""
        if self.queue.kind != "dedup" or self._order.exact:
            return False
        return ids.seconds_to_ticks(expired / 1000) < self.below[0]

    def _may_take(self, state: State) -> bool:
        move = state.move
        if move is None or move.number < self._order.move:
            return move is None or not move.chunk
        return not move.ended and move.chunk in {0, self._order.moved}

    async def _scan(self, state: State, sources: Sources) -> tuple[list[Message], Position, bool]:
        """Reads from the cursor on; returns messages, the bound below which all is certain, and if that is the end."""
        below, horizon = self._order.below, self.horizon
        lower = ids.following(state.cursor)
        fresh: list[Message] = []
        for _ in range(MOST_PAGES):
            if lower >= below:
                return fresh, below, True
            chunk = Slice(sources.partition, lower, below, limit=CHUNK, max_bytes=CHUNK_BYTES, ahead=True)
            page = await sources.read(chunk)
            if horizon == FIRST:
                horizon = self.horizon = (page.horizon, LOW_MIN)
            self.chain.seen += [message.position for message in page.messages]
            new = [one for one in page.messages if one.position < horizon and not state.is_known(one.position)]
            fresh += sources.split_ended(await sources.firsts(state, self.copies, new), self.ended)
            self.ended.saw_live(fresh)
            lower = page.next or lower
            self.chain.bound = min(horizon, lower)
            if not page.more:
                return fresh, min(horizon, below), self._order.exact or horizon >= below
            if len(fresh) >= CHUNK or bytes_of(fresh) >= CHUNK_BYTES:
                break
            if len(self.copies.hidden) >= MOST_COPIES or self.ended.are_many:
                break
        return fresh, self.chain.bound, False

    async def _fetch_again(self, places: list[Position], sources: Sources) -> tuple[list[Message], int]:
        """Reads messages whose claims have ended, as many as fit; returns them, and the number of positions tried."""
        again: list[Message] = []
        weight = at = 0
        while at < len(places) and len(again) < CHUNK and weight < CHUNK_BYTES:
            some = places[at : at + FETCHED]
            messages = await sources.fetch([(sources.partition, place) for place in some])
            there = {message.position for message in messages}
            again += sources.split_ended(messages, self.ended)
            weight += bytes_of(messages)
            self._gone += [place for place in some if place not in there]
            at += len(some)
        return again, at

    def edit(self, draft: EntryDraft) -> None:
        order = self._order
        if order.give_back:
            draft.settle_chunk(order.move, 0, None)
        elif order.moved:
            draft.settle_chunk(order.move, order.moved, order.last)
        may = draft.may_take(order.move)
        taken: list[Position] = []
        if may:
            draft.drop(self._gone)
            taken = draft.take(order.move, self._found)
            self.expire(draft)
        delete = self.queue.on_ack == "delete"
        self.passed = draft.advance(self.chain.bound, self.chain.seen, delete=delete)
        # With an entry full of copies that are to be deleted, the cursor may not have passed all of them.
        over = self._complete and not taken and not draft.withdraws and not (delete and draft.size >= MOST_IDS)
        if may and (over or order.stop or order.give_back):
            draft.end_move(order.move)

    def result(self, state: State) -> MoveTurn:
        left = sum(place < self._order.below for place in state.outstanding)
        move = state.move
        if move is None or move.number < self._order.move:
            return MoveTurn(left=left, blocked=bool(move and move.chunk))
        if move.number > self._order.move:
            return MoveTurn(left=left, ended=True)
        places = [place for place, _ in move.taken]
        have = {message.position: message for message in self._found}
        messages = [have[place] for place in places if place in have]
        return MoveTurn(
            chunk=move.chunk,
            places=places,
            messages=messages if len(messages) == len(places) else None,
            moved=move.moved,
            last=move.last,
            ended=move.ended and not move.chunk,
            left=left,
        )


def _limited(messages: Sequence[Message]) -> list[Message]:
    found, weight = [], 0
    for message in islice(messages, CHUNK):
        if weight >= CHUNK_BYTES:
            break
        found.append(message)
        weight += rendered_bytes(message.body, message.meta)
    return found
