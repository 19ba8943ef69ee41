"""The guarantees of claims in hundreds of histories, some of which fail if a mechanism is taken out."""

from __future__ import annotations

import dataclasses
import gc
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from queuey import ids
from queuey.claims.covers import CoverDraft, ScanDuplicates
from queuey.claims.drafts import EntryDraft
from queuey.claims.entries import CoverMade, Entry
from queuey.claims.order import KeyHolders, OrderCheck
from queuey.claims.receipts import ClaimReceipt
from queuey.claims.state import ClaimTiming, State
from queuey.errors import StoreUnavailable
from queuey.ids import Position
from queuey.messages import Location, LogEntry, Message, NewMessage, Page, Queue, Slice
from queuey.service import ClaimUseCases, Limits
from queuey.service.claims import finding, follow_ups, scans
from queuey.service.claims.finding import MAX_COVERS, Duplicates
from queuey.service.claims.follow_ups import MAX_LETTERS, FollowUps, publish
from queuey.service.claims.forwarding import Forwarding
from queuey.service.claims.log_cache import Key
from queuey.service.claims.partition_log import REQUEST_TIMEOUT, PartitionLog, RoundEnd
from queuey.service.claims.requests import PollRequest, Request, SettleRequest
from queuey.service.claims.scans import Candidates, ContiguousRead, OrderedScanner, ScanDemand
from queuey.storage.calls import Done
from tests.harness.checking.claims import MAX_CLOCK_DIFFERENCE, SIMULATED, ClaimHistory
from tests.harness.checking.rules import check
from tests.replacing import replace, replace_in
from tests.sim.replicas import DELAY, Log, ModelStore, Replicas
from tests.sim.storm import Storm, find_violations
from tests.sim.web import Setup
from tests.sim.world import Process

SEEN, HISTORIES, SHORT = 40, 30, 8
"""Histories of `make test` besides those that show a mutation; of ordered queues; and with short scans."""
MANY = int(os.environ.get("SIM_HISTORIES", "10000"))
"""Histories of the slow test."""
FIRST = int(os.environ.get("SIM_SEED", "0"))
"""The first seed of the slow test."""
MAX_HISTORIES = 6200
"""Max histories until a missing mechanism shows."""


ORDERED = Setup(kinds=("ordered",))


def seeds(*, ordered: bool = False) -> list[int]:
    showing = (one.first for one in MUTATIONS.values() if (one.setup.kinds == ORDERED.kinds) == ordered)
    return sorted({*range(HISTORIES if ordered else SEEN), *showing})


@pytest.fixture(scope="module")
def histories() -> list[ClaimHistory]:
    """The first histories, shared by the tests of guarantees and of the histories themselves."""
    return [Storm(seed).run() for seed in range(SEEN)]


def test_guarantees(histories: list[ClaimHistory]) -> None:
    """Whatever fails, no message is given to two clients at once, too often, or after its acknowledgement.

    None is lost, and none is free while a claim gets an empty answer.
    """
    assert [check(history, SIMULATED) for history in histories] == [[]] * SEEN
    assert find_violations([seed for seed in seeds() if seed >= SEEN]) == []


@pytest.mark.parametrize(
    "limits", [{"MAX_PAGE_MESSAGES": 2, "MAX_SCAN_PAGES": 1}, {"MAX_ABOVE": 2}], ids=["pages", "above"]
)
def test_guarantees_of_short_scans(limits: dict[str, int]) -> None:
    """The guarantees hold if scans rarely reach the end of the messages."""
    with short_scans(**limits):
        assert find_violations(range(SHORT)) == []


def test_guarantees_if_logs_are_dropped() -> None:
    """The guarantees hold if a process drops each log as soon as it uses another one, so no scan continues another."""
    with short_scans(MAX_ABOVE=2):
        assert find_violations(range(SHORT), Setup(limits=Limits(claims_memory=1))) == []


