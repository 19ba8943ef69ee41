"""Finds messages that were not delivered yet, without reading known ones repeatedly.

A process remembers for each partition its ``front``: how far it has read. The front is a hint, not a proof. Ids of
several web processes become visible out of order, so some scans begin a little below the front. Messages that become
visible even later are found by a chain of reads from the cursor up to the horizon. Only this chain may move the cursor.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from queuey.claims.rules.covers import MAX_UNCONFIRMED, ScanDuplicates
from queuey.claims.rules.entry_draft import MAX_ENTRY_IDS
from queuey.claims.rules.expiry import EndedMessages
from queuey.claims.rules.order import MAX_WAITING, Waiting
from queuey.claims.rules.partition_state import MAX_ABOVE, State
from queuey.model import ids
from queuey.model.ids import FIRST, LOW_MIN, Position
from queuey.model.messages import Location, Message, Page, Slice, bytes_of, position_of, rendered_bytes
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits

LOOK_BACK_SECONDS = 0.5
"""Number of seconds below the front at which some scans begin."""
LOOK_BACK_INTERVAL = 0.1
"""Interval in seconds between scans that begin below the front."""
CHAIN_INTERVAL = 1.0
"""Interval in seconds between chains of reads from the cursor, while the front is above it."""
CHAIN_RETRY_INTERVAL = 0.1
"""Interval in seconds until the next chain after one that was cut short."""
MAX_KNOWN_IN_CHAIN = 2000
"""Max known messages in a chain before reads above the front, because polls wait for it."""
MAX_PAGE_MESSAGES = 1000
"""Max messages of one read."""
MAX_COPIES = 2000
"""Max copies remembered of one scan."""
WAITING_MESSAGE_BYTES = 300
"""Cost of a waiting message in bytes of memory, approximately."""
MAX_SCAN_PAGES = 64
"""Max pages of one scan. The next scan continues from there."""

Fetch = Callable[[Sequence[Location]], Awaitable[list[Message]]]
Read = Callable[[Slice], Awaitable[Page]]
SplitDuplicates = Callable[[State, ScanDuplicates, list[Message]], Awaitable[list[Message]]]
"""Returns the messages that may be delivered, and records the others as copies, in a dedup queue."""
SplitEnded = Callable[[list[Message], EndedMessages], list[Message]]
"""Returns the messages that have not ended, and records the others, in a log that keeps them."""


class ContiguousRead(msgspec.Struct):
    """Contiguous reads from the cursor.

    Attributes:
        bound: All messages above the cursor and below this are in ``seen``.
        seen: Positions, ascending.
        horizon: Horizon of the first read, an upper limit of ``bound``; None before the first read.
    """

    bound: Position = FIRST
    seen: list[Position] = []
    horizon: Position | None = None

    def add_page(self, page: Page, positions: Sequence[Position], end: Position) -> None:
        """Adds the positions of a page that ends at ``end``; ``bound`` stays at or below the first page's horizon."""
        self.horizon = self.horizon or (page.horizon, LOW_MIN)
        self.seen += positions
        self.bound = min(self.horizon, end)


class ScanResult(msgspec.Struct):
    """Result of a scan.

    Attributes:
        max_messages, max_bytes: The scan has enough if it has this many messages, or this many bytes of them.
        fresh: Messages that the state does not have yet, in order.
        size: Bytes of ``fresh``.
        chain: The contiguous reads.
        ahead: Positions read from the front on, ascending.
        end: Where the reads from the front were cut short; None if they reached the end.
        copies: Copies found in a dedup queue.
        ended: Messages that have ended, in a log that keeps them.
        stopped: The scan stopped because of too many copies or ended messages.
        full: Nothing above the horizon was read, because too much is remembered.
    """

    max_messages: int = 0
    max_bytes: int = 0
    fresh: list[Message] = []
    size: int = 0
    chain: ContiguousRead = msgspec.field(default_factory=ContiguousRead)
    ahead: list[Position] = []
    end: Position | None = None
    copies: ScanDuplicates = msgspec.field(default_factory=ScanDuplicates)
    ended: EndedMessages = msgspec.field(default_factory=EndedMessages)
    stopped: bool = False
    full: bool = False

    @property
    def is_cut(self) -> bool:
        return self.stopped or self.end is not None

    @property
    def has_enough(self) -> bool:
        return len(self.fresh) >= self.max_messages or self.size >= self.max_bytes

    def add(self, messages: Iterable[Message]) -> None:
        """Adds messages until ``max_bytes`` are reached; drops the others."""
        for message in messages:
            if self.size >= self.max_bytes:
                break
            self.fresh.append(message)
            self.size += rendered_bytes(message.body, message.meta)


