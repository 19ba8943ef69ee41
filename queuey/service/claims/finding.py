"""The reads of a round of a claim log for its polls: messages whose claims have ended, then new ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from queuey import ids
from queuey.claims.covers import CoverDraft, ScanDuplicates, split_duplicates
from queuey.claims.drafts import MOST_IDS
from queuey.claims.expiry import EndedMessages, split_ended
from queuey.claims.order import Waiting, ended_in_order, free_in_order, freed_by, key_of
from queuey.claims.places import ClaimLimits, LikelyPlaces, limited_key_of, limits_of
from queuey.claims.state import MOST_OUTSTANDING, ClaimTiming, State
from queuey.errors import QueueyError
from queuey.ids import FIRST, Position
from queuey.messages import Location, Message, Page, Queue, Slice, bytes_of
from queuey.service.claims.follow_ups import most_deliveries
from queuey.service.claims.move_turns import ReadingRequest, Sources
from queuey.service.claims.requests import PollRequest, Request, SettleRequest
from queuey.service.claims.scans import PAGE, Candidates, OrderedScanner, Scanner, ScanResult, Wish
from queuey.service.core import Core
from queuey.service.limits import Limits
from queuey.storage import Store

MOST_COVERS = 5_000
"""Max covers in a state whose representatives are below the cursor; more are written to the store."""
TICKS_PER_MILLISECOND = 10_000


class Duplicates:
    """The covers of one partition in one process: looks duplicates up in the store, and stores covers.

    Attributes:
        row: The queue; set before anything is read or written.
    """

    __slots__ = ("_core", "_partition", "_store", "_stored_until", "_timing", "_written", "row")
    row: Queue

    def __init__(self, store: Store, partition: int, core: Core, timing: ClaimTiming) -> None:
        self._store = store
        self._partition = partition
        self._core = core
        self._timing = timing
        self._written: tuple[int, tuple[int, Position]] | None = None
        self._stored_until = 0

    async def split(self, state: State, copies: ScanDuplicates, messages: list[Message]) -> list[Message]:
        """Returns the messages of a read that may be delivered, and records the others, which are copies."""
        fresh, asked = split_duplicates(state.covers, copies, messages)
        if asked:
            found = await self._store.covers.read_covers(self.row, self._partition, asked)
            known = dict.fromkeys(asked, 0) | found
            fresh, _ = split_duplicates(state.covers, copies, messages, known)
        return fresh

    def draft(
        self, state: State, copies: ScanDuplicates, horizon: Position, now: int, below: Position = ids.LAST
    ) -> CoverDraft:
        """Begins the next entry's changes of covers.

        Args:
            state: After the last entry.
            copies: From a scan.
            horizon: Of a read that has been made.
            now: Milliseconds since 1970.
            below: Upper bound of the copies.
        """
        until = 0 if horizon == ids.FIRST else horizon[0]
        if self._store.ids_follow_clocks:
            until = max(until, self._timing.expired(now) * TICKS_PER_MILLISECOND + ids.EPOCH_TICKS)
        return CoverDraft(state.covers, copies, min(until, below[0]))

    async def write(self, state: State) -> None:
        """Writes covers to the store if the state has too many of them.

        Raises:
            StoreUnavailable: They cannot be written. Then nothing may be delivered that makes more.
        """
        covers = state.covers
        if len(covers.by_digest) - len(covers.unconfirmed) < MOST_COVERS or self.written(state) is not None:
            return
        upto = state.number, state.cursor
        there = covers.storable(state.cursor, state.number)
        await self._store.covers.write_covers(self.row, self._partition, there)
        self._written = covers.version, upto
        self._stored_until = max([self._stored_until, covers.stored_until, *(until for _, until in there)])

    def written(self, state: State) -> tuple[int, Position] | None:
        """Returns ``CoverChanges.stored`` for the covers that this process has written."""
        if self._written is None or self._written[0] != state.covers.version:
            return None
        return self._written[1]

    async def forget(self, state: State) -> None:
        """Removes covers from the store, if the cursor has passed all of them. If that fails, they expire."""
        until = self._stored_until = max(self._stored_until, state.covers.stored_until)
        # Another process may be writing those that the cursor has not passed yet.
        if until and not state.covers.stored_until and (until, ids.LOW_MIN) <= ids.following(state.cursor):
            self._stored_until = 0
            try:
                await self._store.covers.forget_covers(self.row, self._partition, until)
            except QueueyError:
                return


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
        keeps: Reads show messages that have ended.
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
        self.keeps = False
        self._read_at = 0
        """When the last read began (ticks), in a log that keeps messages that have ended."""

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
        if self.keeps != state.keeps:
            self._begin(state)
        if self.duplicates is not None:
            await self.duplicates.write(state)
        now = self._store.claim_logs.claim_now()
        expired = self._timing.expired(now)
        numbers = [request.poll.limit for request in polls]
        wanted, of_a_key = min(MOST_IDS, sum(numbers)), max(numbers)
        left = min(self._limits.page_bytes, sum([request.poll.max_bytes for request in polls]))
        found = Candidates(by_key=self.ordered is not None, covers=state.covers.version, keeps=state.keeps)
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
        exact = self._store.messages.exact_horizon
        if self.waiting is not None or places is None:
            free = partial(free_in_order, state, _freed(state, taken, found), of_a_key)
            wish = Wish(wanted, left, free, key_of, in_order=True, exact=exact)
        else:
            places.give(found.again)
            wish = Wish(wanted, left, places.of_key, limited_key_of, exact=exact)
        found.scan = await self.ordered.scan(state, wish)
        return found

    def _begin(self, state: State) -> None:
        """Chooses what reads show, by the log: expired messages may be there after the queue has dropped its option."""
        self.keeps = state.keeps
        self.scanner.split_ended = self._split_ended if state.keeps else None

    def _split_ended(self, messages: list[Message], ended: EndedMessages) -> list[Message]:
        # By the time of the read: a row that was there some seconds after its end is that of a kept message.
        return split_ended(messages, ended, self._read_at, self._timing.margin)

    async def gather(self, state: State, request: ReadingRequest) -> None:
        """Reads the messages of a request that is alone in its entry."""
        if self.keeps != state.keeps:
            self._begin(state)
        if self.duplicates is not None:
            await self.duplicates.write(state)
        expired = self._timing.expired(self._store.claim_logs.claim_now())
        live = self.scanner.live
        await request.gather(state, Sources(self._partition, expired, self.fetch, self.read, self.scanner.split, live))
        self.scanner.horizon = max(self.scanner.horizon, request.horizon)

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
            if state.cancelled:
                found.gone += [place for place in ended if place in state.cancelled]
                ended = [place for place in ended if place not in state.cancelled]
            dead, ended, doubt = divided(state, ended, self.max_deliveries)
            found.dead += dead
            while ended and left > 0:
                some, ended = [(self._partition, position) for position in ended[:step]], ended[step:]
                messages = await self.fetch(some)
                there = {message.position for message in messages}
                live = self.scanner.live(messages, found.ended)
                found.again += (kept := [message for message in live if message.position not in doubt])
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
        if self.keeps:
            self._read_at = self._store.claim_logs.claim_time()
        return await self._store.messages.fetch(self.row, places, kept=self.keeps)

    async def read(self, part: Slice) -> Page:
        row, rows = self.row, part
        if self.keeps:
            self._read_at, rows = self._store.claim_logs.claim_time(), replace(part, kept=True)
        [page] = await self._store.messages.read(row, [rows])
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


def divided(
    state: State, ended: Collection[Position], most: int
) -> tuple[list[Position], list[Position], set[Position]]:
    """Divides messages whose claims have ended.

    Args:
        state: Has them.
        ended: The messages.
        most: Max deliveries of one; 0: no limit.

    Returns:
        Those that become dead letters; the others; and those of these that were delivered as often, but may be
        gone, so that copies of them would have to be delivered.
    """
    if not most:
        return [], list(ended), set()
    often = {place for place in ended if state.outstanding[place].deliveries >= most}
    doubt = often & state.covers.by_representative.keys()
    dead = often - doubt
    return [place for place in ended if place in dead], [place for place in ended if place not in dead], doubt
