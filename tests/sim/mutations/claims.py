"""Claims with a mechanism taken out, for the table of mutations in :mod:`tests.sim.mutations.table`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any

from msgspec.structs import replace as changed

from queuey.claims.log.follow_ups import FollowUps, publish
from queuey.claims.log.forwarding import Forwarding
from queuey.claims.log.log_requests import ClaimDelivery, Key, LogRequest, PollRequest, SettleRequest
from queuey.claims.log.message_finder import Candidates, ContiguousRead, Duplicates, OrderedScanner, ScanDemand
from queuey.claims.log.partition_log import REQUEST_TIMEOUT, PartitionLog, RoundEnd
from queuey.claims.rules.entries import ClaimEntry
from queuey.claims.rules.entry_draft import EntryDraft
from queuey.claims.rules.kinds.limited import FreePlaces, LikelyPlaces
from queuey.claims.rules.kinds.ordered import OrderCheck
from queuey.claims.rules.partition_state import ClaimTiming, State
from queuey.claims.rules.receipts import ClaimReceipt, LastDelivery
from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.ids import Position
from queuey.model.messages import Location, LogEntry, Message, NewMessage, Page, Queue, Slice
from queuey.storage import Store
from queuey.storage.deadlines import Done
from tests.sim.playing import Real
from tests.sim.replicas import DELAY, Log, ModelStore, Replicas
from tests.sim.world import Process

Chooses = Callable[[Position], bool]


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
    real: Real, log: PartitionLog, queue: Queue, entry: ClaimEntry, taken: Sequence[LogRequest], decided: float
) -> Any:  # noqa: ANN401
    for request in taken:
        if isinstance(request, PollRequest) and request.poll.given and request.poll.ttl:
            expires = entry.at + round(request.poll.ttl * 1000)
            receipt = partial(ClaimReceipt, log.key[1], number=log.state.number + 1)
            given = [ClaimDelivery(one, receipt(*one.position), 1, expires / 1000) for one in request.poll.given]
            request.answer(given)
        elif isinstance(request, SettleRequest):
            request.answer(request.settlements)
    return await real(log, queue, entry, taken, decided)


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


async def deleting_first(real: Real, log: PartitionLog, queue: Queue, entry: ClaimEntry, *taken: Any) -> Any:  # noqa: ANN401
    if entry.delete:
        with suppress(StoreUnavailable):
            await store_of(log).messages.delete(queue, [(log.key[1], position) for position in entry.finals])
    return await real(log, queue, entry, *taken)


async def publishing_first(real: Real, log: PartitionLog, queue: Queue, entry: ClaimEntry, *taken: Any) -> Any:  # noqa: ANN401
    letters = {position: (target, deliveries) for position, target, deliveries in entry.outs}
    if letters:
        store = store_of(log)
        now = store.clock.now_ms() / 1000
        with suppress(StoreUnavailable):
            await publish(store, queue, log.key[1], letters, gone_below=ids.FIRST, now=now)
    return await real(log, queue, entry, *taken)


def store_of(log: PartitionLog) -> Store:
    return log._store


class Renumbering(ModelStore):
    """Gives a dead letter a new id each time."""

    def put(self, queue: Queue, locations: Sequence[Location], item: NewMessage) -> None:
        now = ids.seconds_to_ticks(self._process.clock())
        super().put(queue, [(partition, (now, low)) for partition, (_, low) in locations], item)


def find_busy_but_claimed(real: Real, check: OrderCheck, key: int) -> list[Position]:
    """Treats claimed messages as done."""
    return [place for place in real(check, key) if check.entry.may_redeliver(place)]


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


def answer_old_poll_empty(real: Real, log: PartitionLog, request: PollRequest, found: Candidates, end: RoundEnd) -> Any:  # noqa: ANN401
    is_old = end.decided - request.arrived >= REQUEST_TIMEOUT
    return answer_empty(real, log, request, found, end) if is_old else real(log, request, found, end)


def answer_poll_in_doubt_empty(real: Real, log: PartitionLog, request: PollRequest, *found: Any) -> Any:  # noqa: ANN401
    """Answers a poll with nothing if others have ended its claims while their entry was in doubt."""
    return answer_empty(real, log, request, *found) if request.poll.given else real(log, request, *found)


def answer_empty(real: Real, log: PartitionLog, request: PollRequest, found: Candidates, end: RoundEnd) -> Any:  # noqa: ANN401
    if request.list_claimed(log.state, log.key[1], end.number):
        return real(log, request, found, end)
    request.answer([])
    return True


def cut_unseen(real: Real, log: PartitionLog, found: Candidates | None, *rest: Any, is_written: bool) -> Any:  # noqa: ANN401
    """Ignores the unread rest of a scan."""
    if found is not None:
        found.scan.end = None
    return real(log, found, *rest, is_written=is_written)


def count_deliveries_at_read(real: Real, draft: EntryDraft, position: Position, most: int = 0) -> Any:  # noqa: ANN401
    """Counts deliveries by the state at the time of the read."""
    return real(draft, position)


def find_all_above_cursor(state: State, positions: Iterable[Position]) -> set[Position]:
    return {position for position in positions if position > state.cursor}


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


def choose_late_until(real: Real, log: Duplicates, horizon: Position, now: int, below: Position) -> Any:  # noqa: ANN401
    """Treats everything below its own clock as posted before."""
    return max(real(log, horizon, now, below), now * 10_000 + ids.EPOCH_TICKS)


class NoCovers(ModelStore):
    """A store that drops covers."""

    def write_covers(self, queue: Queue, partition: int, covers: Iterable[tuple[bytes, int]]) -> None:
        """Writes nothing."""


def count_time_from_answer(
    real: Real, forwarding: Forwarding, key: Key, request: LogRequest, answer: list[Any] | None
) -> None:
    request.decided = forwarding._core.boottime()
    real(forwarding, key, request, answer)


# Cancelled messages


def apply_without_marks(real: Real, state: State, number: int, entry: ClaimEntry) -> None:
    real(state, number, entry)
    state.cancelled = set()


def may_redeliver_despite_mark(real: Real, draft: EntryDraft, *asked: Any) -> Any:  # noqa: ANN401
    state = draft.state
    marks, state.cancelled = state.cancelled, set()
    try:
        return real(draft, *asked)
    finally:
        state.cancelled = marks


# Attempts


def applying_as_begun(real: Real, state: State, number: int, entry: ClaimEntry) -> None:
    """Counts every delivery."""
    real(state, number, entry)
    for claim in state.outstanding.values():
        claim.begun = True


def renewing_nothing_begun(real: Real, state: State, position: Position, expires: int, now: int) -> None:
    """Does not count the attempt of a claim that was given back and then renewed."""
    claim = state.outstanding.get(position)
    begun = claim is None or claim.begun
    real(state, position, expires, now)
    if not begun:
        state.outstanding[position].begun = False


def burying_what_was_read(
    real: Real, draft: EntryDraft, positions: Iterable[Position], target: str, _most: int
) -> None:
    """Makes dead letters by the attempts at the time of the read."""
    real(draft, positions, target, -1)


def suspecting_once(real: Real, state: State, position: Position) -> bool:
    """Suspects a message only until it is delivered again."""
    claim = state.outstanding.get(position)
    return claim is not None and real(unsuspecting(state, position, claim), position)


def unsuspecting(state: State, position: Position, claim: LastDelivery) -> State:
    other = State()
    other.resting, other.outstanding = state.resting, {position: changed(claim, suspected=False)}
    return other


def encode_without_marks(real: Real, state: State) -> Any:  # noqa: ANN401
    shown = copy(state)
    shown.outstanding = {
        position: changed(claim, begun=True, suspected=False, uncounted=0)
        for position, claim in state.outstanding.items()
    }
    return real(shown)


def encode_without_cancelled(real: Real, state: State) -> Any:  # noqa: ANN401
    shown = copy(state)
    shown.cancelled = set()
    return real(shown)


def encode_without_busy(real: Real, state: State) -> Any:  # noqa: ANN401
    shown = copy(state)
    shown.busy = {}
    return real(shown)


# Limits


def giving_all_that_was_read(places: FreePlaces, choice: Callable[[Message], bool] | None, message: Message) -> bool:
    """Ignores the free places when the entry is decided."""
    return choice is None or choice(message)


def resting_for_good(real: Real, state: State, position: Position, expires: int, now: int) -> None:
    """Keeps a message resting that was released with a delay, although a worker has resumed it."""
    rested = position in state.resting
    real(state, position, expires, now)
    if rested:
        state.resting.add(position)


def never_resting(state: State, position: Position, expiry_limit: int) -> bool:
    """Counts messages that wait for their delay."""
    claim = state.outstanding.get(position)
    return claim is not None and claim.expires >= expiry_limit


def find_no_place_of_busy_key(places: LikelyPlaces, key: int) -> int:
    return 0 if key in places.state.busy else 1


BEYOND_THE_HORIZON = [
    (OrderedScanner._find_upper_bound, reading_up_to_now),
    (OrderedScanner._find_final_end, count_whole_page_as_final),
]
"""Patches with which an ordered queue is read up to now."""
