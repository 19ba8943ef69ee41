"""Finds messages that were not delivered yet, without reading the known ones again and again.

A process remembers, per partition, its ``front``: how far it has read. The front is a hint, no proof. Ids of
several web processes become visible out of order, so scans begin a little below it now and then; and messages that
become visible even later are found by a chain of reads from the cursor up to the horizon, which alone may move the
cursor.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec.structs import replace

from queuey import ids
from queuey.claims import MOST_ABOVE, MOST_UNCONFIRMED, EntryDraft, ScanDuplicates, State
from queuey.ids import FIRST, LOW_MIN, Position
from queuey.messages import Message, Page, Slice, rendered_bytes

LOOK_BACK = 0.5
"""Number of seconds below the front at which some scans begin."""
LOOK_BACK_EVERY = 0.1
CHAIN_EVERY = 1.0
"""Interval in seconds between chains of reads from the cursor, while the front is above it."""
CHAIN_SOON = 0.1
"""Interval in seconds after a chain that was cut short."""
CHAIN = 2000
"""Max known messages in a chain, if there are new ones above the front: polls wait for it."""
PAGE = 1000
"""Max messages of one read."""
MOST_COPIES = 2000
"""Max duplicates that are remembered of one scan."""
MOST_PAGES = 64
"""Max pages of one scan. It goes on from there the next time."""

Read = Callable[[Slice], Awaitable[Page]]
SplitDuplicates = Callable[["ScanDuplicates", "list[Message]"], Awaitable["list[Message]"]]
"""Returns messages that may be delivered, and records the others, which are copies in a dedup queue."""


class ContiguousRead(msgspec.Struct):
    """Contiguous reads from the cursor on.

    Attributes:
        bound: All messages above the cursor and below this are in ``seen``.
        seen: Positions, ascending.
        horizon: Of the first read, which the bound is not above; None: there was no read.
    """

    bound: Position = FIRST
    seen: list[Position] = []
    horizon: Position | None = None

    def saw(self, page: Page, positions: Sequence[Position], end: Position) -> None:
        self.horizon = self.horizon or (page.horizon, LOW_MIN)
        self.seen += positions
        self.bound = min(self.horizon, end)


class ScanResult(msgspec.Struct):
    """Result of a scan.

    Attributes:
        fresh: Messages that the state does not have yet, in order.
        size: Their bytes.
        chain: The contiguous reads.
        ahead: Positions of the forward part, ascending.
        end: Where that part was cut short; None: it reached its end.
        copies: Found in a dedup queue.
        stopped: There were very many copies.
        full: Nothing above the horizon was read, because too much is remembered.
    """

    fresh: list[Message]
    size: int = 0
    chain: ContiguousRead = msgspec.field(default_factory=ContiguousRead)
    ahead: list[Position] = []
    end: Position | None = None
    copies: ScanDuplicates = msgspec.field(default_factory=ScanDuplicates)
    stopped: bool = False
    full: bool = False

    @property
    def is_cut(self) -> bool:
        """True if it has not read all that there was."""
        return self.stopped or self.end is not None


class Candidates:
    """Messages that a round has read for its polls.

    Args:
        state: By which they were read.

    Attributes:
        again: Messages whose claims have ended.
        gone: Those that are not there any more.
        dead: Those that become dead letters.
        scan: Result of a scan.
        full: Nothing new was searched, because there are too many claims.
        covers: The version of the covers by which copies were found.
        unread: Further claims have ended, whose messages were not read.
        by_key: They are of a queue that keeps keys. Then they are of use only for the state by which they were read:
            others of their keys may have been given since. And in an ordered queue a message that another process has
            passed, because it was gone, must not be given after later ones.
    """

    __slots__ = ("again", "by_key", "covers", "dead", "full", "gone", "scan", "unread")

    def __init__(self, state: State) -> None:
        self.again: list[Message] = []
        self.gone: list[Position] = []
        self.dead: list[Position] = []
        self.scan = ScanResult([])
        self.full = self.unread = self.by_key = False
        self.covers = state.covers.version

    @property
    def has_any(self) -> bool:
        """True if messages were found, even if they are gone or others got them."""
        return bool(self.again or self.gone or self.dead or self.scan.fresh)


class _Want(msgspec.Struct, frozen=True):
    """Purpose of some reads.

    Attributes:
        messages, max_bytes: Enough.
        forward: They go up to now.
        chained: They begin at the cursor.
        new: Most of their messages are not known.
    """

    messages: int
    max_bytes: int
    forward: bool = False
    chained: bool = False
    new: bool = False

    def satisfied(self, found: ScanResult) -> bool:
        return len(found.fresh) >= self.messages or found.size >= self.max_bytes


class Scanner:
    """Scans one partition. One scan at a time.

    ``page_bytes`` are the bodies of a read, which may have more than a poll wants.
    """

    __slots__ = ("_boottime", "_chain_at", "_front", "_looked_back", "_page_bytes", "_partition", "horizon")

    def __init__(self, partition: int, boottime: Callable[[], float], page_bytes: int) -> None:
        self._partition = partition
        self._page_bytes = page_bytes
        self._boottime = boottime
        self._front: Position = FIRST
        self.horizon: Position = FIRST
        """The highest horizon of a read: below it, a message that was not seen does not exist."""
        self._chain_at = 0.0
        self._looked_back = 0.0

    async def scan(
        self, state: State, now: int, wanted: int, max_bytes: int, read: Read, split_duplicates: SplitDuplicates
    ) -> ScanResult:
        """Reads messages until there are enough.

        Args:
            state: It may grow while this reads.
            now: Milliseconds since 1970.
            wanted: Enough messages.
            max_bytes: Bytes of the messages together, not counting the last one.
            read: Reads a slice.
            split_duplicates: Separates messages from copies.
        """
        found = ScanResult([])
        first = ids.following(state.cursor)
        front = max(self._front, first)
        if self.horizon == FIRST and (front > first or state.above):
            # The log was read just now, perhaps not for the first time: what is below the front is looked for at once.
            await self.look(read)
        boot = self._boottime()
        past = Slice(self._partition, first, min(front, self.horizon), ahead=True)
        left: Slice | None = None
        want = _Want(wanted, max_bytes, chained=True)
        if past.lower < past.upper and boot >= self._chain_at:
            # If much is remembered the cursor must move, whoever waits for it.
            most = CHAIN if len(state.above) < MOST_ABOVE // 2 else math.inf
            left = await self._look_again(state, found, past, want, read, split_duplicates, most)
            if found.chain.bound >= past.upper and not found.fresh:
                self._chain_at = boot + CHAIN_EVERY
            if want.satisfied(found):
                return found
        lower = front
        if front > first and boot - self._looked_back >= LOOK_BACK_EVERY:
            self._looked_back = boot
            lower = max(first, min(front, (ids.seconds_to_ticks(now / 1000 - LOOK_BACK), LOW_MIN)))
        full = len(state.above) >= MOST_ABOVE or len(state.covers.unconfirmed) >= MOST_UNCONFIRMED
        upper = self.horizon if full else ids.LAST
        part = Slice(self._partition, lower, max(lower, upper), ahead=True)
        if lower == first:
            found.chain, left = ContiguousRead(), None
        forward = _Want(wanted, max_bytes, forward=True, chained=lower == first, new=lower == front)
        await self._follow(state, found, part, forward, read, split_duplicates)
        if full:
            found.full = True
            found.end = found.end or part.upper
        if left is not None and want.satisfied(found):
            self._chain_at = boot + CHAIN_SOON
        elif left is not None:
            await self._look_again(state, found, left, want, read, split_duplicates)
            found.fresh.sort(key=lambda message: message.position)
        return found

    async def look(self, read: Read) -> None:
        """Reads no messages, only how far the horizon is."""
        page = await read(Slice(self._partition, ids.LAST, ids.LAST, ahead=True))
        self.horizon = max(self.horizon, (page.horizon, LOW_MIN))

    async def _look_again(
        self,
        state: State,
        found: ScanResult,
        part: Slice,
        want: _Want,
        read: Read,
        split_duplicates: SplitDuplicates,
        most: float = math.inf,
    ) -> Slice | None:
        """Reads ids for a chain up to a new message, and messages from there.

        After ``most`` known ones it stops and returns the rest.
        """
        part = replace(part, limit=PAGE, max_bytes=self._page_bytes, bodies=False)
        for _ in range(MOST_PAGES):
            page = await read(part)
            self.horizon = max(self.horizon, (page.horizon, LOW_MIN))
            positions = [message.position for message in page.messages]
            new = state.unknown(positions)
            end = min(new, default=page.next or part.lower)
            found.chain.saw(page, positions[: bisect_left(positions, end)], end)
            part = replace(part, lower=end)
            if new:
                # Late ones; or copies, of which there may be more.
                await self._follow(state, found, replace(part, bodies=True), want, read, split_duplicates)
                return None
            if not page.more:
                return None
            if len(found.chain.seen) >= most:
                break
        return part

    async def _follow(
        self, state: State, found: ScanResult, part: Slice, want: _Want, read: Read, split_duplicates: SplitDuplicates
    ) -> None:
        """Reads pages of a slice one after another until there is enough."""
        have = {message.position for message in found.fresh}
        # No tighter bound: a store may ask at a time for as many rows as fit if each is of the longest.
        part = replace(part, limit=PAGE, max_bytes=self._page_bytes)
        asked = replace(part, limit=min(PAGE, want.messages - len(found.fresh))) if want.new else part
        for _ in range(MOST_PAGES):
            page = await read(asked)
            self.horizon = max(self.horizon, (page.horizon, LOW_MIN))
            positions = [message.position for message in page.messages]
            new = state.unknown(positions) - have
            end = page.next if page.next is not None else asked.lower
            if want.chained:
                found.chain.saw(page, positions, end)
            if want.forward:
                found.ahead += positions
                found.end = end if page.more else None
            fresh = [message for message, position in zip(page.messages, positions, strict=True) if position in new]
            fresh = await split_duplicates(found.copies, fresh)
            _add(fresh, found, want.max_bytes)
            if not page.more or want.satisfied(found):
                return
            if len(found.copies.hidden) >= MOST_COPIES:
                found.stopped = True
                return
            asked = replace(part, lower=end)

    def passed(self, state: State, found: ScanResult) -> bool:
        """Moves the front up to the first message of the scan that was not delivered; returns whether it is higher."""
        before = self._front
        for position in found.ahead:
            if not state.is_known(position) and position not in found.copies.hidden:
                self._front = position
                break
        else:
            if found.ahead:
                self._front = max(self._front, ids.following(found.ahead[-1]), found.end or FIRST)
        return self._front > before

    def claimed(self, positions: Sequence[Position]) -> None:
        """Moves the front over messages that another process has delivered."""
        if positions:
            self._front = max(self._front, ids.following(max(positions)))


def _add(messages: Sequence[Message], found: ScanResult, max_bytes: int) -> None:
    """Adds messages until they have ``max_bytes`` together."""
    for message in messages:
        if found.size >= max_bytes:
            break
        found.fresh.append(message)
        found.size += rendered_bytes(message.body, message.meta)


def advance_cursor(draft: EntryDraft, chain: ContiguousRead, *, delete: bool = False) -> int:
    """Moves a draft's cursor as far as a chain of reads allows; returns how many messages it passes.

    The draft has the deliveries. ``delete``: duplicates are to be deleted.
    """
    return draft.advance(chain.bound, chain.seen, delete=delete)