def test_guarantees_of_what_fails() -> None:
    """Messages that fail wait for their backoff, and those given up are dead letters in the end."""
    histories = [Storm(seed, Setup(failing=0.6)).run() for seed in range(20)]
    assert [check(history, SIMULATED) for history in histories] == [[]] * len(histories)
    assert sum(one.outcome == "done" for history in histories for one in history.given_up) > 20


def test_guarantees_of_ordered_queues() -> None:
    """Messages of a key in an ordered queue are given in order, to one caller at a time, with all other guarantees."""
    assert find_violations(seeds(ordered=True), ORDERED) == []
    assert find_violations(range(HISTORIES // 4), dataclasses.replace(ORDERED, failing=0.6)) == []


@pytest.mark.parametrize(
    "limits",
    [{"MAX_PAGE_MESSAGES": 2, "MAX_SCAN_PAGES": 1}, {"MAX_ABOVE": 2}, {"MAX_WAITING": 2}],
    ids=["pages", "above", "waiting"],
)
def test_guarantees_of_short_scans_of_ordered_queues(limits: dict[str, int]) -> None:
    """The guarantees of ordered queues hold if scans rarely reach the end of the messages."""
    with short_scans(**limits):
        assert find_violations(range(SHORT), ORDERED) == []
        assert find_violations(range(SHORT), dataclasses.replace(ORDERED, limits=Limits(claims_memory=1))) == []


@pytest.mark.slow
@pytest.mark.timeout(12 * 3600)
def test_guarantees_in_many_histories() -> None:
    """The guarantees hold in ``SIM_HISTORIES`` histories from the seed ``SIM_SEED`` on."""
    assert find_violations(range(FIRST, FIRST + MANY), enough=10) == []
    assert find_violations(range(FIRST, FIRST + MANY // 4), ORDERED, enough=10) == []


def test_histories_have_every_outcome(histories: list[ClaimHistory]) -> None:
    """Most messages are posted, given, given again, and acknowledged; a seed determines the history."""
    posted = sum(len(history.acknowledged) for history in histories)
    given = sum(len(history.deliveries) for history in histories)
    ended = sum(one.outcome == "done" for history in histories for one in history.acknowledgements)
    again = sum(one.outcome == "superseded" for history in histories for one in history.acknowledgements)
    assert posted > 150
    assert given > posted
    assert ended > posted / 2
    assert again > 0
    with collecting_often():
        assert [Storm(seed).run() for seed in range(4)] == histories[:4]


@contextmanager
def collecting_often() -> Iterator[None]:
    """Collects garbage all the time, which ends coroutines of crashed processes."""
    before = gc.get_threshold()
    gc.set_threshold(10, 2, 2)
    try:
        yield
    finally:
        gc.set_threshold(*before)


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


async def answering_first(log: PartitionLog, queue: Queue, entry: Entry, taken: Sequence[Request]) -> bool:
    for request in taken:
        if isinstance(request, PollRequest) and request.poll.given and request.poll.ttl:
            expires = entry.at + round(request.poll.ttl * 1000)
            receipt = partial(ClaimReceipt, log.key[1], number=log.state.number + 1)
            request.answer([(one, 1, receipt(*one.position), expires, 0, False) for one in request.poll.given])
        elif isinstance(request, SettleRequest):
            request.answer(request.settlements)
    applied: bool = await REAL_APPEND(log, queue, entry, taken)
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


async def deleting_first(log: PartitionLog, queue: Queue, entry: Entry, taken: Sequence[Request]) -> bool:
    if entry.delete:
        with suppress(StoreUnavailable):
            await log._store.messages.delete(queue, [(log.key[1], position) for position in entry.finals])
    applied: bool = await REAL_APPEND(log, queue, entry, taken)
    return applied


async def publishing_first(log: PartitionLog, queue: Queue, entry: Entry, taken: Sequence[Request]) -> bool:
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
    applied: bool = await REAL_APPEND(log, queue, entry, taken)
    return applied


class Renumbering(ModelStore):
    """Gives a dead letter a new id each time."""

    def put(self, queue: Queue, locations: Sequence[Location], item: NewMessage) -> None:
        now = ids.seconds_to_ticks(self._process.clock())
        super().put(queue, [(partition, (now, low)) for partition, (_, low) in locations], item)


def knowing_no_keys(state: State, positions: list[Position], keys: list[int]) -> None:
    pass


def blocked_by_nothing_claimed(check: OrderCheck, key: int) -> Any:  # noqa: ANN401
    """Treats claimed messages as done."""
    is_free = check._is_free
    check._is_done, check._is_free = (lambda one: one in check._state.outstanding and not is_free(one)), lambda _: True
    return REAL_BEGIN(check, key)


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


@contextmanager
def reading_beyond_the_horizon() -> Iterator[None]:
    with (
        replace(OrderedScanner._find_upper_bound, reading_up_to_now),
        replace(OrderedScanner._find_final_end, count_whole_page_as_final),
    ):
        yield


def passing_what_waits(scanner: OrderedScanner, state: State, found: Collection[Position]) -> ContiguousRead:
    """Treats everything below the front as delivered."""
    return ContiguousRead(scanner.waiting.front)


def claiming_at_the_front(scanner: OrderedScanner, state: State) -> Position:
    known = [*state.outstanding, *state.above]
    return max([scanner.waiting.front, ids.following(state.cursor), *map(ids.following, known)])


REAL_BEGIN = OrderCheck._begin
REAL_APPEND = PartitionLog._append
REAL_ANSWER, REAL_MUST_SEARCH_AGAIN = PartitionLog._answer_poll, PartitionLog._must_search_again
REAL_MAY_AGAIN = EntryDraft._may_redeliver


@dataclass(frozen=True)
class Mutation:
    """A mechanism that is taken out.

    Attributes:
        breaks: The guarantees of which one fails without it.
        first: The first history to run. It shows the mutation.
    """

    breaks: tuple[str, ...]
    setup: Setup = field(default_factory=Setup)
    instead: Callable[[], AbstractContextManager[None]] = nullcontext
    first: int = 0


def never_has_candidates(found: Candidates) -> bool:
    """Answers unsatisfied claims as if there were no messages."""
    return False


async def never_catch_up(log: PartitionLog, queue: Queue, polls: Sequence[PollRequest], *, always: bool) -> bool:
    return False


def answer_old_poll_empty(log: PartitionLog, request: PollRequest, found: Candidates, end: RoundEnd) -> bool:
    if end.decided - request.arrived < REQUEST_TIMEOUT or request.list_claimed(log.state, log.key[1], end.number):
        return REAL_ANSWER(log, request, found, end)
    request.answer([])
    return True


def answer_poll_in_doubt_empty(log: PartitionLog, request: PollRequest, found: Candidates, end: RoundEnd) -> bool:
    """Answers a poll with nothing if others have ended its claims while their entry was in doubt."""
    if not request.poll.given or request.list_claimed(log.state, log.key[1], end.number):
        return REAL_ANSWER(log, request, found, end)
    request.answer([])
    return True


def cut_unseen(
    log: PartitionLog, found: Candidates | None, draft: EntryDraft, passed: int, *, is_written: bool
) -> bool:
    """Ignores the unread rest of a scan."""
    if found is not None:
        found.scan.end = None
    return REAL_MUST_SEARCH_AGAIN(log, found, draft, passed, is_written=is_written)


@contextmanager
def cutting_scans_unseen() -> Iterator[None]:
    with short_scans(MAX_PAGE_MESSAGES=2, MAX_SCAN_PAGES=1), replace(PartitionLog._must_search_again, cut_unseen):
        yield


def count_deliveries_at_read(draft: EntryDraft, position: Position, most: int = 0) -> bool:
    """Counts deliveries by the state at the time of the read."""
    return REAL_MAY_AGAIN(draft, position)


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
    log: Duplicates, state: State, copies: ScanDuplicates, horizon: Position, now: int, *below: Position
) -> CoverDraft:
    """Treats everything below its own clock as posted before."""
    draft = REAL_DRAFT(log, state, copies, horizon, now, *below)
    draft.until = max(draft.until, now * 10_000 + ids.EPOCH_TICKS)
    return draft


def withdrawing_nothing(draft: CoverDraft, representative: Position) -> None:
    """Withdraws no cover."""


class NoCovers(ModelStore):
    """A store that drops covers."""

    def write_covers(self, queue: Queue, partition: int, covers: Iterable[tuple[bytes, int]]) -> None:
        """Writes nothing."""


def count_time_from_answer(forwarding: Forwarding, key: Key, request: Request, answer: list[Any] | None) -> None:
    request.decided = forwarding._core.boottime()
    REAL_HEARD(forwarding, key, request, answer)


def never_late(claims: ClaimUseCases, ttl: float, decided: float) -> bool:
    return False


REAL_DRAFT = Duplicates.begin_draft
REAL_HEARD = Forwarding._on_answer


@contextmanager
def short_scans(**limits: int) -> Iterator[None]:
    """Replaces limits of scans, by the names of their constants."""
    with ExitStack() as stack:
        for name, limit in limits.items():
            stack.enter_context(replace_in(scans, getattr(scans, name), limit))
        yield


@pytest.fixture(autouse=True, scope="module")
def _little_at_a_time() -> Iterator[None]:
    """Limits states to one cover, and publishes dead letters one by one."""
    with replace_in(finding, MAX_COVERS, 1), replace_in(follow_ups, MAX_LETTERS, 1):
        yield


MUTATIONS = {
    "the comparison of an append": Mutation(("G4", "G5", "G6"), Setup(replicas=Unconditional), first=3),
    "the append before the answer": Mutation(
        ("G4", "G5"), instead=lambda: replace(PartitionLog._append, answering_first), first=3
    ),
    "what is remembered above the horizon": Mutation(
        ("G4", "G5"), instead=lambda: replace(State.find_unknown, find_all_above_cursor), first=3
    ),
    "the margin at expiry": Mutation(("G4",), Setup(timing=NoMargin(MAX_CLOCK_DIFFERENCE)), first=25),
    "the deadline of an answer": Mutation(("G4",), Setup(timing=NoDeadline(MAX_CLOCK_DIFFERENCE)), first=10),
    "the deadline of another worker's answer": Mutation(
        ("G4",), instead=lambda: replace(Forwarding._on_answer, count_time_from_answer), first=1451
    ),
    "the deadline when a caller is told": Mutation(
        ("G4",), instead=lambda: replace(ClaimUseCases._is_late, never_late), first=10
    ),
    "sending again what is in doubt": Mutation(("G5", "G6"), Setup(store=ReadOnce), first=13),
    "finality below the cursor": Mutation(
        ("G5",), instead=lambda: replace(State.is_done, is_done_only_above_cursor), first=2
    ),
    "the horizon taken before the read": Mutation(("G6",), Setup(store=LateHorizon), first=3332),
    "a horizon that is as far behind as writes may be late": Mutation(("G6",), Setup(store=HorizonAtClock), first=14),
    "the due time of a delayed message": Mutation(("delay",), Setup(store=ReadsAhead)),
    "covers in the entry": Mutation(
        ("dedup",), instead=lambda: replace(CoverDraft.find_needed, covering_nothing), first=8
    ),
    "the margin of covers": Mutation(
        ("G6",), instead=lambda: replace(Duplicates.begin_draft, begin_draft_without_margin), first=841
    ),
    "the end of covers whose message is gone": Mutation(
        ("G6",), instead=lambda: replace(CoverDraft.withdraw, withdrawing_nothing), first=1004
    ),
    "covers in the store": Mutation(("dedup",), Setup(store=NoCovers), first=15),
    "the end of all claims": Mutation(
        ("G6",), instead=lambda: replace(EntryDraft.release_all, releasing_nothing), first=29
    ),
    "dead letters of a process that died": Mutation(
        ("G6",), instead=lambda: replace(FollowUps._is_overdue, never_overdue), first=49
    ),
    "deletions of a process that died": Mutation(
        ("on_ack",), instead=lambda: replace(FollowUps._is_overdue, never_overdue), first=133
    ),
    "how old open work is, whenever a process has read of it": Mutation(
        ("G6", "on_ack"),
        Setup(limits=Limits(claims_memory=1)),
        instead=lambda: replace(FollowUps.add_open, forget_begin_of_open_work),
        first=246,
    ),
    "whose claims were lost to a dead letter": Mutation(
        ("G5",), instead=lambda: replace(State._finish_leaving, forgetting_who_had_it), first=100
    ),
    "the append before the dead letter": Mutation(
        ("G5",), instead=lambda: replace(PartitionLog._append, publishing_first), first=110
    ),
    "the id of a dead letter": Mutation(("outbox",), Setup(store=Renumbering), first=237),
    "another round for those who got nothing": Mutation(
        ("empty",), instead=lambda: replace(Candidates.has_any, never_has_candidates), first=6
    ),
    "the read of the log before an empty answer": Mutation(
        ("empty",), instead=lambda: replace(PartitionLog._catch_up_for, never_catch_up), first=4
    ),
    "the error for who has waited for too long": Mutation(
        ("empty",), instead=lambda: replace(PartitionLog._answer_poll, answer_old_poll_empty), first=6095
    ),
    "another round for those whose claims have ended before their answer": Mutation(
        ("empty",), instead=lambda: replace(PartitionLog._answer_poll, answer_poll_in_doubt_empty), first=1018
    ),
    "the end of a scan that was cut short": Mutation(("empty",), instead=cutting_scans_unseen, first=132),
    "deliveries counted when the entry is decided": Mutation(
        ("limit",), instead=lambda: replace(EntryDraft._may_redeliver, count_deliveries_at_read), first=370
    ),
    "the keys of what is outstanding": Mutation(
        ("key",), ORDERED, instead=lambda: replace(State._record_keys, knowing_no_keys), first=1
    ),
    "a key that is claimed is given to nobody else": Mutation(
        ("key",), ORDERED, instead=lambda: replace(OrderCheck._begin, blocked_by_nothing_claimed), first=159
    ),
    "the key of a claim that is renewed late": Mutation(
        ("key",), ORDERED, instead=lambda: replace(KeyHolders.has_another, never_has_another), first=3221
    ),
    "the order, checked when the entry is decided": Mutation(
        ("order", "key"), ORDERED, instead=lambda: replace(OrderCheck.try_deliver, giving_in_any_order), first=3
    ),
    "ordered queues are read below the horizon": Mutation(
        ("order",), ORDERED, instead=reading_beyond_the_horizon, first=37
    ),
    "the cursor stays below what waits": Mutation(
        ("G6",), ORDERED, instead=lambda: replace(OrderedScanner._make_chain, passing_what_waits)
    ),
    "the front is what this process has read": Mutation(
        ("G6",), ORDERED, instead=lambda: replace(OrderedScanner._find_start, claiming_at_the_front), first=17
    ),
    "the append before the deletion": Mutation(
        ("G6",), instead=lambda: replace(PartitionLog._append, deleting_first), first=6
    ),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_mechanism_is_needed(name: str) -> None:
    """Without any one of the mechanisms some history breaks a guarantee."""
    mutation = MUTATIONS[name]
    with mutation.instead():
        seeds = [*range(mutation.first, MAX_HISTORIES), *range(mutation.first)]
        broken = find_violations(seeds, mutation.setup, breaking=mutation.breaks)
    assert broken
