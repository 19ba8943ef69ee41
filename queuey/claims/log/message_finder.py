"""Finds the messages for a round of a claim log: those whose claims have ended, then messages not delivered yet.

A process remembers for each partition its ``front``: how far it has read. The front is a hint, not a proof. Ids of
several web processes become visible out of order, so some scans begin a little below the front. Messages that become
visible even later are found by a chain of reads from the cursor up to the horizon. Only this chain may move the cursor.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from queuey.claims.log.follow_ups import delivery_limit
from queuey.claims.log.log_requests import LogRequest, PollRequest, SettleRequest
from queuey.claims.rules.covers import MAX_UNCONFIRMED, ScanDuplicates, split_duplicates
from queuey.claims.rules.entry_draft import MAX_ENTRY_IDS, EntryDraft
from queuey.claims.rules.expiry import ExpiredMessages, split_expired
from queuey.claims.rules.kinds import rules_of
from queuey.claims.rules.kinds.plain import NO_PARTS, ClaimLimits, LogParts, PlainRules, PlainSearch
from queuey.claims.rules.partition_state import MAX_ABOVE, MAX_OUTSTANDING, ClaimTiming, State
from queuey.claims.rules.waiting import MAX_WAITING, Waiting
from queuey.model import ids
from queuey.model.deadletters import queue_for
from queuey.model.errors import QueueyError
from queuey.model.ids import FIRST, LAST, LOW_MIN, Position
from queuey.model.messages import Location, Message, Page, Queue, Slice, bytes_of, position_of, rendered_bytes
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.storage import Store

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
MAX_COPIES = 2000
WAITING_MESSAGE_BYTES = 300
"""Cost of a waiting message in bytes of memory, approximately."""
MAX_SCAN_PAGES = 64
"""Max pages of one scan. The next scan continues from there."""
MAX_COVERS = 5_000
"""Max covers of representatives below the cursor that a state keeps; with more, covers are written to the store."""
TICKS_PER_MILLISECOND = 10_000
_FINISHING = {"acknowledge", "give_up"}
_ENDING = _FINISHING | {"release", "fail"}
"""Kinds of requests that make messages done, and that end claims."""
_limit_of, _max_bytes_of = attrgetter("poll.limit"), attrgetter("poll.max_bytes")

Fetch = Callable[[Sequence[Location]], Awaitable[list[Message]]]
Read = Callable[[Slice], Awaitable[Page]]
SplitDuplicates = Callable[[State, ScanDuplicates, list[Message]], Awaitable[list[Message]]]
"""Returns the messages that may be delivered, and records the others as copies, in a dedup queue."""
SplitExpired = Callable[[list[Message], ExpiredMessages], list[Message]]
"""Returns the messages that have not expired, and records the others, in a log that keeps them."""


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
        expired: Messages that have expired, in a log that keeps them.
        stopped: The scan stopped because of too many copies or expired messages.
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
    expired: ExpiredMessages = msgspec.field(default_factory=ExpiredMessages)
    stopped: bool = False
    full: bool = False

    @property
    def has_enough(self) -> bool:
        return len(self.fresh) >= self.max_messages or self.size >= self.max_bytes

    def add(self, messages: Iterable[Message]) -> None:
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
        includes_expired: Reads have included messages that have expired.
        expired: Messages that have expired, and whose claims have ended.
        unread: More claims have ended, whose messages were not read.
        by_key: The queue keeps keys. Then candidates are valid only for the state by which they were read: other
            messages of their keys may have been delivered since, and in an ordered queue a message that another process
            has skipped as gone must not be delivered after later ones.
    """

    by_key: bool
    covers: int
    includes_expired: bool = False
    returned: list[Message] = []
    gone: list[Position] = []
    dead_letters: list[Position] = []
    expired: ExpiredMessages = msgspec.field(default_factory=ExpiredMessages)
    scan: ScanResult = msgspec.field(default_factory=ScanResult)
    full: bool = False
    unread: bool = False

    @property
    def has_any(self) -> bool:
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
        split_expired: Separates live messages from expired ones, in a log that keeps these; else None.
    """

    def __init__(self, partition: int, boottime: Callable[[], float], page_bytes: int, read: Read) -> None:
        self.partition = partition
        self._page_bytes = page_bytes
        self._boottime = boottime
        self.read = read
        self._front: Position = FIRST
        self._chain_at = 0.0
        self._looked_back_at = 0.0
        self.horizon: Position = FIRST
        self.split: SplitDuplicates | None = None
        self.split_expired: SplitExpired | None = None

    def split_live(self, messages: list[Message], expired: ExpiredMessages) -> list[Message]:
        return messages if self.split_expired is None else self.split_expired(messages, expired)

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
            past = Slice(self.partition, first, certain, ahead=True)
            # If much is remembered, the cursor must move, even if polls wait for it.
            max_known = MAX_KNOWN_IN_CHAIN if len(state.above) < MAX_ABOVE // 2 else math.inf
            unread = await self._read_chain(state, result, past, max_known)
            if result.chain.bound >= certain and not result.fresh:
                self._chain_at = boot + CHAIN_INTERVAL
            # Expired messages block the cursor: more is delivered once some of them are dead letters.
            result.full = full and bool(result.expired.expiries)
            result.stopped = result.stopped or result.full
            if result.has_enough or result.full:
                return result
        lower = front
        if front > first and boot - self._looked_back_at >= LOOK_BACK_INTERVAL:
            self._looked_back_at = boot
            lower = max(first, min(front, (ids.seconds_to_ticks(now / 1000 - LOOK_BACK_SECONDS), LOW_MIN)))
        upper = self.horizon if full else ids.LAST
        # Above the front most messages are new, so no more are read than polls need. The bytes stay those of a page: a
        # store may count each row with the max length.
        limit = min(MAX_PAGE_MESSAGES, max_messages - len(result.fresh)) if lower == front else MAX_PAGE_MESSAGES
        forward_slice = Slice(
            self.partition, lower, max(lower, upper), limit=limit, max_bytes=self._page_bytes, ahead=True
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
        page = await self.read(Slice(self.partition, ids.LAST, ids.LAST, ahead=True))
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
            page = await self.read(part)
            self.horizon = max(self.horizon, (page.horizon, LOW_MIN))
            positions = list(map(position_of, page.messages))
            new = state.find_unknown(positions)
            if new and self.split is None and self.split_expired is not None:
                unknown = [message for message in page.messages if message.position in new]
                new = {message.position for message in self.split_expired(unknown, result.expired)}
            end = min(new, default=page.next or part.lower)
            result.chain.add_page(page, positions[: bisect_left(positions, end)], end)
            part = replace(part, lower=end)
            if new:
                # Late messages, or copies, of which there may be more.
                await self._follow(state, result, replace(part, bodies=True), forward=False, chained=True)
                return None
            if not page.more:
                return None
            if len(result.chain.seen) >= max_known or result.expired.are_many:
                result.stopped = result.expired.are_many
                break
        return part

    async def _follow(self, state: State, result: ScanResult, part: Slice, *, forward: bool, chained: bool) -> None:
        """Reads pages of a slice until there are enough messages, or too many copies or expired ones.

        Args:
            state: May grow during the reads.
            result: Receives the messages.
            part: The slice; its limit applies to the first page.
            forward: The slice is open at its upper end.
            chained: The slice begins at the cursor, or where the chain ended.
        """
        found_positions = {message.position for message in result.fresh} if result.fresh else set()
        for _ in range(MAX_SCAN_PAGES):
            page = await self.read(part)
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
            if self.split_expired is not None:
                fresh = self.split_expired(fresh, result.expired)
                result.expired.record_live(fresh)
            result.add(fresh)
            if not page.more or result.has_enough:
                return
            if len(result.copies.hidden) >= MAX_COPIES or result.expired.are_many:
                result.stopped = True
                return
            part = replace(part, lower=end, limit=MAX_PAGE_MESSAGES)

    def advance_front(self, state: State, result: ScanResult) -> bool:
        """Moves the front to the first message of a scan that is still free, or past the scan if none is.

        Returns whether it has moved up.
        """
        before = self._front
        for position in result.ahead:
            if not (
                state.is_known(position) or position in result.copies.hidden or position in result.expired.expiries
            ):
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
        search: What the queue's kind decides.
        exact: All acknowledged posts lie below the horizon of any read.
    """

    messages: int
    max_bytes: int
    search: PlainSearch
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

    __slots__ = ("_core", "_fetch", "_limits", "_scanner", "lags", "moved", "waiting")

    def __init__(self, scanner: Scanner, limits: Limits, core: Core, fetch: Fetch, waiting: Waiting) -> None:
        self._scanner = scanner
        self._core = core
        self._fetch = fetch
        self._limits = limits
        self.waiting = waiting
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
        scan.chain = self._make_chain(
            state, {message.position for message in scan.fresh} | scan.expired.expiries.keys()
        )
        if scan.expired.expiries:
            live = (position for position in waiting.iterate(state) if position not in scan.expired.expiries)
            scan.expired.first_live = next(live, ids.LAST)
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
        fetched: set[Position] = set()
        limit, times = demand.messages, 1
        longest = self._limits.longest
        for _ in range(MAX_SCAN_PAGES):
            choose = partial(self.waiting.choose, state, partial(_estimate, demand.search, times), limit)
            chosen = await self._core.compute(len(self.waiting), choose)
            remaining = [position for position in chosen if position not in fetched]
            if not remaining or scan.has_enough:
                return
            batch = remaining[: max(1, (demand.max_bytes - scan.size) // longest)]
            messages = await self._fetch([(self._scanner.partition, position) for position in batch])
            fetched.update(message.position for message in messages)
            live = self._scanner.split_live(messages, scan.expired)
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
            self._scanner.partition, waiting.front, upper, limit=limit, max_bytes=self._limits.page_bytes, ahead=True
        )
        picked = Counter(map(demand.search.compute_key, scan.fresh))
        for _ in range(MAX_SCAN_PAGES):
            scan.full = scan.full or len(waiting) >= MAX_WAITING
            scan.end = unread.lower if scan.full else None
            if unread.lower >= unread.upper or len(waiting) >= MAX_WAITING:
                return
            page = await self._scanner.read(unread)
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
        horizon = (page.horizon, LOW_MIN)
        self._scanner.horizon = max(self._scanner.horizon, horizon)
        return min(page.next or ids.FIRST, horizon)

    def _remember_page(
        self, state: State, scan: ScanResult, demand: ScanDemand, messages: Sequence[Message], picked: Counter[int]
    ) -> None:
        """Remembers the unknown messages of a page as waiting, and adds messages that may be delivered now to the scan.

        Expired messages also wait, are recorded in ``scan.expired``, and are never added to the scan. ``picked`` counts
        the messages of the scan by key.
        """
        waiting, search = self.waiting, demand.search
        self._scanner.split_live(
            [message for message in messages if not state.is_known(message.position)], scan.expired
        )
        for message in messages:
            position = message.position
            if state.is_known(position):
                continue
            key = search.compute_key(message)
            if position in scan.expired.expiries:
                waiting.add(position, key)
                continue
            is_next = not search.in_order or waiting.count(key) == picked[key]
            waiting.add(position, key)
            if is_next and picked[key] < search.estimate_for_key(key) and not scan.has_enough:
                picked[key] += 1
                scan.add([message])


def _estimate(search: PlainSearch, times: int, key: int) -> int:
    return times * search.estimate_for_key(key)


class Sources(NamedTuple):
    """What a :class:`ReadingRequest` reads with.

    Attributes:
        partition: Number of the partition.
        expiry_limit: Claims with an expiry below this are over (milliseconds since 1970).
        split: Separates messages from copies, in a dedup queue; else None.
        split_expired: Separates live messages from expired ones, in a log that keeps these.
    """

    partition: int
    expiry_limit: int
    fetch: Fetch
    read: Read
    split: SplitDuplicates | None
    split_expired: SplitExpired

    async def split_copies(self, state: State, copies: ScanDuplicates, messages: list[Message]) -> list[Message]:
        return messages if self.split is None else await self.split(state, copies, messages)


class ReadingRequest(LogRequest):
    """A request that reads messages for itself and has an entry to itself."""

    __slots__ = ("chain", "copies", "expired", "horizon", "passed")

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue, MAX_ENTRY_IDS)
        self._reset()

    def _reset(self) -> None:
        self.chain = ContiguousRead()
        """Contiguous reads from the cursor, up to the horizon."""
        self.copies = ScanDuplicates()
        """Copies found in a dedup queue, which are not moved."""
        self.expired = ExpiredMessages()
        """Messages that have expired, in a log that keeps them."""
        self.horizon: Position = FIRST
        """The horizon of the first read."""
        self.passed = 0
        """Number of messages that the cursor passes."""

    @property
    def below(self) -> Position:
        return LAST

    @abstractmethod
    async def gather(self, state: State, sources: Sources) -> None:
        """Reads what :meth:`edit` adds to the next entry. If another process appends first, it is called again."""

    def add_dead_letters(self, draft: EntryDraft) -> None:
        draft.expire(self.expired, queue_for(self.queue.name, self.queue.dead_letter))


