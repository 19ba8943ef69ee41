"""One partition's claim log in one process: its state in memory, the requests that wait for it, and the next entry.

::

    requests wait ─► decide ─► append ──applied──────────────────────────► apply, answer ─► next round
                      ▲          │ ▲ └──refused─► read, apply ────────────┐
                      │          │ └─in doubt: the same entry again       │ the entry there is ours: it was applied
                      │          └──certainly not: the error is answered  │
                      └──────────────── it is another's: decide again ◄───┘

One round is under way at a time; requests that come meanwhile wait for the next one and share its entry. A round is a
generator (:mod:`queuey.service.claims.steps`), so it holds no thread while it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

from queuey import ids
from queuey.claims import (
    MOST_OUTSTANDING,
    ClaimTiming,
    Copies,
    Entry,
    EntryDraft,
    ReceiptStatus,
    State,
    UnknownFormat,
    decode_entry,
    encode_entry,
)
from queuey.claims.drafts import MOST_IDS
from queuey.claims.receipts import SECRET_BITS
from queuey.deadletters import queue_for
from queuey.errors import (
    InvalidRequest,
    Outcome,
    QueueChanged,
    QueueNotFound,
    QueueyError,
    StoreClosed,
    StoreIncompatible,
    StoreUnavailable,
    in_doubt,
)
from queuey.ids import Position
from queuey.messages import Location, LogEntry, LogPage, Queue, Slice, bytes_of
from queuey.service.claims.duplicates import Duplicates, divided
from queuey.service.claims.follow_ups import FollowUps, most_deliveries, publish
from queuey.service.claims.move_turns import MoveRequest
from queuey.service.claims.requests import (
    ClaimUndecided,
    LookRequest,
    PollRequest,
    Request,
    RequestLine,
    SentRequest,
    SettleRequest,
    giving_back,
    ignore,
    leave,
    polls_of,
    too_fast,
    too_late,
    too_many,
)
from queuey.service.claims.runtime import Done, Runtime
from queuey.service.claims.scans import PAGE, Material, Scanner, conclude
from queuey.service.claims.steps import Call, Steps, run
from queuey.service.claims.totals import ClaimTotals
from queuey.service.claims.upkeep import LogLength, Upkeep
from queuey.service.limits import Limits
from queuey.storage import Store

PATIENCE = 5.0
"""Seconds that a request waits for its entry to be applied."""
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds between attempts to append an entry that is in doubt."""
LONGEST_BACK_OFF = 0.02
"""Seconds that a process waits at most which another one's entry has refused; else as long as its last append took."""
WORTH = 500
"""Messages that the cursor must pass before an entry is written only for it."""
LONG = 1 << 16
"""Bytes of entries that take several milliseconds to be applied."""
Work = Generator[Call, Any, Any]


class Appended(NamedTuple):
    """How a round ended: the number of its entry (0: there was none), and when it was decided on (boot time)."""

    number: int
    chosen: float


