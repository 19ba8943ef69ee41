"""Claims with a mechanism taken out, for the table of mutations in :mod:`tests.sim.mutations.table`."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace as changed

from queuey.claims.claims import ClaimUseCases
from queuey.claims.log.finder import Duplicates
from queuey.claims.log.follow_ups import FollowUps, publish
from queuey.claims.log.forwarding import Forwarding
from queuey.claims.log.partition_log import REQUEST_TIMEOUT, PartitionLog, RoundEnd
from queuey.claims.log.requests import Key, PollRequest, Request, SettleRequest
from queuey.claims.log.scanners import Candidates, ContiguousRead, OrderedScanner, ScanDemand
from queuey.claims.rules.covers import CoverDraft, ScanDuplicates
from queuey.claims.rules.entries import CoverMade, Entry
from queuey.claims.rules.entry_draft import EntryDraft
from queuey.claims.rules.order import KeyHolders, OrderCheck
from queuey.claims.rules.partition_state import ClaimTiming, State
from queuey.claims.rules.places import FreePlaces, LikelyPlaces, Places
from queuey.claims.rules.receipts import ClaimReceipt, LastDelivery
from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.ids import Position
from queuey.model.messages import Location, LogEntry, Message, NewMessage, Page, Queue, Slice
from queuey.storage.deadlines import Done
from tests.sim.replicas import DELAY, Log, ModelStore, Replicas
from tests.sim.world import Process


class NoMargin(ClaimTiming):
    """Claims end by their writer's clock for all processes."""

    def expiry_limit(self, now: int) -> int:
        return now


class NoDeadline(ClaimTiming):
    """A claim is answered however late."""

    def seconds_to_answer(self, ttl: float) -> float:
        return math.inf


class Unconditional(Replicas):
    """Appends take effect whatever was appended before."""

    def compare(self, log: Log, entry: LogEntry) -> bool:
        return True


class LateHorizon(ModelStore):
    """The horizon of a page is sampled after the read; some answers take long."""

    def begin_read(self, queue: Queue, part: Slice, done: Callable[[Page | None, Exception | None], None]) -> bool:
        process, life = self._process, self._process.life

        def later(page: Page | None, error: Exception | None) -> None:
            def answer() -> None:
                if page is not None:
                    page.horizon = ids.seconds_to_ticks(process.clock() - DELAY)
                done(page, error)

            process.soon(process.world.rng.choice((0.0, 2.9)), answer, life)

        return super().begin_read(queue, part, later)


class HorizonAtClock(ModelStore):
    """The horizon is the clock, though writes take a while."""

    def begin_read(self, queue: Queue, part: Slice, done: Callable[[Page | None, Exception | None], None]) -> bool:
        horizon = ids.seconds_to_ticks(self._process.clock())

        def read(page: Page | None, error: Exception | None) -> None:
            if page is not None:
                page.horizon = horizon
            done(page, error)

        return super().begin_read(queue, part, read)


class ReadsAhead(ModelStore):
    """A read up to now also shows messages of the future."""

    def begin_read(self, queue: Queue, part: Slice, done: Callable[[Page | None, Exception | None], None]) -> bool:
        process = self._process
        ahead = Process(process.world, process.offset + 3.0)
        horizon = ids.seconds_to_ticks(process.clock() - DELAY)

        def read(page: Page | None, error: Exception | None) -> None:
            if page is not None:
                page.horizon = horizon
            process.soon(0.0, lambda: done(page, error), life)

        life = process.life
        return ModelStore(self._replicas, ahead).begin_read(queue, part, read)


async def answering_first(
    real: Callable[..., Awaitable[bool]], log: PartitionLog, queue: Queue, entry: Entry, taken: Sequence[Request]
) -> bool:
    for request in taken:
        if isinstance(request, PollRequest) and request.poll.given and request.poll.ttl:
            expires = entry.at + round(request.poll.ttl * 1000)
            receipt = partial(ClaimReceipt, log.key[1], number=log.state.number + 1)
            request.answer([(one, 1, receipt(*one.position), expires, 0, False) for one in request.poll.given])
        elif isinstance(request, SettleRequest):
            request.answer(request.settlements)
    applied: bool = await real(log, queue, entry, taken)
    return applied


class ReadOnce(ModelStore):
    """Decides an append in doubt by a single read."""

    def begin_append_entry(
        self, queue: Queue, partition: int, entry: LogEntry, done: Done, **options: int | None
    ) -> None:
        def ended(applied: bool | None, error: Exception | None) -> None:  # noqa: FBT001
            if isinstance(error, StoreUnavailable):
                try:
                    page = self.read_log(queue, partition, entry.number)
                except StoreUnavailable:
                    done(None, error)
                    return
                present = next((each for each in page.entries if each.number == entry.number), None)
                if present is not None:
                    done(present.body == entry.body, None)
                    return
                error.outcome = "none"
            done(applied, error)

        super().begin_append_entry(queue, partition, entry, ended, **options)


