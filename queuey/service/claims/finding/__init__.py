"""The reads of a round of a claim log for its polls: messages whose claims have ended, then new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from queuey.claims import (
    MOST_OUTSTANDING,
    ClaimLimits,
    ClaimTiming,
    LikelyPlaces,
    State,
    Waiting,
    ended_in_order,
    free_in_order,
    freed_by,
    key_of,
    limited_key_of,
    limits_of,
)
from queuey.claims.drafts import MOST_IDS
from queuey.ids import FIRST, Position
from queuey.messages import Location, Message, Page, Queue, Slice, bytes_of
from queuey.service.claims.duplicates import Duplicates, divided
from queuey.service.claims.finding.in_order import OrderedScanner, Wish
from queuey.service.claims.follow_ups import most_deliveries
from queuey.service.claims.move_turns import MoveRequest
from queuey.service.claims.requests import PollRequest, Request, SettleRequest
from queuey.service.claims.scans import PAGE, Candidates, Scanner, ScanResult
from queuey.service.core import Core
from queuey.service.limits import Limits
from queuey.storage import Store


class Finder:
    """Reads messages of one partition, as the kind and the limits of its queue require.

    These are chosen once for each row of the queue, so a plain queue without limits has nothing of the other kinds.

    Attributes:
        row: The row by which they were chosen; set by :meth:`use` before anything is read.
        scanner: Reads messages that were not delivered yet.
        duplicates: In a dedup queue.
        ordered: In a queue that keeps keys.
        waiting: In an ordered queue: messages that wait for others of their keys.
        claim_limits: Max live claims; None if there is no limit.
        max_deliveries: Max deliveries of a message; 0 if there is no limit.
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
        self.waiting: Waiting | None = None
        self.claim_limits: ClaimLimits | None = None
        self.max_deliveries = 0

    def use(self, row: Queue) -> None:
        """Chooses what a queue requires. Its kind never changes, and neither does whether it keeps keys."""
        self.row = row
        self.claim_limits = limits_of(row, self._partition)
        self.max_deliveries = most_deliveries(row)
        if row.kind == "dedup" and self.duplicates is None:
            self.duplicates = Duplicates(self._store, self._partition, self._core, self._timing)
            self.scanner.split = self.duplicates.split
        if self.duplicates is not None:
            self.duplicates.row = row
        if row.keeps_keys and self.ordered is None:
            self.ordered = OrderedScanner(self.scanner, self._partition, self._limits, self.read, self.fetch)
            self.waiting = self.ordered.waiting if row.kind == "ordered" else None

    async def find(self, state: State, taken: Sequence[Request], polls: Sequence[PollRequest]) -> Candidates:
        """Reads messages for polls; ``taken`` are all requests of the next entry."""
        if self.duplicates is not None:
            await self.duplicates.write(state)
        now = self._store.claim_now()
        expired = self._timing.expired(now)
        numbers = [request.poll.limit for request in polls]
        wanted, of_a_key = min(MOST_IDS, sum(numbers)), max(numbers)
        left = min(self._limits.page_bytes, sum([request.poll.max_bytes for request in polls]))
        found = Candidates(by_key=self.ordered is not None, covers=state.covers.version)
        found.full = len(state.outstanding) >= MOST_OUTSTANDING
        places = None if self.claim_limits is None else LikelyPlaces(state, self.claim_limits, expired, _ending(taken))
        if places is not None and (wanted := min(wanted, places.of_all)) <= 0:
            return found
        if found.full or (found.by_key and self.scanner.horizon == FIRST):
            # Without a scan only this tells which of them are gone. In an ordered queue they hold others up.
            await self.scanner.look()
        if state.ended(expired, 1):
            ended = partial(state.ended, expired) if places is None else places.ended
            if self.waiting is not None:
                ended = partial(ended_in_order, state, expired, of_a_key)
            left = await self._find_ended(state, found, ended, wanted, left)
            wanted -= len(found.again)
        if found.full or left <= 0 or wanted <= 0:
            return found
        if self.ordered is None:
            found.scan = await self.scanner.scan(state, now, wanted, left)
            return found
        exact = self._store.exact_horizon
        if self.waiting is not None or places is None:
            free = partial(free_in_order, state, _freed(state, taken, found), of_a_key)
            wish = Wish(wanted, left, free, key_of, in_order=True, exact=exact)
        else:
            places.give(found.again)
            wish = Wish(wanted, left, places.of_key, limited_key_of, exact=exact)
        found.scan = await self.ordered.scan(state, wish)
        return found

    async def gather(self, state: State, move: MoveRequest) -> None:
        """Reads messages that a move may take."""
        if self.duplicates is not None:
            await self.duplicates.write(state)
        expired = self._timing.expired(self._store.claim_now())
        await move.gather(state, expired, self._partition, self.fetch, self.read, self.scanner.split)

    async def _find_ended(
        self, state: State, found: Candidates, all_ended: Callable[[int], list[Position]], wanted: int, left: int
    ) -> int:
        """Reads messages whose claims have ended, further ones if some are gone; returns the bytes left.

        Args:
            state: After the last entry.
            found: Is filled.
            all_ended: Returns the first ones, at most its argument.
            wanted: Enough messages.
            left: Bytes.
        """
        horizon, longest = self.scanner.horizon, self._limits.longest
        step, tried, most = max(1, left // longest), 0, wanted
        while left > 0 and len(found.again) < wanted and (ended := all_ended(most)[tried:]):
            tried, most = tried + len(ended), min(MOST_IDS, 2 * most)
            dead, ended, doubt = divided(state, ended, self.max_deliveries)
            found.dead += dead
            while ended and left > 0:
                some, ended = [(self._partition, position) for position in ended[:step]], ended[step:]
                messages = await self.fetch(some)
                there = {message.position for message in messages}
                found.again += (kept := [message for message in messages if message.position not in doubt])
                found.dead += [place for place in sorted(there & doubt) if place < horizon]
                # One that is not seen above the horizon may be on its way.
                found.gone += [place for _, place in some if place not in there and place < horizon]
                left -= bytes_of(kept)
                # As many as fit into what is left, if they are about as long as these.
                fit = (len(messages) or PAGE) * left // max(1, bytes_of(messages))
                step = max(1, min(self._limits.page_bytes // longest, fit))
        found.unread = len(found.again) < wanted and bool(all_ended(tried + 1)[tried:])
        return left

    def passed(self, state: State, scan: ScanResult) -> bool:
        """Records the deliveries of a scan; returns whether the next one begins further on."""
        return self.scanner.passed(state, scan) if self.ordered is None else self.ordered.moved

    async def fetch(self, places: Sequence[Location]) -> list[Message]:
        return await self._core.in_thread(partial(self._store.fetch, self.row, places))

    async def read(self, part: Slice) -> Page:
        row = self.row
        begin = partial(self._store.begin_read, row, part)
        page: Page = await self._core.ended(begin, otherwise=lambda: self._store.read(row, [part])[0])
        return page


def _ending(taken: Sequence[Request]) -> Iterator[Position]:
    """Yields the messages whose claims the receipts end that come with polls, unless they renew them."""
    for request in taken:
        if isinstance(request, SettleRequest) and request.kind not in {"renew", "verify", "check"}:
            yield from (receipt.position for receipt in request.receipts)


def _freed(state: State, taken: Sequence[Request], found: Candidates) -> set[int]:
    """Returns the busy keys of which the next entry may give further messages.

    All their outstanding messages are acknowledged by receipts that come with polls, or are gone, or are given again.
    """
    ending = {"acknowledge", "give_up"}
    settles = [request for request in taken if isinstance(request, SettleRequest) and request.kind in ending]
    ended = [receipt.position for request in settles for receipt in request.receipts]
    again = [message.position for message in found.again]
    return freed_by(state, [*ended, *found.gone, *found.dead, *again]) if state.busy else set()