class Candidates(msgspec.Struct):
    """Messages that a round has read for its polls.

    Attributes:
        returned: Messages whose claims have ended: they are delivered again.
        gone: Positions of messages that no longer exist.
        dead_letters: Positions of messages that become dead letters.
        scan: Result of a scan.
        full: No new messages were searched, because the partition has too many claims.
        covers: Version of the covers by which copies were found.
        includes_ended: Reads have included messages that have ended.
        ended: Messages that have ended, and whose claims have ended.
        unread: More claims have ended, whose messages were not read.
        by_key: The queue keeps keys. Then candidates are valid only for the state by which they were read: other
            messages of their keys may have been delivered since, and in an ordered queue a message that another process
            has skipped as gone must not be delivered after later ones.
    """

    by_key: bool
    covers: int
    includes_ended: bool = False
    returned: list[Message] = []
    gone: list[Position] = []
    dead_letters: list[Position] = []
    ended: EndedMessages = msgspec.field(default_factory=EndedMessages)
    scan: ScanResult = msgspec.field(default_factory=ScanResult)
    full: bool = False
    unread: bool = False

    @property
    def has_any(self) -> bool:
        """True if messages were found, even if they are gone or other callers got them."""
        return bool(self.returned or self.gone or self.dead_letters or self.scan.fresh)