class Duplicates(msgspec.Struct, eq=False):
    """The covers of one partition in one process: looks up duplicates in the store, and stores covers.

    Attributes:
        store: Store of the covers.
        partition: Number of the partition.
        timing: Decides when claims are over.
        row: The queue's row.
        written: A version of the covers, and ``CoverChanges.stored`` of what this process has written of it.
        stored_until: The highest ``until`` that this process has written or read (ticks), or 0.
    """

    store: Store
    partition: int
    timing: ClaimTiming
    row: Queue
    written: tuple[int, tuple[int, Position]] | None = None
    stored_until: int = 0

    async def split(self, state: State, copies: ScanDuplicates, messages: list[Message]) -> list[Message]:
        """Returns the messages that may be delivered, and records the others in ``copies``.

        Reads covers from the store only if some of these digests may have one there.
        """
        fresh, digests = split_duplicates(state.covers, copies, messages)
        if digests:
            stored = await self.store.covers.read_covers(self.row, self.partition, digests)
            covered_until = dict.fromkeys(digests, 0) | stored
            fresh, _ = split_duplicates(state.covers, copies, messages, covered_until)
        return fresh

    def choose_until(self, horizon: Position, now: int, below: Position) -> int:
        """Returns the bound below which all ids were made before now (ticks).

        Args:
            horizon: Horizon of a completed read.
            now: Milliseconds since 1970.
            below: Upper bound of the copies' positions.
        """
        until = 0 if horizon == ids.FIRST else horizon[0]
        if self.store.ids_follow_clocks:
            until = max(until, self.timing.expiry_limit(now) * TICKS_PER_MILLISECOND + ids.EPOCH_TICKS)
        return min(until, below[0])

    async def write(self, state: State) -> None:
        """Writes covers to the store if the state has too many of them.

        Raises:
            StoreUnavailable: The write failed. Then no messages may be delivered that add covers.
        """
        covers = state.covers
        if len(covers.by_digest) - len(covers.unconfirmed) < MAX_COVERS or self.find_written(state) is not None:
            return
        upto = state.number, state.cursor
        storable = covers.find_storable(state.cursor, state.number)
        await self.store.covers.write_covers(self.row, self.partition, storable)
        self.written = covers.version, upto
        self.stored_until = max([self.stored_until, covers.stored_until, *(until for _, until in storable)])

    def find_written(self, state: State) -> tuple[int, Position] | None:
        """Returns ``CoverChanges.stored`` if this process has written the covers of this version, else None."""
        if self.written is None or self.written[0] != state.covers.version:
            return None
        return self.written[1]

    async def forget(self, state: State) -> None:
        until = self.stored_until = max(self.stored_until, state.covers.stored_until)
        # Another process may be writing covers that the cursor has not passed yet.
        if until and not state.covers.stored_until and (until, ids.LOW_MIN) <= ids.following(state.cursor):
            with suppress(QueueyError):  # The next round tries again.
                await self.store.covers.forget_covers(self.row, self.partition, until)
                self.stored_until = 0