async def deleting_first(
    real: Callable[..., Awaitable[bool]], log: PartitionLog, queue: Queue, entry: Entry, taken: Sequence[Request]
) -> bool:
    if entry.delete:
        with suppress(StoreUnavailable):
            await log._store.messages.delete(queue, [(log.key[1], position) for position in entry.finals])
    applied: bool = await real(log, queue, entry, taken)
    return applied


async def publishing_first(
    real: Callable[..., Awaitable[bool]], log: PartitionLog, queue: Queue, entry: Entry, taken: Sequence[Request]
) -> bool:
    letters = {position: (target, deliveries) for position, target, deliveries in entry.outs}
    if letters:
        with suppress(StoreUnavailable):
            await publish(
                log._store,
                queue,
                log.key[1],
                letters,
                gone_below=ids.FIRST,
                now=log._store.claim_logs.claim_now() / 1000,
            )
    applied: bool = await real(log, queue, entry, taken)
    return applied


class Renumbering(ModelStore):
    """Gives a dead letter a new id each time."""

    def put(self, queue: Queue, locations: Sequence[Location], item: NewMessage) -> None:
        now = ids.seconds_to_ticks(self._process.clock())
        super().put(queue, [(partition, (now, low)) for partition, (_, low) in locations], item)


def knowing_no_keys(state: State, positions: list[Position], keys: list[int]) -> None:
    pass


def blocked_by_nothing_claimed(real: Callable[..., Any], check: OrderCheck, key: int) -> Any:  # noqa: ANN401
    """Treats claimed messages as done."""
    is_free = check._is_free
    check._is_done, check._is_free = (lambda one: one in check._state.outstanding and not is_free(one)), lambda _: True
    return real(check, key)


def giving_in_any_order(check: OrderCheck, caller: int, message: Message) -> bool:
    return True


def never_has_another(holders: KeyHolders, position: Position) -> bool:
    """Renews expired claims unless the message itself was given to another caller."""
    return False


async def reading_up_to_now(scanner: OrderedScanner, wish: ScanDemand) -> Position:
    await scanner._scanner.refresh_horizon()
    return ids.LAST


def count_whole_page_as_final(scanner: OrderedScanner, page: Page) -> Position:
    return page.next or ids.FIRST


def passing_what_waits(scanner: OrderedScanner, state: State, found: Collection[Position]) -> ContiguousRead:
    """Treats everything below the front as delivered."""
    return ContiguousRead(scanner.waiting.front)


def claiming_at_the_front(scanner: OrderedScanner, state: State) -> Position:
    known = [*state.outstanding, *state.above]
    return max([scanner.waiting.front, ids.following(state.cursor), *map(ids.following, known)])


def never_has_candidates(found: Candidates) -> bool:
    """Answers unsatisfied claims as if there were no messages."""
    return False


async def never_catch_up(log: PartitionLog, queue: Queue, polls: Sequence[PollRequest], *, always: bool) -> bool:
    return False


def answer_old_poll_empty(
    real: Callable[..., bool], log: PartitionLog, request: PollRequest, found: Candidates, end: RoundEnd
) -> bool:
    if end.decided - request.arrived < REQUEST_TIMEOUT or request.list_claimed(log.state, log.key[1], end.number):
        return real(log, request, found, end)
    request.answer([])
    return True


def answer_poll_in_doubt_empty(
    real: Callable[..., bool], log: PartitionLog, request: PollRequest, found: Candidates, end: RoundEnd
) -> bool:
    """Answers a poll with nothing if others have ended its claims while their entry was in doubt."""
    if not request.poll.given or request.list_claimed(log.state, log.key[1], end.number):
        return real(log, request, found, end)
    request.answer([])
    return True


def cut_unseen(
    real: Callable[..., bool],
    log: PartitionLog,
    found: Candidates | None,
    draft: EntryDraft,
    passed: int,
    *,
    is_written: bool,
) -> bool:
    """Ignores the unread rest of a scan."""
    if found is not None:
        found.scan.end = None
    return real(log, found, draft, passed, is_written=is_written)


def count_deliveries_at_read(real: Callable[..., bool], draft: EntryDraft, position: Position, most: int = 0) -> bool:
    """Counts deliveries by the state at the time of the read."""
    return real(draft, position)


def find_all_above_cursor(state: State, positions: Iterable[Position]) -> set[Position]:
    return {position for position in positions if position > state.cursor}


def releasing_nothing(draft: EntryDraft) -> None:
    """Ends no claim."""


def never_overdue(known: FollowUps, key: object, now: float) -> bool:
    """Leaves follow-ups to the first process, which tries each once."""
    since, known.open[key] = known.open.get(key), now
    return since == -math.inf


def forget_begin_of_open_work(known: FollowUps, keys: Iterable[object], since: float = 0.0) -> None:
    """Counts the age of open work from when a process reads of it."""


def forgetting_who_had_it(state: State, positions: Iterable[Position], at: int) -> None:
    """Ends messages that leave a queue as if they were acknowledged."""
    for position in positions:
        state._finish(position)


def is_done_only_above_cursor(state: State, position: Position) -> bool:
    return position in state.above


