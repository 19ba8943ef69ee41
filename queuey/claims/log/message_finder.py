"""Reads of a claim log's round for its polls: first messages whose claims have ended, then new ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter

from msgspec.structs import replace

from queuey.claims.log.follow_ups import delivery_limit
from queuey.claims.log.log_requests import LogRequest, PollRequest, SettleRequest
from queuey.claims.log.message_scanners import (
    MAX_PAGE_MESSAGES,
    Candidates,
    OrderedScanner,
    ScanDemand,
    Scanner,
    ScanResult,
)
from queuey.claims.log.move_turns import ReadingRequest, Sources
from queuey.claims.rules.covers import CoverDraft, ScanDuplicates, split_duplicates
from queuey.claims.rules.entry_draft import MAX_ENTRY_IDS
from queuey.claims.rules.expiry import EndedMessages, split_ended
from queuey.claims.rules.order import (
    Waiting,
    compute_key_digest,
    count_deliverable_in_order,
    find_ended_in_order,
    find_freed_keys,
)
from queuey.claims.rules.partition_state import MAX_OUTSTANDING, ClaimTiming, State
from queuey.claims.rules.places import ClaimLimits, LikelyPlaces, compute_limited_key_digest, find_claim_limits
from queuey.model import ids
from queuey.model.errors import QueueyError
from queuey.model.ids import FIRST, Position
from queuey.model.messages import Location, Message, Page, Queue, Slice, bytes_of
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.storage import Store

MAX_COVERS = 5_000
"""Max covers of representatives below the cursor that a state keeps; with more, covers are written to the store."""
TICKS_PER_MILLISECOND = 10_000
_limit_of, _max_bytes_of = attrgetter("poll.limit"), attrgetter("poll.max_bytes")


class Duplicates:
    """The covers of one partition in one process: looks up duplicates in the store, and stores covers.

    Attributes:
        row: The queue's row. Set before any read or write.
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
        """Returns the messages that may be delivered, and records the others in ``copies``.

        Reads covers from the store only if some of these digests may have one there.
        """
        fresh, digests = split_duplicates(state.covers, copies, messages)
        if digests:
            stored = await self._store.covers.read_covers(self.row, self._partition, digests)
            covered_until = dict.fromkeys(digests, 0) | stored
            fresh, _ = split_duplicates(state.covers, copies, messages, covered_until)
        return fresh

    def begin_draft(
        self, state: State, copies: ScanDuplicates, horizon: Position, now: int, below: Position = ids.LAST
    ) -> CoverDraft:
        """Begins the next entry's changes of covers. They hide copies whose ids were made before now.

        Args:
            state: State after the last entry.
            copies: Copies found by a scan.
            horizon: Horizon of a completed read.
            now: Milliseconds since 1970.
            below: Upper bound of the copies' positions.
        """
        until = 0 if horizon == ids.FIRST else horizon[0]
        if self._store.ids_follow_clocks:
            until = max(until, self._timing.expiry_limit(now) * TICKS_PER_MILLISECOND + ids.EPOCH_TICKS)
        return CoverDraft(state.covers, copies, min(until, below[0]))

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
        await self._store.covers.write_covers(self.row, self._partition, storable)
        self._written = covers.version, upto
        self._stored_until = max([self._stored_until, covers.stored_until, *(until for _, until in storable)])

    def find_written(self, state: State) -> tuple[int, Position] | None:
        """Returns ``CoverChanges.stored`` if this process has written the covers of this version, else None."""
        if self._written is None or self._written[0] != state.covers.version:
            return None
        return self._written[1]

    async def forget(self, state: State) -> None:
        """Removes covers from the store once the cursor has passed all of them."""
        until = self._stored_until = max(self._stored_until, state.covers.stored_until)
        # Another process may be writing covers that the cursor has not passed yet.
        if until and not state.covers.stored_until and (until, ids.LOW_MIN) <= ids.following(state.cursor):
            with suppress(QueueyError):  # The next round tries again.
                await self._store.covers.forget_covers(self.row, self._partition, until)
                self._stored_until = 0