class Finder:
    """Reads messages of one partition, as the queue's kind and limits require.

    The parts are chosen once per version of the row, so a plain queue without limits pays nothing for the other kinds.

    Attributes:
        row: The queue's row. Set by :meth:`use_row` before any read.
        kind: What the queue's kind decides.
        parts: What this process knows of the log beside its state.
        scanner: Reads messages that were not delivered yet.
        duplicates: Covers of a dedup queue; else None.
        ordered: Scanner of a queue that keeps keys; else None.
        max_deliveries: Max deliveries of a message; 0 if there is no limit.
        includes_expired: Reads include messages that have expired.
    """

    def __init__(self, store: Store, partition: int, core: Core, timing: ClaimTiming, limits: Limits) -> None:
        self._store = store
        self._partition = partition
        self._core = core
        self._timing = timing
        self._limits = limits
        self.row: Queue
        self.scanner = Scanner(partition, core.boottime, limits.page_bytes, self.read)
        self.duplicates: Duplicates | None = None
        self.ordered: OrderedScanner | None = None
        self.kind = PlainRules
        self.parts = NO_PARTS
        self.max_deliveries = 0
        self.includes_expired = False
        self._read_at = 0
        """Start of the last read (ticks), in a log that keeps messages that have expired."""

    def use_row(self, row: Queue) -> None:
        self.row = row
        self.kind = rules_of(row)
        if self.kind is not PlainRules:
            self.parts = LogParts() if self.parts is NO_PARTS else self.parts
            self.parts.limits = ClaimLimits(row.share_of(self._partition), row.max_claimed_per_key)
        self.max_deliveries = delivery_limit(row)
        if row.traits.unites_bodies:
            self.duplicates = self.duplicates or Duplicates(self._store, self._partition, self._timing, row)
            self.duplicates.row, self.scanner.split = row, self.duplicates.split
        if row.traits.stores_keys and self.ordered is None:
            self.ordered = OrderedScanner(self.scanner, self._limits, self._core, self.fetch, self.parts.waiting)

    def record_copies(
        self, duplicates: Duplicates, state: State, request: LogRequest, candidates: Candidates | None, now: int
    ) -> None:
        """Records the copies that the next entry's only ``request``, or the search for candidates, has read."""
        parts, below = self.parts, LAST
        if isinstance(request, ReadingRequest):
            parts.copies, below = request.copies, request.below
        else:
            parts.copies = ScanDuplicates() if candidates is None else candidates.scan.copies
        parts.until = duplicates.choose_until(self.scanner.horizon, now, below)
        parts.written = duplicates.find_written(state)

    async def find(self, state: State, taken: Sequence[LogRequest], polls: Sequence[PollRequest]) -> Candidates:
        """Reads messages for polls: first those whose claims have ended, then new ones.

        Reads no more than the polls request, one entry may have, and limits of claims allow. ``taken`` are all requests
        of the round: their receipts may free keys and places.
        """
        if self.includes_expired != state.keeps_expired:
            self._adapt_to_log(state)
        if self.duplicates is not None:
            await self.duplicates.write(state)
        now = self._store.clock.now_ms()
        expiry_limit = self._timing.expiry_limit(now)
        limits = list(map(_limit_of, polls))
        max_messages, max_per_key = min(MAX_ENTRY_IDS, sum(limits)), max(limits)
        max_bytes = min(self._limits.page_bytes, sum(map(_max_bytes_of, polls)))
        is_full = len(state.outstanding) >= MAX_OUTSTANDING
        is_keyed, version, keeps_expired = self.ordered is not None, state.covers.version, state.keeps_expired
        candidates = Candidates(by_key=is_keyed, covers=version, includes_expired=keeps_expired, full=is_full)
        requests = partial(_find_settled, taken, _ENDING), partial(_find_settled, taken, _FINISHING)
        search = self.kind.search(state, expiry_limit, self.parts.limits, *requests, max_per_key)
        if (max_messages := min(max_messages, search.room)) <= 0:
            return candidates
        has_ended = bool(state.find_ended(expiry_limit, 1))
        if candidates.full or (self.scanner.horizon == FIRST and (candidates.by_key or has_ended)):
            # Without a scan, only the horizon shows which messages are gone. In an ordered queue these block others. A
            # log may be read again for each claim: then no scan shows it before the messages whose claims have ended.
            await self.scanner.refresh_horizon()
        if has_ended:
            max_bytes = await self._read_returned(state, candidates, search.find_ended, max_messages, max_bytes)
            max_messages -= len(candidates.returned)
        if candidates.full or max_bytes <= 0 or max_messages <= 0:
            return candidates
        if self.ordered is None:
            candidates.scan = await self.scanner.scan(state, now, max_messages, max_bytes)
            return candidates
        search.record_returned(candidates.returned, candidates.gone + candidates.dead_letters)
        demand = ScanDemand(max_messages, max_bytes, search, self._store.messages.exact_horizon)
        candidates.scan = await self.ordered.scan(state, demand)
        return candidates

    def _adapt_to_log(self, state: State) -> None:
        """Chooses what reads include by the log: expired messages may exist after the queue has dropped the option.

        Forgets the waiting messages.
        """
        self.includes_expired = state.keeps_expired
        self.scanner.split_expired = self._split_expired if state.keeps_expired else None
        if self.ordered is not None:
            # Its front lies above messages that had expired and were not read.
            self.ordered.waiting.clear()

    def _split_expired(self, messages: list[Message], expired: ExpiredMessages) -> list[Message]:
        # By the time of the read: a row that still exists some seconds after its expiry is a kept message.
        return split_expired(messages, expired, self._read_at, self._timing.margin)

    async def gather_for(self, state: State, request: ReadingRequest) -> None:
        """Lets a move or an expiry gather its messages, after writing covers if there are too many.

        Raises the scanner's horizon to that of its reads.
        """
        if self.includes_expired != state.keeps_expired:
            self._adapt_to_log(state)
        if self.duplicates is not None:
            await self.duplicates.write(state)
        expiry_limit = self._timing.expiry_limit(self._store.clock.now_ms())
        live = self.scanner.split_live
        await request.gather(
            state, Sources(self._partition, expiry_limit, self.fetch, self.read, self.scanner.split, live)
        )
        self.scanner.horizon = max(self.scanner.horizon, request.horizon)

    async def _read_returned(
        self,
        state: State,
        candidates: Candidates,
        all_ended: Callable[[int], list[Position]],
        max_messages: int,
        max_bytes: int,
    ) -> int:
        """Reads messages whose claims have ended; returns the bytes left.

        Cancelled and missing messages are ``gone``, messages at the limit of deliveries ``dead_letters``, expired ones
        ``expired``. Others are read instead. Sets ``unread`` if some remain although there are too few messages.

        Args:
            state: State after the last entry.
            candidates: Receives the messages.
            all_ended: Returns the first ended messages, at most as many as its argument.
            max_messages: Number of messages that is enough.
            max_bytes: Max bytes.
        """
        horizon, longest = self.scanner.horizon, self._limits.longest
        step, tried_count, max_positions = max(1, max_bytes // longest), 0, max_messages
        while (
            max_bytes > 0
            and len(candidates.returned) < max_messages
            and (ended := all_ended(max_positions)[tried_count:])
        ):
            tried_count, max_positions = tried_count + len(ended), min(MAX_ENTRY_IDS, 2 * max_positions)
            if state.cancelled:
                candidates.gone += [place for place in ended if place in state.cancelled]
                ended = [place for place in ended if place not in state.cancelled]
            dead, ended, doubt = split_by_deliveries(state, ended, self.max_deliveries)
            candidates.dead_letters += dead
            while ended and max_bytes > 0:
                batch, ended = [(self._partition, position) for position in ended[:step]], ended[step:]
                messages = await self.fetch(batch)
                existing = {message.position for message in messages}
                live = self.scanner.split_live(messages, candidates.expired)
                candidates.returned += (kept := [message for message in live if message.position not in doubt])
                candidates.dead_letters += [place for place in sorted(existing & doubt) if place < horizon]
                # A message missing above the horizon may not be visible yet.
                candidates.gone += [place for _, place in batch if place not in existing and place < horizon]
                max_bytes -= bytes_of(kept)
                # As many as fit into the remaining bytes, if they are about as long as these.
                fitting = (len(messages) or MAX_PAGE_MESSAGES) * max_bytes // max(1, bytes_of(messages))
                step = max(1, min(self._limits.page_bytes // longest, fitting))
        candidates.unread = len(candidates.returned) < max_messages and bool(all_ended(tried_count + 1)[tried_count:])
        return max_bytes

    async def fetch(self, locations: Sequence[Location]) -> list[Message]:
        if self.includes_expired:
            self._read_at = self._store.clock.now_ticks()
        return await self._store.messages.fetch(self.row, locations, kept=self.includes_expired)

    async def read(self, requested: Slice) -> Page:
        if self.includes_expired:
            self._read_at, requested = self._store.clock.now_ticks(), replace(requested, kept=True)
        [page] = await self._store.messages.read(self.row, [requested])
        return page


def _find_settled(requests: Sequence[LogRequest], kinds: Collection[str]) -> Iterator[Position]:
    """Yields the messages of receipts that come with the polls, of requests of some kinds."""
    for request in requests:
        if isinstance(request, SettleRequest) and request.kind in kinds:
            yield from (receipt.position for receipt in request.receipts)


def split_by_deliveries(
    state: State, ended: Collection[Position], max_deliveries: int
) -> tuple[list[Position], list[Position], set[Position]]:
    """Divides messages whose claims have ended by their number of deliveries.

    Args:
        state: State that has the claims.
        ended: Positions of the messages.
        max_deliveries: Max deliveries of a message; 0 for no limit.

    Returns:
        The messages that become dead letters; the others; and those of the others that reached the limit but may be
        gone, so that their copies would have to be delivered.
    """
    if not max_deliveries:
        return [], list(ended), set()
    exhausted = {place for place in ended if state.outstanding[place].attempts >= max_deliveries}
    doubt = exhausted & state.covers.by_representative.keys()
    dead = exhausted - doubt
    return [place for place in ended if place in dead], [place for place in ended if place not in dead], doubt