class PartitionLog:
    """The log of one partition, for all callers in this process.

    Args:
        store: The store that keeps the log.
        key: The queue's ``qid`` and the partition.
        runtime: Threads, clocks, chance.
        timing: When claims are over.
        limits: How much one answer may have.
        upkeep: How the log is kept short.
        totals: Counts what is done.
        after: Called after each round.
    """

    def __init__(
        self,
        store: Store,
        key: tuple[int, int],
        runtime: Runtime,
        timing: ClaimTiming,
        limits: Limits,
        upkeep: Upkeep,
        totals: ClaimTotals,
        after: Callable[[PartitionLog], None] = lambda _log: None,
    ) -> None:
        self.key = key
        self.state = State()
        self._is_loaded = False
        self.refused = -1e9
        """When (boot time) another process was last found at work here."""
        self._store = store
        self._partition = key[1]
        self._runtime = runtime
        self._timing = timing
        self._limits = limits
        self._totals = totals
        self._after = after
        self._line = RequestLine()
        self._took = 0.0
        self._scanner = Scanner(self._partition, runtime.boottime, limits.page_bytes)
        self._current = -1e9
        self._length = LogLength(upkeep)
        self._duplicates = Duplicates(store, self._partition, runtime, timing)
        self._follow_ups = FollowUps()

    @property
    def weight(self) -> int:
        """About how many bytes the state takes."""
        return self.state.weight

    @property
    def idle(self) -> bool:
        """Whether no request waits for it."""
        return self._line.idle

    @property
    def load(self) -> int:
        """How many ids its requests ask for."""
        return self._line.load

    def add(self, *requests: Request) -> None:
        """Adds requests, which are answered later. Never blocks."""
        if self._line.add(requests, self._runtime.boottime()):
            self._runtime.submit(self._begin)

    def _begin(self) -> None:
        run(self._rounds(), self._runtime.submit)

    def _rounds(self) -> Steps:
        while taken := self._line.take():
            try:
                try:
                    yield from self._round(taken)
                except (QueueyError, UnknownFormat) as error:
                    self._fail(taken, error)
                self._after(self)
            except Exception as error:
                self._fail(taken, StoreUnavailable(f"claims failed: {error!r}", outcome="unknown"))
                self._is_loaded = False
                self._line.stop()
                raise

    def _fail(self, requests: Sequence[Request], error: Exception) -> None:
        if isinstance(error, UnknownFormat):
            error = StoreIncompatible(f"The claim log of partition {self._partition}: {error}. Update this program.")
        for request in requests:
            if isinstance(error, StoreUnavailable) and error.outcome == "unknown" and not request.sent:
                request.answer(None, StoreUnavailable(str(error), retry_after=error.retry_after))
            else:
                request.answer(None, error)

    # A round

    def _round(self, taken: list[Request]) -> Work:
        """Answers requests: reads what they need, decides, appends, until that is done."""
        queue = max((request.queue for request in taken), key=lambda row: row.version)
        yield from self._prepare(queue, taken)
        material: Material | None = None
        while True:
            # It is another object if a snapshot had to be read, because this process had fallen behind by very much.
            state = self.state
            polls = polls_of(taken)
            if polls and material is None:
                yield from self._duplicates.write(queue, state)
                material = yield from self._gather(queue, state, polls)
            if isinstance(taken[0], MoveRequest):
                yield from self._duplicates.write(queue, state)
                calls = partial(self._fetch, queue), partial(self._read, queue), self._duplicates.sift(queue, state)
                yield from taken[0].gather(state, self._timing.expired(self._runtime.now()), self._partition, *calls)
            self._line.join(taken, state.number)
            chosen = self._runtime.boottime()
            draft, passed = self._decide(queue, taken, material)
            if not draft.changes and passed < WORTH:
                leave(taken)
                if (yield from self._catch_up_for(queue, taken)):
                    material = None
                    continue
                self._totals.ended(taken, None, self.state)
                if material is not None and material.found.is_cut:
                    material.more = self._scanner.passed(self.state, material.found)
                self._answer(taken, polls, material, Appended(0, chosen))
                # This round has left nothing to do, but perhaps another process died before it did its part.
                yield from self._delete(queue, 0)
                yield from self._publish(queue, [])
                yield from self._duplicates.forget(queue, self.state)
                return
            if self._length.is_due():
                # This may take long, and the expiries of claims count from the decision.
                leave(taken)
                yield from self._snapshot(queue)
                continue
            entry, number = self._complete(queue, draft), state.number + 1
            if (yield from self._append(queue, entry, taken)):
                if material is not None:
                    passed += self._scanner.passed(self.state, material.found)
                    material.more = draft.withdraws or (material.found.is_cut and passed > 0)
                self._totals.ended(taken, entry, self.state)
                yield from self._delete(queue, number)
                self._answer(taken, polls, material, Appended(number, chosen))
                yield from self._publish(queue, [position for position, _, _ in entry.outs])
                yield from self._duplicates.forget(queue, self.state)
                return
            # It is certain that nothing was done for them.
            leave(taken)
            self._line.join(taken, self.state.number, polls=True)
            self._give_up_late(taken)
            current = self.state is state and self.state.withdrawn < number and set(polls_of(taken)) <= set(polls)
            material = material if current and self._is_of_use(self.state, material) else None

    def _prepare(self, queue: Queue, taken: Sequence[Request]) -> Work:
        """Loads the state if it is missing, and reads on until it contains all that the requests name."""
        if not self._is_loaded:
            yield from self._read_from(queue, State(), newest=True)
            self._is_loaded = True
            # Before the entry of this round, which then says that it is done.
            yield from self._delete(queue, 0)
        newest = max((one.newest() for one in taken if isinstance(one, SettleRequest)), default=0)
        looks = [request.asked for request in taken if isinstance(request, LookRequest)]
        if newest > self.state.number or any(asked > self._current for asked in looks):
            yield from self._read_from(queue, self.state)
        state = self.state
        for request in taken:
            if isinstance(request, SettleRequest) and request.newest() > state.number:
                text = (
                    f"a receipt names entry {request.newest()} of partition {self._partition}, which has {state.number}"
                )
                request.answer(None, InvalidRequest({"receipts": f"{text}. It is of another queue, or was purged."}))

    def _gather(self, queue: Queue, state: State, polls: Sequence[PollRequest]) -> Work:
        """Reads messages for polls: those whose claims have ended first, then those of a scan."""
        material, read = Material(state), partial(self._read, queue)
        now = self._runtime.now()
        wanted = min(MOST_IDS, sum(poll.poll.limit for poll in polls))
        material.full = len(state.outstanding) >= MOST_OUTSTANDING
        if material.full:
            # Without a scan only this tells which of them are gone.
            yield from self._scanner.look(read)
        left = min(self._limits.page_bytes, sum(poll.poll.max_bytes for poll in polls))
        left = yield from self._gather_ended(queue, material, self._timing.expired(now), wanted, left)
        if not material.full and left > 0 and len(material.again) < wanted:
            sift = self._duplicates.sift(queue, state)
            material.found = yield from self._scanner.scan(state, now, wanted - len(material.again), left, read, sift)
        return material

    def _gather_ended(self, queue: Queue, material: Material, expired: int, wanted: int, left: int) -> Work:
        """Reads messages whose claims have ended, further ones if some are not there; returns the bytes left."""
        state, horizon, longest = self.state, self._scanner.horizon, self._limits.longest
        step, tried, most = max(1, left // longest), 0, wanted
        while left > 0 and len(material.again) < wanted and (ended := state.ended(expired, most)[tried:]):
            tried, most = tried + len(ended), min(MOST_IDS, 2 * most)
            dead, ended, doubt = divided(state, ended, most_deliveries(queue))
            material.dead += dead
            while ended and left > 0:
                some, ended = [(self._partition, position) for position in ended[:step]], ended[step:]
                messages = yield self._fetch(queue, some)
                there = {message.position for message in messages}
                material.again += (kept := [message for message in messages if message.position not in doubt])
                material.dead += [place for place in sorted(there & doubt) if place < horizon]
                # One that is not seen above the horizon may be on its way.
                material.gone += [place for _, place in some if place not in there and place < horizon]
                left -= bytes_of(kept)
                # As many as fit into what is left, if they are about as long as these.
                fit = (len(messages) or PAGE) * left // max(1, bytes_of(messages))
                step = max(1, min(self._limits.page_bytes // longest, fit))
        material.unread = len(material.again) < wanted and bool(state.ended(expired, tried + 1)[tried:])
        return left

    def _fetch(self, queue: Queue, places: Sequence[Location]) -> Call:
        return partial(self._runtime.block, partial(self._store.fetch, queue, places))

    def _read(self, queue: Queue, part: Slice) -> Call:
        def begin(done: Done) -> None:
            if not self._store.begin_read(queue, part, done):
                self._runtime.block(lambda: self._store.read(queue, [part])[0], done)

        return begin

    def _is_of_use(self, state: State, material: Material | None) -> bool:
        """Returns whether what was read still has messages to deliver, after another process has written an entry."""
        if material is None or material.covers != self.state.covers.version:
            return False
        if any(not state.is_known(message.position) for message in material.found.fresh):
            return True
        return any(
            state.has_ended(message.position, self._timing.expired(self._runtime.now())) for message in material.again
        )

    def _decide(self, queue: Queue, taken: Sequence[Request], material: Material | None) -> tuple[EntryDraft, int]:
        """Decides on the next entry; says how many messages its cursor passes."""
        now, copies = self._runtime.now(), Copies() if material is None else material.found.copies
        horizon, below = self._scanner.horizon, ids.LAST
        if isinstance(taken[0], MoveRequest):
            copies, horizon, below = taken[0].copies, taken[0].horizon, taken[0].below
        covers = self._duplicates.draft(queue, self.state, copies, horizon, now, below)
        draft = EntryDraft(self.state, now, self._timing, covers)
        # What was published is noted even if that has taken long.
        carried = [request for request in taken if request.enter() or isinstance(request, SentRequest)]
        for request in carried:
            request.edit(draft)
        if isinstance(taken[0], MoveRequest):
            return draft, taken[0].passed
        if material is None:
            return draft, 0
        draft.drop(material.gone)
        if material.dead:
            draft.bury(material.dead, queue_for(queue.name, queue.dead_letter))
        polls = [request.poll for request in polls_of(carried)]
        draft.deliver(polls, material.again, material.found.fresh, most_deliveries(queue))
        return draft, conclude(draft, material.found.chain, delete=queue.on_ack == "delete")

    def _complete(self, queue: Queue, draft: EntryDraft) -> Entry:
        deleted = self._follow_ups.all_deleted(self.state)
        snapshot = self._length.to_name if self._length.to_name > self.state.snapshot else 0
        delete = queue.on_ack == "delete"
        stored = self._duplicates.written(self.state)
        token = self._runtime.token
        secrets = [token() >> 63 - SECRET_BITS for _ in draft.groups]
        return draft.entry(token(), secrets=secrets, delete=delete, deleted=deleted, snapshot=snapshot, stored=stored)

    # Answers

    def _answer(
        self, taken: Sequence[Request], polls: Sequence[PollRequest], material: Material | None, end: Appended
    ) -> None:
        state, boottime = self.state, self._runtime.boottime
        if material is not None:
            self._line.put_back([poll for poll in polls if not self._answer_poll(poll, material, end)])
        for request in taken:
            if isinstance(request, SettleRequest):
                if request.kind == "renew" and boottime() - end.chosen > self._timing.answer_within(request.ttl):
                    request.answer(None, too_late())
                elif any(one.status is ReceiptStatus.REFUSED for one in request.settled):
                    others = any(one.status is ReceiptStatus.DONE for one in request.settled)
                    request.answer(None, too_many(self._partition, "unknown" if others else "none"))
                else:
                    request.answer(request.settled)
            elif not isinstance(request, PollRequest):
                request.answer(request.result(state))

    def _answer_poll(self, request: PollRequest, material: Material, end: Appended) -> bool:
        """Answers a poll, unless it got nothing and another round may find something for it.

        An empty answer comes only from a round that has found no message: then there was a moment at which none was
        free. Where others got what was found, nobody knows what has come since.

        Returns:
            Whether it was answered.
        """
        ttl = request.poll.ttl
        if given := request.gets(self.state, self._partition, end.number):
            late = ttl > 0 and self._runtime.boottime() - end.chosen > self._timing.answer_within(ttl)
            if not request.tell(given, late=late) and ttl:
                self.add(giving_back(request.queue, [receipt for _, _, receipt, _ in given]))
            return True
        more = material.more or material.has_any or material.unread
        if more and end.chosen - request.asked < PATIENCE:
            leave([request])
            return False
        if material.full:
            request.answer(None, too_many(self._partition))
        elif material.found.full and not more:
            request.answer(None, too_fast(self._partition))
        elif more or material.found.end is not None:
            request.answer(None, ClaimUndecided("Others took all messages that were found. Claim again."))
        else:
            request.answer([])
        return True

    def _give_up_late(self, taken: Sequence[Request]) -> None:
        """Answers the requests that have waited for too long. Their work may be done all the same."""
        everybody = [*taken, *self._line.waiting()]
        limit = self._runtime.boottime() - PATIENCE
        for request in everybody:
            if request.asked < limit and not request.answered:
                outcome: Outcome = "unknown" if request.sent else "none"
                request.answer(None, StoreUnavailable("The claim log could not be written in time.", outcome=outcome))

    # The log

    def _catch_up_for(self, queue: Queue, taken: Sequence[Request]) -> Work:
        """Reads what others wrote since requests came whose answers depend on it; returns whether there was any."""
        if all(request.asked <= self._current for request in taken if request.depends_on_others):
            return False
        before = self.state.number
        yield from self._read_from(queue, self.state)
        return self.state.number > before

    def _read_from(self, queue: Queue, state: State, *, newest: bool = False) -> Work:
        """Reads what follows a state, up to the log's end; returns the tokens of the entries by number."""
        began = self._runtime.boottime()
        tokens: dict[int, int] = {}
        while True:
            page: LogPage = yield self._read_log(queue, state.number + 1, newest=newest)
            before = state.number
            apply = partial(self._apply_page, state, page, tokens)
            state = (yield partial(self._runtime.block, apply)) if _is_long(page) else apply()
            if state.number >= page.last:
                break
            if state.number == before and newest:
                text = f"ends at {page.last}, and entry {before + 1} is missing"
                raise StoreIncompatible(f"The claim log of partition {self._partition} {text}.")
            # Not every replica has the entry yet: a serial read brings it to them.
            newest = newest or state.number == before
        self.state = state
        self._current = began
        return tokens

    def _apply_page(self, state: State, page: LogPage, tokens: dict[int, int]) -> State:
        """Applies the entries that were read to a state; returns it, or the one that a snapshot begins."""
        if page.snapshot is not None and page.snapshot.number > state.number:
            state = State.decode(page.snapshot.body)
            self._length.read(len(page.snapshot.body))
            self._follow_ups.found([*state.undeleted, *state.outbox])
        for one in page.entries:
            if one.number > state.number:
                entry = decode_entry(one.body)
                tokens[one.number] = entry.token
                self._apply(state, one, entry)
        return state

    def _apply(self, state: State, one: LogEntry, entry: Entry) -> None:
        written = self._runtime.boottime_at(entry.at)
        new = [place for _, places in entry.claims for place in places if not state.is_known(place)]
        state.apply(one.number, entry)
        self._scanner.claimed(new)
        self._length.entered(one.number, len(one.body), written)
        self._follow_ups.found([one.number, *(place for place, _, _ in entry.outs)], written)

    def _read_log(self, queue: Queue, first: int, *, newest: bool) -> Call:
        def begin(done: Done) -> None:
            if newest or not self._store.begin_read_log(queue, self._partition, first, done):
                work = partial(self._store.read_log, queue, self._partition, first, newest=newest)
                self._runtime.block(work, done)

        return begin

    def _append(self, queue: Queue, entry: Entry, taken: Sequence[Request]) -> Work:
        """Appends an entry until it is certain whether it was, and applies it; else applies what another appended.

        Returns:
            Whether it was.
        """
        state = self.state
        one = LogEntry(state.number + 1, encode_entry(entry))
        began = self._runtime.boottime()
        below = self._length.truncatable(state.number, began) if entry.snapshot else None
        doubted = False
        pause = FIRST_PAUSE
        while True:
            try:
                applied = yield partial(self._send, queue, one, entry.snapshot or None, below)
                break
            except QueueChanged:
                if not doubted:
                    raise
                queue = yield from _in_doubt(self._same_queue(queue))
            except StoreUnavailable as error:
                if error.outcome == "none" and not doubted:
                    raise
                doubted = True
                self._give_up_late(taken)
                if isinstance(error, StoreClosed):
                    raise StoreClosed(str(error), outcome="unknown") from error
            yield partial(self._pause, pause * (0.5 + self._runtime.jitter()))
            pause = min(2 * pause, LONGEST_PAUSE)
        if applied:
            self._took = self._runtime.boottime() - began
            state.apply(one.number, entry)
            self._length.entered(one.number, len(one.body), began)
            self._current = began
            return True
        self.refused = self._runtime.boottime()
        self._totals.refused()
        yield partial(self._pause, min(LONGEST_BACK_OFF, self._took) * self._runtime.jitter())
        reading = self._read_from(queue, state)
        tokens = yield from (_in_doubt(reading) if doubted else reading)
        if one.number not in tokens and doubted:
            raise StoreUnavailable("It cannot be found out whether the claim log was written.", outcome="unknown")
        return tokens.get(one.number) == entry.token

    def _send(self, queue: Queue, one: LogEntry, snapshot: int | None, below: int | None, done: Done) -> None:
        self._store.begin_append_entry(queue, self._partition, one, done, snapshot=snapshot, truncate_below=below)

    def _pause(self, seconds: float, done: Done) -> None:
        self._runtime.later(seconds, lambda: done(None, None))

    def _same_queue(self, queue: Queue) -> Work:
        """Returns the queue's row as it is now, if the log is still its.

        Raises:
            QueueChanged: It is not: the queue was purged or deleted.
        """
        look = partial(self._store.queue, queue.application, queue.name, fresh=True)
        try:
            fresh: Queue = yield partial(self._runtime.block, look)
        except QueueNotFound as error:
            raise QueueChanged(str(error)) from error
        if fresh.qid != queue.qid:
            raise QueueChanged("the queue was purged")
        return fresh

    # What follows

    def _delete(self, queue: Queue, number: int) -> Work:
        """Deletes the messages that the log asks to delete. If that fails, it is repeated later."""
        for key in self._follow_ups.deletions(self.state, number, self._runtime.boottime()):
            places = [(self._partition, position) for position in self.state.undeleted[key]]
            try:
                yield partial(self._runtime.block, partial(self._store.delete, queue, places))
            except QueueyError:
                return
            self._follow_ups.deleted(key)

    def _publish(self, queue: Queue, outs: Sequence[Position]) -> Work:
        """Publishes some dead letters; the next round records that and goes on. If that fails, it is repeated later."""
        fit = max(1, self._limits.page_bytes // self._limits.longest)
        letters = self._follow_ups.letters(self.state, outs, self._runtime.boottime(), fit)
        if not letters:
            return
        now, horizon = self._runtime.now() / 1000, self._scanner.horizon
        work = partial(publish, self._store, queue, self._partition, letters, horizon, now)
        sent, failed = yield partial(self._runtime.block, work)
        if failed:
            self._follow_ups.put_off(self.state, self._runtime.boottime())
        if sent:
            self.add(SentRequest(queue, ignore, sent))

    def _snapshot(self, queue: Queue) -> Work:
        """Writes a snapshot; the next entry names it."""
        state = self.state
        self._length.begun()

        def write() -> int:
            body = state.encode()
            self._store.write_snapshot(queue, self._partition, state.number, body)
            return len(body)

        try:
            length = yield partial(self._runtime.block, write)
        except QueueyError:
            return
        self._length.written(state.number, length)


def _in_doubt(work: Work) -> Work:
    """Does some work after an entry may have been appended: no error of it says that nothing was changed."""
    try:
        return (yield from work)
    except StoreUnavailable as error:
        raise in_doubt(error) from error


def _is_long(page: LogPage) -> bool:
    """Returns whether applying a page takes so long that other requests should not wait for it."""
    return page.snapshot is not None or sum(len(one.body) for one in page.entries) > LONG
