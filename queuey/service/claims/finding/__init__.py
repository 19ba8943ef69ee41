"""The reads of a round of a claim log for its polls: messages whose claims have ended, then new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from queuey.claims import (
    MOST_OUTSTANDING,
    ClaimTiming,
    LikelyPlaces,
    State,
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
from queuey.service.claims.requests import PollRequest, Request, SettleRequest
from queuey.service.claims.scans import PAGE, Candidates, Scanner, ScanResult
from queuey.service.core import Core
from queuey.service.limits import Limits
from queuey.storage import Store


class Finder:
    """Reads messages of one partition."""

    __slots__ = ("_core", "_limits", "_partition", "_store", "_timing", "duplicates", "ordered", "scanner")

    def __init__(self, store: Store, partition: int, core: Core, timing: ClaimTiming, limits: Limits) -> None:
        self._store = store
        self._partition = partition
        self._core = core
        self._timing = timing
        self._limits = limits
        self.scanner = Scanner(partition, core.boottime, limits.page_bytes)
        self.duplicates = Duplicates(store, partition, core, timing)
        self.ordered = OrderedScanner(self.scanner, partition, limits)
        """For the partitions of a queue that keeps keys."""

    async def find(
        self, queue: Queue, state: State, taken: Sequence[Request], polls: Sequence[PollRequest]
    ) -> Candidates:
        """Reads messages for polls; ``taken`` are all requests of the next entry."""
        found, read = Candidates(state), partial(self.read, queue)
        now = self._store.claim_now()
        expired = self._timing.expired(now)
        wanted = min(MOST_IDS, sum(poll.poll.limit for poll in polls))
        of_a_key = max(poll.poll.limit for poll in polls)
        found.by_key = by_key = queue.keeps_keys
        found.full = len(state.outstanding) >= MOST_OUTSTANDING
        limits = limits_of(queue, self._partition)
        places = None if limits is None else LikelyPlaces(state, limits, expired, _ending(taken))
        if places is not None and (wanted := min(wanted, places.of_all)) <= 0:
            return found
        if found.full or (by_key and self.scanner.horizon == FIRST):
            # Without a scan only this tells which of them are gone. In an ordered queue they hold others up.
            await self.scanner.look(read)
        left = min(self._limits.page_bytes, sum(poll.poll.max_bytes for poll in polls))
        ended: Callable[[int], list[Position]] = partial(state.ended, expired)
        if queue.kind == "ordered":
            ended = partial(ended_in_order, state, expired, of_a_key)
        elif places is not None:
            ended = places.ended
        left = await self._find_ended(queue, state, found, ended, wanted, left)
        if found.full or left <= 0 or len(found.again) >= wanted:
            return found
        wanted -= len(found.again)
        if by_key:
            exact = self._store.exact_horizon
            if queue.kind == "ordered" or places is None:
                free = partial(free_in_order, state, _freed(state, taken, found), of_a_key)
                wish = Wish(wanted, left, free, key_of, in_order=True, exact=exact)
            else:
                places.give(found.again)
                wish = Wish(wanted, left, places.of_key, limited_key_of, exact=exact)
            found.scan = await self.ordered.scan(state, wish, read, partial(self.fetch, queue))
        else:
            split_duplicates = self.duplicates.split_duplicates(queue, state)
            found.scan = await self.scanner.scan(state, now, wanted, left, read, split_duplicates)
        return found

    async def _find_ended(
        self,
        queue: Queue,
        state: State,
        found: Candidates,
        all_ended: Callable[[int], list[Position]],
        wanted: int,
        left: int,
    ) -> int:
        """Reads messages whose claims have ended, further ones if some are gone; returns the bytes left.

        Args:
            queue: The row.
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
            dead, ended, doubt = divided(state, ended, most_deliveries(queue))
            found.dead += dead
            while ended and left > 0:
                some, ended = [(self._partition, position) for position in ended[:step]], ended[step:]
                messages = await self.fetch(queue, some)
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

    async def fetch(self, queue: Queue, places: Sequence[Location]) -> list[Message]:
        return await self._core.in_thread(partial(self._store.fetch, queue, places))

    async def read(self, queue: Queue, part: Slice) -> Page:
        begin = partial(self._store.begin_read, queue, part)
        page: Page = await self._core.ended(begin, otherwise=lambda: self._store.read(queue, [part])[0])
        return page

    def passed(self, queue: Queue, state: State, scan: ScanResult) -> bool:
        """Records the deliveries of a scan; returns whether the next one begins further on."""
        return self.ordered.moved if queue.keeps_keys else self.scanner.passed(state, scan)


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
