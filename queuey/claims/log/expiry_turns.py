"""One turn at a partition's log that searches for expired messages, whether or not workers claim from the partition."""

from __future__ import annotations

from typing import NamedTuple

from queuey.claims.log.message_finder import MAX_COPIES, MAX_PAGE_MESSAGES, ReadingRequest, Sources
from queuey.claims.rules.entry_draft import MAX_ENTRY_IDS, EntryDraft
from queuey.claims.rules.expiry import CLAIMED_GRACE_SECONDS, ticks_until_due
from queuey.claims.rules.partition_state import State
from queuey.model import ids
from queuey.model.ids import FIRST, LOW_MIN, TICKS_MAX, TICKS_PER_SECOND, Position
from queuey.model.messages import Queue, Slice

MAX_PAGES = 8
"""Max pages read in one turn, during which other requests to the log wait."""
MAX_PAGE_BYTES = 1 << 20
"""Max bytes of a page's messages in a dedup queue, where their bodies are read."""
UNPUBLISHED_RETRY_TICKS = 10 * TICKS_PER_SECOND
"""Number of ticks until the next turn while dead letters are still unpublished."""
TICKS_PER_MILLISECOND = TICKS_PER_SECOND // 1000


class ExpiryTurn(NamedTuple):
    """Result of a turn.

    Attributes:
        given_up: Number of messages that become dead letters.
        next: Position from which the next turn continues; None at the end of the partition.
        following: When the first unfinished message that was read may be given up (ticks); ``TICKS_MAX`` if none may.
        horizon: Every message posted before this was seen (ticks).
        is_unfinished: A message is not done, or a dead letter is not published.
    """

    given_up: int
    next: Position | None
    following: int
    horizon: int
    is_unfinished: bool


class ExpiryRequest(ReadingRequest):
    """Gives up expired messages, claimed or not. The result is an :class:`ExpiryTurn`.

    Also ends outstanding messages that no longer exist, and advances the cursor. Reads at most ``MAX_PAGES`` pages.

    Args:
        queue: The queue's row.
        now: Current time in ticks.
        margin: Max difference between the clocks of two processes, in seconds.
        start: Where the previous turn ended; ``FIRST`` in the first turn.
    """

    __slots__ = ("_end", "_following", "_gone", "_has_live", "_margin", "_now", "_start")

    def __init__(self, queue: Queue, now: int, margin: float, start: Position = FIRST) -> None:
        self._now = now
        self._margin = margin
        self._start = start
        super().__init__(queue)

    def _reset(self) -> None:
        super()._reset()
        self._gone: list[Position] = []
        self._end: Position | None = None
        self._following = TICKS_MAX
        self._has_live = False
        """Some messages have not expired."""

    @property
    def depends_on_others(self) -> bool:
        return True  # An older state may lack the mark by which reads include expired messages.

    async def gather(self, state: State, sources: Sources) -> None:
        # Reads from the start of the turn; finds messages that have expired, and outstanding ones that are gone.
        self._reset()
        # Start at the first outstanding message, or above the cursor.
        above_cursor = ids.following(state.cursor)
        lower = start = max(self._start, min([above_cursor, *state.outstanding]))
        needs_bodies = sources.split is not None
        seen: list[Position] = []
        for page_number in range(MAX_PAGES + 1):
            if page_number == MAX_PAGES or self.expired.are_many or len(self.copies.hidden) >= MAX_COPIES:
                self._end = lower
                break
            rows = Slice(
                sources.partition,
                lower,
                limit=MAX_PAGE_MESSAGES,
                max_bytes=MAX_PAGE_BYTES,
                ahead=True,
                bodies=needs_bodies,
            )
            page = await sources.read(rows)
            if self.horizon == FIRST:
                self.horizon = (page.horizon, LOW_MIN)
            lower = page.next or lower
            seen += [message.position for message in page.messages]
            unfinished = [message for message in page.messages if not state.is_done(message.position)]
            unknown = [message for message in unfinished if not state.is_known(message.position)]
            firsts = await sources.split_copies(state, self.copies, unknown)
            live = sources.split_expired(
                [message for message in unfinished if state.is_known(message.position)], self.expired
            )
            new = sources.split_expired(firsts, self.expired)
            self.expired.record_live(new)
            self._has_live = self._has_live or bool(live or new or len(firsts) < len(unknown))
            self._following = min([self._following, *(message.expires + self._margin_ticks for message in live + new)])
            if not page.more:
                await self._search_delayed(sources)
                break
        end = min(lower, self.horizon)
        if start <= above_cursor:
            self.chain.seen, self.chain.bound = seen, end
        seen_positions = set(seen)
        self._gone = sorted(p for p in state.outstanding if start <= p < end and p not in seen_positions)[
            :MAX_ENTRY_IDS
        ]

    @property
    def _margin_ticks(self) -> int:
        return ticks_until_due(self._margin)

    async def _search_delayed(self, sources: Sources) -> None:
        if not self._has_live:
            lower = self._now, LOW_MIN
            delayed = Slice(sources.partition, lower, limit=1, keeps_read_delay=False, due=False, bodies=False)
            self._has_live = bool((await sources.read(delayed)).messages)

    def edit(self, draft: EntryDraft) -> None:
        draft.end_gone(self._gone)
        self.add_dead_letters(draft)
        self.passed = draft.advance(self.chain.bound, self.chain.seen, delete=True)

    def result(self, state: State) -> ExpiryTurn:
        unfinished = {
            position: self._give_up_time(state, position)
            for position in self.expired.expiries
            if not state.is_done(position)
        }
        is_moving = state.move is not None and state.move.chunk > 0
        following = min([self._following, *unfinished.values()])
        if state.outbox or is_moving:
            following = min(following, self._now + UNPUBLISHED_RETRY_TICKS)
        # The entry had no room for these.
        first_overdue = min((position for position, due in unfinished.items() if due <= self._now), default=None)
        return ExpiryTurn(
            given_up=len(self.expired.expiries) - len(unfinished),
            next=first_overdue or self._end,
            following=following,
            horizon=self.horizon[0],
            is_unfinished=bool(self._has_live or unfinished or state.outstanding or state.outbox or is_moving),
        )

    def _give_up_time(self, state: State, position: Position) -> int:
        """Returns when an expired message may be given up: after its claim, within ``CLAIMED_GRACE_SECONDS``."""
        end, claim = self.expired.expiries[position], state.outstanding.get(position)
        if claim is None or not claim.expires or position in state.resting:
            return end + self._margin_ticks
        claim_end = claim.expires * TICKS_PER_MILLISECOND + ids.EPOCH_TICKS
        return min(max(end, claim_end) + self._margin_ticks, end + CLAIMED_GRACE_SECONDS * TICKS_PER_SECOND)