class Finder:
    """Reads messages of one partition, as the queue's kind and limits require.

    The parts are chosen once per version of the row, so a plain queue without limits pays nothing for the other kinds.

    Attributes:
        row: The queue's row. Set by :meth:`use_row` before any read.
        scanner: Reads messages that were not delivered yet.
        duplicates: Covers of a dedup queue; else None.
        ordered: Scanner of a queue that keeps keys; else None.
        waiting: Messages of an ordered queue that wait for others of their keys; else None.
        claim_limits: Max live claims; None if there is no limit.
        max_deliveries: Max deliveries of a message; 0 if there is no limit.
        includes_ended: Reads include messages that have ended.
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
        self.includes_ended = False
        self._read_at = 0
        """Start of the last read (ticks), in a log that keeps messages that have ended."""

    def use_row(self, row: Queue) -> None:
        """Adapts to the row of a queue. Its kind and whether it keeps keys never change."""
        self.row = row
        self.claim_limits = find_claim_limits(row, self._partition)
        self.max_deliveries = delivery_limit(row)
        if row.kind == "dedup" and self.duplicates is None:
            self.duplicates = Duplicates(self._store, self._partition, self._core, self._timing)
            self.scanner.split = self.duplicates.split
        if self.duplicates is not None:
            self.duplicates.row = row
        if row.keeps_keys and self.ordered is None:
            readers = self._core, self.read, self.fetch
            self.ordered = OrderedScanner(self.scanner, self._partition, self._limits, *readers)
            self.waiting = self.ordered.waiting if row.kind == "ordered" else None

    async def find(self, state: State, taken: Sequence[LogRequest], polls: Sequence[PollRequest]) -> Candidates:
        """Reads messages for polls: first those whose claims have ended, then new ones.

        Reads no more than the polls request, one entry may have, and limits of claims allow. ``taken`` are all requests
        of the round: their receipts may free keys and places.
        """
        if self.includes_ended != state.keeps_expired:
            self._adapt_to_log(state)
        if self.duplicates is not None:
            await self.duplicates.write(state)
        now = self._store.claim_logs.claim_now()
        expired = self._timing.expiry_limit(now)
        limits = list(map(_limit_of, polls))
        max_messages, max_per_key = min(MAX_ENTRY_IDS, sum(limits)), max(limits)
        max_bytes = min(self._limits.page_bytes, sum(map(_max_bytes_of, polls)))
        candidates = Candidates(
            by_key=self.ordered is not None, covers=state.covers.version, includes_ended=state.keeps_expired
        )
        candidates.full = len(state.outstanding) >= MAX_OUTSTANDING
        places = (
            None if self.claim_limits is None else LikelyPlaces(state, self.claim_limits, expired, _find_ending(taken))
        )
        if places is not None and (max_messages := min(max_messages, places.total_estimate)) <= 0:
            return candidates
        has_ended = bool(state.find_ended(expired, 1))
        if candidates.full or (self.scanner.horizon == FIRST and (candidates.by_key or has_ended)):
            # Without a scan, only the horizon shows which messages are gone. In an ordered queue these block others. A
            # log may be read again for each claim: then no scan shows it before the messages whose claims have ended.
            await self.scanner.refresh_horizon()
        if has_ended:
            ended = partial(state.find_ended, expired) if places is None else places.find_ended
            if self.waiting is not None:
                ended = partial(find_ended_in_order, state, expired, max_per_key)
            max_bytes = await self._read_ended(state, candidates, ended, max_messages, max_bytes)
            max_messages -= len(candidates.returned)
        if candidates.full or max_bytes <= 0 or max_messages <= 0:
            return candidates
        if self.ordered is None:
            candidates.scan = await self.scanner.scan(state, now, max_messages, max_bytes)
            return candidates
        exact = self._store.messages.exact_horizon
        if self.waiting is not None or places is None:
            free = partial(count_deliverable_in_order, state, _find_freed(state, taken, candidates), max_per_key)
            demand = ScanDemand(max_messages, max_bytes, free, compute_key_digest, in_order=True, exact=exact)
        else:
            places.take_places(candidates.returned)
            demand = ScanDemand(
                max_messages, max_bytes, places.estimate_for_key, compute_limited_key_digest, exact=exact
            )
        candidates.scan = await self.ordered.scan(state, demand)
        return candidates

    def _adapt_to_log(self, state: State) -> None:
        """Chooses what reads include by the log: expired messages may exist after the queue has dropped the option.

        Forgets the waiting messages.
        """
        self.includes_ended = state.keeps_expired
        self.scanner.split_ended = self._split_ended if state.keeps_expired else None
        if self.ordered is not None:
            # Its front lies above messages that had ended and were not read.
            self.ordered.waiting.clear()

    def _split_ended(self, messages: list[Message], ended: EndedMessages) -> list[Message]:
        # By the time of the read: a row that still exists some seconds after its end is a kept message.
        return split_ended(messages, ended, self._read_at, self._timing.margin)

    async def gather_for(self, state: State, request: ReadingRequest) -> None:
        """Lets a move or an expiry gather its messages, after writing covers if there are too many.

        Raises the scanner's horizon to that of its reads.
        """
        if self.includes_ended != state.keeps_expired:
            self._adapt_to_log(state)
        if self.duplicates is not None:
            await self.duplicates.write(state)
        expired = self._timing.expiry_limit(self._store.claim_logs.claim_now())
        live = self.scanner.split_live
        await request.gather(state, Sources(self._partition, expired, self.fetch, self.read, self.scanner.split, live))
        self.scanner.horizon = max(self.scanner.horizon, request.horizon)

    async def _read_ended(
        self,
        state: State,
        candidates: Candidates,
        all_ended: Callable[[int], list[Position]],
        max_messages: int,
        max_bytes: int,
    ) -> int:
        """Reads messages whose claims have ended; returns the bytes left.

        Cancelled and missing messages are ``gone``, messages at the limit of deliveries ``dead_letters``, expired ones
        ``ended``. Others are read instead. Sets ``unread`` if some remain although there are too few messages.

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
                live = self.scanner.split_live(messages, candidates.ended)
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

    def record_scan(self, state: State, scan: ScanResult) -> bool:
        """Records the deliveries of a scan; returns whether the next scan begins further on."""
        return self.scanner.advance_front(state, scan) if self.ordered is None else self.ordered.moved

    async def fetch(self, locations: Sequence[Location]) -> list[Message]:
        if self.includes_ended:
            self._read_at = self._store.claim_logs.claim_time()
        return await self._store.messages.fetch(self.row, locations, kept=self.includes_ended)

    async def read(self, requested: Slice) -> Page:
        """Reads a page; if the queue keeps expired messages, with those, and records the time of the read."""
        if self.includes_ended:
            self._read_at, requested = self._store.claim_logs.claim_time(), replace(requested, kept=True)
        [page] = await self._store.messages.read(self.row, [requested])
        return page


def _find_ending(requests: Sequence[LogRequest]) -> Iterator[Position]:
    """Yields the messages whose claims end by receipts that come with the polls."""
    for request in requests:
        if isinstance(request, SettleRequest) and request.kind not in {"renew", "verify", "check"}:
            yield from (receipt.position for receipt in request.receipts)


def _find_freed(state: State, requests: Sequence[LogRequest], candidates: Candidates) -> set[int]:
    """Returns the busy keys of which the next entry may deliver more messages.

    All outstanding messages of such a key are acknowledged or given up by receipts that come with the polls, are gone,
    become dead letters, or are delivered again.
    """
    if not state.busy:
        return set()
    ending = {"acknowledge", "give_up"}
    settles = [request for request in requests if isinstance(request, SettleRequest) and request.kind in ending]
    ended = [receipt.position for request in settles for receipt in request.receipts]
    redelivered = [message.position for message in candidates.returned]
    return find_freed_keys(state, [*ended, *candidates.gone, *candidates.dead_letters, *redelivered])


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
