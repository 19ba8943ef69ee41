"""One turn at a partition's log that searches it for expired messages, whether or not a worker claims from it."""

from __future__ import annotations

from typing import NamedTuple

from queuey import ids
from queuey.claims.drafts import MOST_IDS, EntryDraft
from queuey.claims.expiry import LIVE_SECONDS, due_after
from queuey.claims.state import State
from queuey.ids import FIRST, LOW_MIN, TICKS_MAX, TICKS_PER_SECOND, Position
from queuey.messages import Queue, Slice
from queuey.service.claims.move_turns import ReadingRequest, Sources
from queuey.service.claims.scans import MOST_COPIES, PAGE

MAX_PAGES = 8
"""Max pages of one turn. Other requests to the log wait meanwhile."""
PAGE_BYTES = 1 << 20
"""Max bytes of a page's messages, in a dedup queue, which needs their bodies."""
LETTERS_TICKS = 10 * TICKS_PER_SECOND
"""Number of ticks until it is searched again while dead letters are not published."""
TICKS_PER_MILLISECOND = TICKS_PER_SECOND // 1000


class ExpiryTurn(NamedTuple):
    """Result of a turn.

    Attributes:
        given_up: Number of messages that become dead letters.
        next: Where the next turn goes on; None at the end of the partition.
        following: When the first message that was read, and is not done, may be given up (ticks); ``TICKS_MAX``: none.
        horizon: All that was posted before was seen (ticks).
        is_unfinished: A message is not done, or a dead letter is not published.
    """

    given_up: int
    next: Position | None
    following: int
    horizon: int
    is_unfinished: bool


class ExpiryRequest(ReadingRequest):
    """Gives up expired messages, claimed or not. The result is an :class:`ExpiryTurn`.

    Args:
        queue: The row.
        now: Ticks.
        margin: The largest difference between the clocks of two processes (seconds).
        start: Where the turn before has ended; ``FIRST``: it is the first one.
    """

    __slots__ = ("_end", "_following", "_gone", "_margin", "_now", "_rows", "_start")

    def __init__(self, queue: Queue, now: int, margin: float, start: Position = FIRST) -> None:
        self._now = now
        self._margin = margin
        self._start = start
        super().__init__(queue)

    def _begin(self) -> None:
        super()._begin()
        self._gone: list[Position] = []
        self._end: Position | None = None
        self._following = TICKS_MAX
        self._rows = False
        """There are messages that have not ended."""

    @property
    def depends_on_others(self) -> bool:
        return True  # Where an older state has no mark, messages that have ended were not read.

    async def gather(self, state: State, sources: Sources) -> None:
        self._begin()  # From the first message that was delivered, or the cursor, on.
        above = ids.following(state.cursor)
        lower = start = max(self._start, min([above, *state.outstanding]))
        needs_bodies = sources.split is not None
        seen: list[Position] = []
        for number in range(MAX_PAGES + 1):
            if number == MAX_PAGES or self.ended.are_many or len(self.copies.hidden) >= MOST_COPIES:
                self._end = lower
                break
            rows = Slice(sources.partition, lower, limit=PAGE, max_bytes=PAGE_BYTES, ahead=True, bodies=needs_bodies)
            page = await sources.read(rows)
            if self.horizon == FIRST:
                self.horizon = (page.horizon, LOW_MIN)
            lower = page.next or lower
            seen += [message.position for message in page.messages]
            unfinished = [message for message in page.messages if not state.is_done(message.position)]
            unknown = [message for message in unfinished if not state.is_known(message.position)]
            firsts = await sources.firsts(state, self.copies, unknown)
            live = sources.split_ended([one for one in unfinished if state.is_known(one.position)], self.ended)
            new = sources.split_ended(firsts, self.ended)
            self.ended.saw_live(new)
            self._rows = self._rows or bool(live or new or len(firsts) < len(unknown))
            self._following = min([self._following, *(message.expires + self._wait for message in live + new)])
            if not page.more:
                await self._search_delayed(sources)
                break
        end = min(lower, self.horizon)
        if start <= above:
            self.chain.seen, self.chain.bound = seen, end
        stored = set(seen)
        self._gone = sorted(one for one in state.outstanding if start <= one < end and one not in stored)[:MOST_IDS]

    @property
    def _wait(self) -> int:
        return due_after(self._margin)

    async def _search_delayed(self, sources: Sources) -> None:
        """Searches a delayed message, which ends after all messages that are posted now."""
        if not self._rows:
            lower = self._now, LOW_MIN
            delayed = Slice(sources.partition, lower, limit=1, delayed=False, due=False, bodies=False)
            self._rows = bool((await sources.read(delayed)).messages)

    def edit(self, draft: EntryDraft) -> None:
        draft.drop(self._gone)
        self.expire(draft)
        self.passed = draft.advance(self.chain.bound, self.chain.seen, delete=True)

    def result(self, state: State) -> ExpiryTurn:
        unfinished = {
            position: self._due(state, position) for position in self.ended.all if not state.is_done(position)
        }
        is_moving = state.move is not None and state.move.chunk > 0
        following = min([self._following, *unfinished.values()])
        if state.outbox or is_moving:
            following = min(following, self._now + LETTERS_TICKS)
        # There was no room for these.
        again = min((position for position, due in unfinished.items() if due <= self._now), default=None)
        return ExpiryTurn(
            given_up=len(self.ended.all) - len(unfinished),
            next=again or self._end,
            following=following,
            horizon=self.horizon[0],
            is_unfinished=bool(self._rows or unfinished or state.outstanding or state.outbox or is_moving),
        )

    def _due(self, state: State, position: Position) -> int:
        """Returns when an expired message may be given up: when its claim ends, if a worker has it."""
        end, claim = self.ended.all[position], state.outstanding.get(position)
        if claim is None or not claim.expires or position in state.resting:
            return end + self._wait
        claim_end = claim.expires * TICKS_PER_MILLISECOND + ids.EPOCH_TICKS
        return min(max(end, claim_end) + self._wait, end + LIVE_SECONDS * TICKS_PER_SECOND)