class Scanner:
    """Scans one partition of a queue that does not keep keys, one scan at a time.

    Args:
        partition: Number of the partition.
        boottime: A clock.
        page_bytes: Max bytes of a read's messages, which may exceed what a poll requests.
        read: Reads a slice.

    Attributes:
        horizon: The highest horizon of a read: a message below it that was not seen does not exist.
        split: Separates messages from copies, in a dedup queue; else None.
        split_ended: Separates live messages from expired ones, in a log that keeps these; else None.
    """

    def __init__(self, partition: int, boottime: Callable[[], float], page_bytes: int, read: Read) -> None:
        self._partition = partition
        self._page_bytes = page_bytes
        self._boottime = boottime
        self._read = read
        self._front: Position = FIRST
        self._chain_at = 0.0
        self._looked_back_at = 0.0
        self.horizon: Position = FIRST
        self.split: SplitDuplicates | None = None
        self.split_ended: SplitEnded | None = None

    def split_live(self, messages: list[Message], ended: EndedMessages) -> list[Message]:
        return messages if self.split_ended is None else self.split_ended(messages, ended)

    async def scan(self, state: State, now: int, max_messages: int, max_bytes: int) -> ScanResult:
        """Reads messages until there are enough: by the chain if it is due, then from the front or a little below it.

        If too much is remembered, reads nothing above the horizon, so that the cursor moves first.

        Args:
            state: May grow during the scan.
            now: Milliseconds since 1970.
            max_messages: Number of messages that is enough.
            max_bytes: Max bytes of the messages together, not counting the last one.
        """
        result = ScanResult(max_messages, max_bytes)
        first = ids.following(state.cursor)
        front = max(self._front, first)
        if self.horizon == FIRST and (front > first or state.above):
            # The log was just read, perhaps again: search messages below the front at once.
            await self.refresh_horizon()
        unread: Slice | None = None
        boot = self._boottime() if front > first else 0.0
        full = len(state.above) >= MAX_ABOVE or len(state.covers.unconfirmed) >= MAX_UNCONFIRMED
        if first < (certain := min(front, self.horizon)) and (boot >= self._chain_at or (full and state.keeps_expired)):
            past = Slice(self._partition, first, certain, ahead=True)
            # If much is remembered, the cursor must move, even if polls wait for it.
            max_known = MAX_KNOWN_IN_CHAIN if len(state.above) < MAX_ABOVE // 2 else math.inf
            unread = await self._read_chain(state, result, past, max_known)
            if result.chain.bound >= certain and not result.fresh:
                self._chain_at = boot + CHAIN_INTERVAL
            # Ended messages block the cursor: more is delivered once some of them are dead letters.
            result.full = full and bool(result.ended.expiries)
            result.stopped = result.stopped or result.full
            if result.has_enough or result.full:
                return result
        lower = front
        if front > first and boot - self._looked_back_at >= LOOK_BACK_INTERVAL:
            self._looked_back_at = boot
            lower = max(first, min(front, (ids.seconds_to_ticks(now / 1000 - LOOK_BACK_SECONDS), LOW_MIN)))
        upper = self.horizon if full else ids.LAST
        # Above the front most messages are new. The limit of bytes is no tighter, because a store may request only as
        # many rows as fit if each has the max length.
        limit = min(MAX_PAGE_MESSAGES, max_messages - len(result.fresh)) if lower == front else MAX_PAGE_MESSAGES
        forward_slice = Slice(
            self._partition, lower, max(lower, upper), limit=limit, max_bytes=self._page_bytes, ahead=True
        )
        if lower == first:
            result.chain, unread = ContiguousRead(), None
        await self._follow(state, result, forward_slice, forward=True, chained=lower == first)
        if full:
            result.full = True
            result.end = result.end or forward_slice.upper
        if unread is not None and result.has_enough:
            self._chain_at = boot + CHAIN_RETRY_INTERVAL
        elif unread is not None:
            await self._read_chain(state, result, unread)
            result.fresh.sort(key=lambda message: message.position)
        return result

    async def refresh_horizon(self) -> None:
        """Reads the horizon without messages; :attr:`horizon` never falls."""
        page = await self._read(Slice(self._partition, ids.LAST, ids.LAST, ahead=True))
        self.horizon = max(self.horizon, (page.horizon, LOW_MIN))

    async def _read_chain(
        self, state: State, result: ScanResult, part: Slice, max_known: float = math.inf
    ) -> Slice | None:
        """Reads ids for a chain up to the first new message, and messages from there.

        Stops after ``max_known`` known messages or too many pages, and returns the unread slice. Returns None if it has
        found a new message, or nothing is left.
        """
        part = replace(part, limit=MAX_PAGE_MESSAGES, max_bytes=self._page_bytes, bodies=False)
        for _ in range(MAX_SCAN_PAGES):
            page = await self._read(part)
            self.horizon = max(self.horizon, (page.horizon, LOW_MIN))
            positions = list(map(position_of, page.messages))
            new = state.find_unknown(positions)
            if new and self.split is None and self.split_ended is not None:
                unknown = [message for message in page.messages if message.position in new]
                new = {message.position for message in self.split_ended(unknown, result.ended)}
            end = min(new, default=page.next or part.lower)
            result.chain.add_page(page, positions[: bisect_left(positions, end)], end)
            part = replace(part, lower=end)
            if new:
                # Late messages, or copies, of which there may be more.
                await self._follow(state, result, replace(part, bodies=True), forward=False, chained=True)
                return None
            if not page.more:
                return None
            if len(result.chain.seen) >= max_known or result.ended.are_many:
                result.stopped = result.ended.are_many
                break
        return part

    async def _follow(self, state: State, result: ScanResult, part: Slice, *, forward: bool, chained: bool) -> None:
        """Reads pages of a slice until there are enough messages, or too many copies or ended ones.

        Args:
            state: May grow during the reads.
            result: Receives the messages.
            part: The slice; its limit applies to the first page.
            forward: The slice is open at its upper end.
            chained: The slice begins at the cursor, or where the chain ended.
        """
        found_positions = {message.position for message in result.fresh} if result.fresh else set()
        for _ in range(MAX_SCAN_PAGES):
            page = await self._read(part)
            self.horizon = max(self.horizon, (page.horizon, LOW_MIN))
            positions = list(map(position_of, page.messages))
            unknown = state.find_unknown(positions) - found_positions
            end = page.next if page.next is not None else part.lower
            if chained:
                result.chain.add_page(page, positions, end)
            if forward:
                result.ahead += positions
                result.end = end if page.more else None
            fresh = page.messages
            if len(unknown) < len(positions):
                fresh = [message for message in fresh if message.position in unknown]
            if self.split is not None:
                fresh = await self.split(state, result.copies, fresh)
            if self.split_ended is not None:
                fresh = self.split_ended(fresh, result.ended)
                result.ended.record_live(fresh)
            result.add(fresh)
            if not page.more or result.has_enough:
                return
            if len(result.copies.hidden) >= MAX_COPIES or result.ended.are_many:
                result.stopped = True
                return
            part = replace(part, lower=end, limit=MAX_PAGE_MESSAGES)

    def advance_front(self, state: State, result: ScanResult) -> bool:
        """Moves the front to the first message of a scan that is still free, or past the scan if none is.

        Returns whether it has moved up.
        """
        before = self._front
        for position in result.ahead:
            if not (state.is_known(position) or position in result.copies.hidden or position in result.ended.expiries):
                self._front = position
                break
        else:
            if result.ahead:
                self._front = max(self._front, ids.following(result.ahead[-1]), result.end or FIRST)
        return self._front > before

    def advance_front_past(self, positions: Sequence[Position]) -> None:
        if positions:
            self._front = max(self._front, ids.following(max(positions)))