def covering_nothing(draft: CoverDraft, cursor: Position) -> list[CoverMade]:
    return []


def begin_draft_without_margin(
    real: Callable[..., CoverDraft],
    log: Duplicates,
    state: State,
    copies: ScanDuplicates,
    horizon: Position,
    now: int,
    *below: Position,
) -> CoverDraft:
    """Treats everything below its own clock as posted before."""
    draft = real(log, state, copies, horizon, now, *below)
    draft.until = max(draft.until, now * 10_000 + ids.EPOCH_TICKS)
    return draft


def withdrawing_nothing(draft: CoverDraft, representative: Position) -> None:
    """Withdraws no cover."""


class NoCovers(ModelStore):
    """A store that drops covers."""

    def write_covers(self, queue: Queue, partition: int, covers: Iterable[tuple[bytes, int]]) -> None:
        """Writes nothing."""


def count_time_from_answer(
    real: Callable[..., None], forwarding: Forwarding, key: Key, request: Request, answer: list[Any] | None
) -> None:
    request.decided = forwarding._core.boottime()
    real(forwarding, key, request, answer)


def never_late(claims: ClaimUseCases, ttl: float, decided: float) -> bool:
    return False


# Cancelled messages


def apply_without_marks(real: Callable[..., None], state: State, number: int, entry: Entry) -> None:
    real(state, number, entry)
    state.cancelled = set()


def encode_without_cancellations(real: Callable[..., bytes], state: State) -> bytes:
    marks, state.cancelled = state.cancelled, set()
    try:
        return real(state)
    finally:
        state.cancelled = marks


def let_cancelled_be_retried(draft: EntryDraft, position: Position) -> bool:
    """Lets a failed attempt at a cancelled message be retried or become a dead letter."""
    return False


def may_redeliver_despite_mark(real: Callable[..., bool], draft: EntryDraft, position: Position, most: int = 0) -> bool:
    marks, draft._state.cancelled = draft._state.cancelled, set()
    try:
        return real(draft, position, most)
    finally:
        draft._state.cancelled = marks


# Attempts


def applying_as_begun(real: Callable[..., None], state: State, number: int, entry: Entry) -> None:
    """Counts every delivery."""
    real(state, number, entry)
    for claim in state.outstanding.values():
        claim.begun = True


def renewing_nothing_begun(real: Callable[..., None], state: State, position: Position, expires: int, now: int) -> None:
    """Does not count the attempt of a claim that was given back and then renewed."""
    claim = state.outstanding.get(position)
    begun = claim is None or claim.begun
    real(state, position, expires, now)
    if not begun:
        state.outstanding[position].begun = False


def burying_what_was_read(draft: EntryDraft, positions: Iterable[Position], target: str, _most: int) -> None:
    """Makes dead letters by the attempts at the time of the read."""
    for position in filter(draft._may_redeliver, positions):
        draft._make_dead_letter(position, target)


def suspecting_nothing(_state: State, _position: Position) -> bool:
    return False


def suspecting_once(real: Callable[..., bool], state: State, position: Position) -> bool:
    """Suspects a message only until it is delivered again."""
    claim = state.outstanding.get(position)
    return claim is not None and real(unsuspecting(state, position, claim), position)


def unsuspecting(state: State, position: Position, claim: LastDelivery) -> State:
    other = State()
    other.resting, other.outstanding = state.resting, {position: changed(claim, suspected=False)}
    return other


def encode_without_marks(real: Callable[..., bytes], state: State) -> bytes:
    before = state.outstanding
    state.outstanding = {
        position: changed(claim, begun=True, suspected=False, uncounted=0) for position, claim in before.items()
    }
    try:
        return real(state)
    finally:
        state.outstanding = before


# Limits


def giving_all_that_was_read(places: FreePlaces, choice: Callable[[Message], bool] | None, message: Message) -> bool:
    """Ignores the free places when the entry is decided."""
    return choice is None or choice(message)


def always_has_place(places: Places, position: Position) -> bool:
    return True


def count_unlimited_places(places: Places) -> int:
    return 1000


def encode_without_keys(real: Callable[..., bytes], state: State) -> bytes:
    busy, state.busy = state.busy, {}
    try:
        return real(state)
    finally:
        state.busy = busy


def resting_for_good(real: Callable[..., None], state: State, position: Position, expires: int, now: int) -> None:
    """Keeps a message resting that was released with a delay, although a worker has resumed it."""
    rested = position in state.resting
    real(state, position, expires, now)
    if rested:
        state.resting.add(position)


def never_resting(state: State, position: Position, expired: int) -> bool:
    """Counts messages that wait for their delay."""
    claim = state.outstanding.get(position)
    return claim is not None and claim.expires >= expired


def find_no_place_of_busy_key(places: LikelyPlaces, key: int) -> int:
    return 0 if key in places._state.busy else 1


BEYOND_THE_HORIZON = [
    (OrderedScanner._find_upper_bound, reading_up_to_now),
    (OrderedScanner._find_final_end, count_whole_page_as_final),
]
"""Patches with which an ordered queue is read up to now."""
