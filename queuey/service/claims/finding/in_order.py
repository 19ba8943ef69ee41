"""Scans of a queue that keeps keys: finds messages whose turn has come, among those that wait because of their keys.

In an ordered queue they wait for earlier ones of their keys, elsewhere until their keys have fewer claims. A process
reads each message once, and only below the horizon: there no further message can appear, so what it has read is
certain. It remembers the positions and keys of those that wait, and fetches them when their turn has come. So the front
is a proof here, and the cursor may follow it up to the first message that waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence

import msgspec
from msgspec.structs import replace

from queuey import ids
from queuey.claims import MOST_ABOVE, MOST_WAITING, State, Waiting
from queuey.claims.drafts import MOST_IDS
from queuey.ids import LOW_MIN, Position
from queuey.messages import Location, Message, Page, Slice, bytes_of
from queuey.service.claims.scans import MOST_PAGES, PAGE, ContiguousRead, Read, Scanner, ScanResult
from queuey.service.limits import Limits

Fetch = Callable[[Sequence[Location]], Awaitable[list[Message]]]
WEIGHT = 300
"""Cost of a waiting message in bytes of memory, about."""


class Wish(msgspec.Struct, frozen=True):
    """Polls' need of messages.

    Attributes:
        messages, max_bytes: Enough of them.
        free: Returns how many messages of a key the next entry can give.
        key_of: Returns the digest of a message's key.
        in_order: A message is of use only if all waiting messages of its key before it are given, too.
        exact: All that was acknowledged lies below the horizon of any read.
    """

    messages: int
    max_bytes: int
    free: Callable[[int], int]
    key_of: Callable[[Message], int]
    in_order: bool = False
    exact: bool = False


class OrderedScanner:
    """Scans one partition of a queue that keeps keys. One scan at a time.

    Attributes:
        waiting: Messages that were read and not delivered. Any process may deliver them.
        lags: The horizon is behind the clock: messages are deliverable some time after they are stored.
        moved: The last scan has read further than the one before, or has found that something is gone.
    """

    __slots__ = ("_fetch", "_limits", "_partition", "_read", "_scanner", "lags", "moved", "waiting")

    def __init__(self, scanner: Scanner, partition: int, limits: Limits, read: Read, fetch: Fetch) -> None:
        self._scanner = scanner
        self._read = read
        self._fetch = fetch
        self._partition = partition
        self._limits = limits
        self.waiting = Waiting()
        self.lags = self.moved = False

    @property
    def weight(self) -> int:
        return WEIGHT * len(self.waiting)

    @property
    def is_sure_of_nothing(self) -> bool:
        """True if a key that is freed makes no message deliverable: all was read, and nothing waits."""
        return self.waiting.front > ids.FIRST and not len(self.waiting)

    async def scan(self, state: State, wish: Wish) -> ScanResult:
        """Reads messages whose turn has probably come; the entry decides."""
        scan, waiting = ScanResult(wish.messages, wish.max_bytes), self.waiting
        self.lags = not wish.exact
        front = waiting.front = self._begin(state)
        await self._fetch_free(state, scan, wish)
        if not scan.stopped and not scan.has_enough:
            await self._read_on(state, scan, wish)
        self.moved = scan.stopped or waiting.front > front
        scan.fresh.sort(key=lambda message: message.position)
        scan.chain = self._chain(state, {message.position for message in scan.fresh})
        return scan

    def _begin(self, state: State) -> Position:
        """Returns the start of reads: no further on, though others have delivered messages there."""
        return max(self.waiting.front, ids.following(state.cursor))

    def _chain(self, state: State, found: Collection[Position]) -> ContiguousRead:
        """Returns a proof for the cursor: the front, and waiting messages up to the first one that was not found."""
        seen = []
        for position in self.waiting.ascending(state):
            seen.append(position)
            if position not in found:
                break
        return ContiguousRead(self.waiting.front, seen)

    async def _fetch_free(self, state: State, scan: ScanResult, wish: Wish) -> None:
        """Fetches waiting messages that are free, further ones if some are gone."""
        have: set[Position] = set()
        most, times = wish.messages, 1
        longest = self._limits.longest
        for _ in range(MOST_PAGES):
            chosen = self.waiting.choose(state, lambda key, times=times: times * wish.free(key), most)  # type: ignore[misc]
            left = [position for position in chosen if position not in have]
            if not left or scan.has_enough:
                return
            some = left[: max(1, (wish.max_bytes - scan.size) // longest)]
            messages = await self._fetch([(self._partition, position) for position in some])
            have.update(message.position for message in messages)
            scan.fresh += messages
            scan.size += bytes_of(messages)
            # All of them lie below a horizon, so what is not there will not come back.
            gone = [position for position in some if position not in have]
            self.waiting.drop(gone)
            if gone:
                most, times = min(MOST_IDS, 2 * most), 2 * times
        scan.stopped = True

    async def _read_on(self, state: State, scan: ScanResult, wish: Wish) -> None:
        """Reads from the front on until there is enough, or too much waits."""
        waiting = self.waiting
        if len(waiting) >= MOST_WAITING:
            waiting.sweep(state)
        upper = await self._upper(wish)
        if len(state.above) >= MOST_ABOVE:
            # Only what this process has forgotten, and others know.
            scan.full = True
            upper = min(upper, ids.following(max(state.above)))
        limit = min(PAGE, wish.messages - len(scan.fresh))
        part = Slice(self._partition, waiting.front, upper, limit=limit, max_bytes=self._limits.page_bytes, ahead=True)
        picked = Counter(map(wish.key_of, scan.fresh))
        for _ in range(MOST_PAGES):
            scan.full = scan.full or len(waiting) >= MOST_WAITING
            scan.end = part.lower if scan.full else None
            if part.lower >= part.upper or len(waiting) >= MOST_WAITING:
                return
            page = await self._read(part)
            end = self._certain(page)
            self._take(state, scan, wish, [one for one in page.messages if one.position < end], picked)
            waiting.front = max(waiting.front, end)
            more = page.more and end == page.next
            scan.end = end if more or scan.full else None
            if not more or scan.has_enough:
                return
            part = replace(part, lower=end, limit=PAGE)

    async def _upper(self, wish: Wish) -> Position:
        """Returns how far to read: nothing above the horizon is of use."""
        if wish.exact:
            return ids.LAST
        await self._scanner.look()
        return self._scanner.horizon

    def _certain(self, page: Page) -> Position:
        """Returns the position below which a page shows everything that there will ever be."""
        horizon = (page.horizon, LOW_MIN)
        self._scanner.horizon = max(self._scanner.horizon, horizon)
        return min(page.next or ids.FIRST, horizon)

    def _take(
        self, state: State, scan: ScanResult, wish: Wish, messages: Sequence[Message], picked: Counter[int]
    ) -> None:
        """Adds messages to the waiting ones, and picks those whose turn has come."""
        waiting = self.waiting
        for message in messages:
            position = message.position
            if state.is_known(position):
                continue
            key = wish.key_of(message)
            is_next = not wish.in_order or waiting.count(key) == picked[key]
            waiting.add(position, key)
            if is_next and picked[key] < wish.free(key) and not scan.has_enough:
                picked[key] += 1
                scan.add([message])