class ScanDemand(msgspec.Struct, frozen=True):
    """Messages that the polls of a round request.

    Attributes:
        messages, max_bytes: Number of messages, or of their bytes, that is enough.
        free: Returns how many messages of a key the next entry can deliver.
        key_of: Returns the digest of a message's key.
        in_order: A message may be delivered only together with all waiting messages of its key before it.
        exact: All acknowledged posts lie below the horizon of any read.
    """

    messages: int
    max_bytes: int
    free: Callable[[int], int]
    key_of: Callable[[Message], int]
    in_order: bool = False
    exact: bool = False


class OrderedScanner:
    """Finds messages that may be delivered now, in a queue that keeps keys. One scan at a time.

    In an ordered queue, messages wait for earlier ones of their keys; in other queues, until their keys have fewer
    claims. A process reads each message once, and only below the horizon, where no further message can appear: so its
    reads are final. It remembers positions and keys of the waiting messages, and fetches the messages when they may be
    delivered. So here the front is a proof, and the cursor may follow it up to the first waiting message.

    Attributes:
        waiting: Messages that were read and not delivered. Any process may deliver them.
        lags: The horizon is behind the clock: messages are deliverable only some time after they are stored.
        moved: The last scan has read further than the one before, or was stopped early.
    """

    __slots__ = ("_core", "_fetch", "_limits", "_partition", "_read", "_scanner", "lags", "moved", "waiting")

    def __init__(self, scanner: Scanner, partition: int, limits: Limits, core: Core, read: Read, fetch: Fetch) -> None:
        self._scanner = scanner
        self._core = core
        self._read = read
        self._fetch = fetch
        self._partition = partition
        self._limits = limits
        self.waiting = Waiting()
        self.lags = self.moved = False

    @property
    def weight(self) -> int:
        return WAITING_MESSAGE_BYTES * len(self.waiting)

    @property
    def has_none_waiting(self) -> bool:
        """True if a freed key makes no message deliverable: messages were read, and none of them waits."""
        return self.waiting.front > ids.FIRST and not len(self.waiting)

    async def scan(self, state: State, demand: ScanDemand) -> ScanResult:
        """Finds messages for a demand: waiting ones whose keys are free, then new ones if these are not enough.

        Sets :attr:`lags` and :attr:`moved`.
        """
        scan, waiting = ScanResult(demand.messages, demand.max_bytes), self.waiting
        self.lags = not demand.exact
        front = waiting.front = self._find_start(state)
        await self._fetch_free(state, scan, demand)
        if not scan.stopped and not scan.has_enough:
            await self._read_on(state, scan, demand)
        self.moved = scan.stopped or waiting.front > front
        scan.fresh.sort(key=lambda message: message.position)
        scan.chain = self._make_chain(state, {message.position for message in scan.fresh} | scan.ended.expiries.keys())
        if scan.ended.expiries:
            live = (position for position in waiting.iterate(state) if position not in scan.ended.expiries)
            scan.ended.first_live = next(live, ids.LAST)
        return scan

    def _find_start(self, state: State) -> Position:
        """Returns where reads begin: the front, even if other processes delivered messages above it."""
        return max(self.waiting.front, ids.following(state.cursor))

    def _make_chain(self, state: State, chosen: Collection[Position]) -> ContiguousRead:
        """Returns the waiting positions up to the first unchosen one, inclusive: the cursor cannot pass that one."""
        seen = []
        for position in self.waiting.iterate(state):
            seen.append(position)
            if position not in chosen:
                break
        return ContiguousRead(self.waiting.front, seen)

    async def _fetch_free(self, state: State, scan: ScanResult, demand: ScanDemand) -> None:
        """Adds waiting messages whose keys are free to the scan, and forgets messages that are gone."""
        fetched: set[Position] = set()
        limit, times = demand.messages, 1
        longest = self._limits.longest
        for _ in range(MAX_SCAN_PAGES):
            choose = partial(self.waiting.choose, state, lambda key, times=times: times * demand.free(key), limit)  # type: ignore[misc]
            chosen = await self._core.compute(len(self.waiting), choose)
            remaining = [position for position in chosen if position not in fetched]
            if not remaining or scan.has_enough:
                return
            batch = remaining[: max(1, (demand.max_bytes - scan.size) // longest)]
            messages = await self._fetch([(self._partition, position) for position in batch])
            fetched.update(message.position for message in messages)
            live = self._scanner.split_live(messages, scan.ended)
            scan.fresh += live
            scan.size += bytes_of(live)
            # All of them lie below a horizon, so a missing message will not appear later.
            gone = [position for position in batch if position not in fetched]
            self.waiting.drop(gone)
            if gone or len(live) < len(messages):
                limit, times = min(MAX_ENTRY_IDS, 2 * limit), 2 * times
        scan.stopped = True

    async def _read_on(self, state: State, scan: ScanResult, demand: ScanDemand) -> None:
        """Reads from the front up to the horizon until the scan has enough; remembers what it reads as waiting.

        Sets ``full`` and stops if ``MAX_WAITING`` messages wait, or at the last known message if too much is
        remembered.
        """
        waiting = self.waiting
        if len(waiting) >= MAX_WAITING:
            await self._core.compute(len(waiting), partial(waiting.sweep, state))
        upper = await self._find_upper_bound(demand)
        if len(state.above) >= MAX_ABOVE:
            # Read no further than messages that the state knows already.
            scan.full = True
            upper = min(upper, ids.following(max(state.above)))
        limit = min(MAX_PAGE_MESSAGES, demand.messages - len(scan.fresh))
        unread = Slice(
            self._partition, waiting.front, upper, limit=limit, max_bytes=self._limits.page_bytes, ahead=True
        )
        picked = Counter(map(demand.key_of, scan.fresh))
        for _ in range(MAX_SCAN_PAGES):
            scan.full = scan.full or len(waiting) >= MAX_WAITING
            scan.end = unread.lower if scan.full else None
            if unread.lower >= unread.upper or len(waiting) >= MAX_WAITING:
                return
            page = await self._read(unread)
            end = self._find_final_end(page)
            final = [message for message in page.messages if message.position < end]
            await self._core.compute(len(final), partial(self._remember_page, state, scan, demand, final, picked))
            waiting.front = max(waiting.front, end)
            more = page.more and end == page.next
            scan.end = end if more or scan.full else None
            if not more or scan.has_enough:
                return
            unread = replace(unread, lower=end, limit=MAX_PAGE_MESSAGES)

    async def _find_upper_bound(self, demand: ScanDemand) -> Position:
        if demand.exact:
            return ids.LAST
        await self._scanner.refresh_horizon()
        return self._scanner.horizon

    def _find_final_end(self, page: Page) -> Position:
        """Returns the position below which the page is final, and raises the scanner's horizon to the page's."""
        horizon = (page.horizon, LOW_MIN)
        self._scanner.horizon = max(self._scanner.horizon, horizon)
        return min(page.next or ids.FIRST, horizon)

    def _remember_page(
        self, state: State, scan: ScanResult, demand: ScanDemand, messages: Sequence[Message], picked: Counter[int]
    ) -> None:
        """Remembers the unknown messages of a page as waiting, and adds messages that may be delivered now to the scan.

        Expired messages also wait, are recorded in ``scan.ended``, and are never added to the scan. ``picked`` counts
        the messages of the scan by key.
        """
        waiting = self.waiting
        self._scanner.split_live([message for message in messages if not state.is_known(message.position)], scan.ended)
        for message in messages:
            position = message.position
            if state.is_known(position):
                continue
            key = demand.key_of(message)
            if position in scan.ended.expiries:
                waiting.add(position, key)
                continue
            is_next = not demand.in_order or waiting.count(key) == picked[key]
            waiting.add(position, key)
            if is_next and picked[key] < demand.free(key) and not scan.has_enough:
                picked[key] += 1
                scan.add([message])
