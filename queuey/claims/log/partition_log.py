"""One partition's claim log in one process: its state in memory, the requests that wait for it, and the next entry.

::

    requests wait ─► decide ─┬─► append ──applied──────────────────────────► written: apply, answer ─► next round
                      ▲      │     │ ▲ └──refused─► read, apply ────────────┐
                      │      │     │ └─in doubt: the same entry again       │ the entry there is ours: it was written
                      │      │     └──certainly not: the error is answered  │
                      ├──────│───────────────── it is another's: refused ◄──┘
                      ├──────┼─ outdated, or postponed
                             └─ unneeded ──────────────────────────────────► answer ─► next round

One round is under way at a time; requests that come meanwhile wait for the next one and share its entry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Literal, NamedTuple, TypeVar

import msgspec

from queuey.access.queue_access import find_same_queue
from queuey.claims.log.follow_ups import FollowUpRunner
from queuey.claims.log.log_requests import (
    ClaimTotals,
    ClaimUndecided,
    LogRequest,
    PollRequest,
    SentRequest,
    SettleRequest,
    StateQuery,
    list_polls,
    make_release_request,
    mark_unsent,
    read_limit_error,
    too_many_claims_error,
    too_many_waiting_error,
)
from queuey.claims.log.message_finder import Candidates, Finder, OrderedScanner, ReadingRequest
from queuey.claims.rules.entries import ClaimEntry, UnknownFormat, decode_entry, encode_entry
from queuey.claims.rules.entry_draft import MAX_ENTRY_IDS, EntryDraft, Poll
from queuey.claims.rules.partition_state import ClaimTiming, State
from queuey.claims.rules.receipts import SECRET_BITS, ReceiptStatus
from queuey.model.deadletters import queue_for
from queuey.model.errors import (
    InvalidRequest,
    Outcome,
    QueueChanged,
    QueueyError,
    StoreClosed,
    StoreIncompatible,
    StoreUnavailable,
    in_doubt,
)
from queuey.model.messages import LogEntry, LogPage, Queue
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.storage import Store

REQUEST_TIMEOUT = 5.0
"""Max seconds that a request waits for its entry to be applied."""
FIRST_PAUSE, MAX_PAUSE = 0.02, 0.5
"""Seconds between attempts to append an entry that is in doubt."""
MAX_BACK_OFF = 0.02
"""Max seconds to wait after another process's entry was first; at most as long as this process's last append took."""
MIN_CURSOR_ADVANCE = 500
"""Min messages that the cursor must pass to justify an entry of its own."""
MARK_INTERVAL = 5.0
"""Interval in seconds between two marks of the log's growth."""
MAX_LOOP_BYTES = 1 << 16
"""Max bytes of entries applied in the event loop; more take several milliseconds and are applied in a thread."""
T = TypeVar("T")
Fate = Literal["written", "unneeded", "outdated", "postponed", "refused"]
"""What became of a round's entry. ``written`` and ``unneeded`` end the round; otherwise it decides anew:

* ``unneeded``: it would change nothing, and the state is current.
* ``outdated``: it would change nothing, but entries of other processes were read meanwhile.
* ``postponed``: a snapshot or a record was written first, which takes time, and claims expire from the decision on.
* ``refused``: an entry of another process came first, so this one was certainly not written.
"""
_row_of, _version_of = attrgetter("queue"), attrgetter("version")
_status_of, _weight_of = attrgetter("status"), attrgetter("weight")
RecordOutbox = Callable[[Queue], Awaitable[None] | None]
"""Makes sure that other processes publish the dead letters of a queue if this one ends; returns None if they will."""


class SnapshotPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Policy that keeps a log short.

    Attributes:
        entries: Min entries between snapshots; together they must also be as long as the last snapshot.
        most_entries: Number of entries after which a snapshot is made in any case.
        kept_entries: Number of entries that truncation leaves.
        kept_seconds: Age in seconds up to which truncation leaves entries, too.
    """

    entries: int = 256
    most_entries: int = 2048
    kept_entries: int = 256
    kept_seconds: float = 60.0


class LogCompaction:
    """A log's growth as one process has seen it, and when to write snapshots and truncate.

    Attributes:
        is_due: A snapshot is due.
        to_name: Number of the snapshot that the next entry names, unless the log already names a newer one.
    """

    __slots__ = ("_bytes", "_entries", "_marks", "_snapshot", "_upkeep", "is_due", "to_name")

    def __init__(self, upkeep: SnapshotPolicy) -> None:
        self._upkeep = upkeep
        self._entries = self._bytes = self._snapshot = 0
        self._marks: deque[tuple[float, int]] = deque()
        self.is_due = False
        self.to_name = 0

    def add_entry(self, number: int, length: int, written: float) -> None:
        """Counts an entry and its bytes; marks its time if the last mark is older than ``MARK_INTERVAL``.

        Drops marks older than ``kept_seconds``, except the latest of them.
        """
        self._entries += 1
        self._bytes += length
        if self._entries >= self._upkeep.entries:
            self.is_due = self._bytes >= self._snapshot or self._entries >= self._upkeep.most_entries
        if not self._marks or written - self._marks[-1][0] >= min(MARK_INTERVAL, self._upkeep.kept_seconds):
            self._marks.append((written, number))
            while len(self._marks) > 1 and self._marks[1][0] <= written - self._upkeep.kept_seconds:
                self._marks.popleft()

    def record_snapshot_read(self, length: int) -> None:
        self._snapshot = length
        self.record_snapshot_begun()

    def record_snapshot_begun(self) -> None:
        self._entries = self._bytes = 0
        self.is_due = False

    def record_snapshot_written(self, number: int, length: int) -> None:
        self._snapshot = length
        self.to_name = number

    def find_truncatable(self, last: int, now: float) -> int | None:
        """Returns the number below which entries may be removed by an entry that names :attr:`to_name`, or None.

        Drops the old marks, so an immediate second call finds None.
        """
        last_old = 0
        while self._marks and self._marks[0][0] <= now - self._upkeep.kept_seconds:
            last_old = self._marks.popleft()[1]
        below = min(last_old, self.to_name + 1, last - self._upkeep.kept_entries)
        return below if below > 1 else None


class RoundEnd(NamedTuple):
    """Result of a round.

    Attributes:
        number: Number of its entry; 0 if none was written.
        decided: Boot time of the decision.
        must_search_again: Another round may find messages for polls that got none.
    """

    number: int
    decided: float
    must_search_again: bool


class PartitionLog:
    """The log of one partition, for all callers in this process.

    Args:
        store: Store of the log.
        key: The queue's ``qid`` and the partition.
        core: Event loop and clock.
        timing: Decides when claims have expired.
        limits: Limits of one answer.
        upkeep: When to write snapshots and truncate the log.
        totals: Counters.
        after: Called after each round.
        record_outbox: Called before an entry makes dead letters.
    """

    def __init__(  # noqa: PLR0913 - what a log is made of
        self,
        store: Store,
        key: tuple[int, int],
        core: Core,
        timing: ClaimTiming,
        limits: Limits,
        upkeep: SnapshotPolicy,
        totals: ClaimTotals,
        after: Callable[[PartitionLog], None] = lambda _log: None,
        *,
        record_outbox: RecordOutbox = lambda _queue: None,
    ) -> None:
        self.key = key
        self.state = State()
        self._is_loaded = False
        self.last_conflict = -1e9
        """Boot time at which another process was last found at work on this log."""
        self._store = store
        self._partition = key[1]
        self._core = core
        self._timing = timing
        self._limits = limits
        self._totals = totals
        self._after = after
        self._record_outbox = record_outbox
        self._waiting: deque[LogRequest] = deque()
        """Requests that no round has taken yet."""
        self.idle = True
        """True if no round is under way and no request waits."""
        self.pending_ids = self._answering_ids = 0
        """Number of ids in the requests that wait or are being answered; the second number leaves out waiting ones."""
        self._append_seconds = 0.0
        self._finder = Finder(store, self._partition, core, timing, limits)
        self._row: Queue | None = None
        self._current_at = -1e9
        """Boot time at which the state had all entries."""
        self._compaction = LogCompaction(upkeep)
        self._follow_ups = FollowUpRunner(store, self._partition, core, limits)
        self._rounds: asyncio.Task[None] | None = None

    @property
    def ordered(self) -> OrderedScanner | None:
        return self._finder.ordered

    @property
    def weight(self) -> int:
        ordered = self._finder.ordered
        return self.state.weight if ordered is None else self.state.weight + ordered.weight

    def may_deliver_more(self, freed: int, *, has_ended: bool) -> bool:
        """Returns whether claims may find a message because ``freed`` messages were done or released."""
        ordered, limit = self._finder.ordered, self._finder.parts.limits.total
        may_free_key = ordered is not None and not ordered.has_none_waiting
        was_full = limit > 0 and len(self.state.outstanding) + freed >= limit
        return freed > 0 and (has_ended or may_free_key or was_full)

    def add(self, *requests: LogRequest) -> None:
        now = self._core.boottime()
        for request in requests:
            request.arrived = request.arrived or now
            self._waiting.append(request)
            self.pending_ids += request.weight
        if self.idle:
            self.idle = False
            self._rounds = self._core.spawn(self._answer_all())

    def _take(self) -> list[LogRequest]:
        """Removes up to ``MAX_ENTRY_IDS`` ids of requests for one entry, in order of arrival; at least one request.

        Requests that are answered already are dropped. If none is left, the log is idle.
        """
        taken: list[LogRequest] = []
        weight = 0
        self.pending_ids -= self._answering_ids
        while self._waiting and (not taken or weight + self._waiting[0].weight <= MAX_ENTRY_IDS):
            request = self._waiting.popleft()
            if request.future.done():
                self.pending_ids -= request.weight
            else:
                taken.append(request)
                weight += request.weight
        self._answering_ids = weight
        self.idle = not taken
        return taken

    def _take_without_reads(self, taken: list[LogRequest], *, polls: bool = False) -> None:
        """Adds waiting settlements to an entry whose receipts need no further reads; with ``polls``, also polls."""
        while self._waiting:
            request = self._waiting[0]
            settles = isinstance(request, SettleRequest) and request.newest <= self.state.number
            is_full = self._answering_ids + request.weight > MAX_ENTRY_IDS
            if is_full or not (settles or (polls and isinstance(request, PollRequest))):
                return
            taken.append(self._waiting.popleft())
            self._answering_ids += request.weight

    async def _answer_all(self) -> None:
        while requests := self._take():
            try:
                try:
                    await self._round(requests)
                except (QueueyError, UnknownFormat) as error:
                    self._fail(requests, error)
                self._after(self)
            except BaseException as error:  # A bug, or the loop is ending.
                self._fail(requests, StoreUnavailable(f"claims failed: {error!r}", outcome="unknown"))
                self._is_loaded = False
                self.idle = True
                if isinstance(error, Exception):
                    self.add()  # Start a round for the waiting requests.
                raise

    def _fail(self, requests: Sequence[LogRequest], error: Exception) -> None:
        """Answers with an error. An unsent request is not told that its outcome is unknown.

        An entry of unknown format becomes ``StoreIncompatible``.
        """
        if isinstance(error, UnknownFormat):
            error = StoreIncompatible(f"The claim log of partition {self._partition}: {error}. Update this program.")
        for request in requests:
            if isinstance(error, StoreUnavailable) and error.outcome == "unknown" and not request.sent:
                request.answer(None, StoreUnavailable(str(error), retry_after=error.retry_after))
            else:
                request.answer(None, error)

    # A round

    async def _round(self, requests: list[LogRequest]) -> None:
        """Answers requests: reads what they need, decides on an entry and writes it, anew until its fate is final.

        While claims are paused, polls get nothing. They are answered only if the row was current at some moment of the
        round: each append and each read of the log is refused for an outdated row.
        """
        queue = await self._prepare(requests)
        is_paused = queue.claims == "paused"
        candidates: Candidates | None = None
        while True:
            # Reading a snapshot replaces the state, when this process has fallen far behind.
            state, start = self.state, self.state.number
            polls = [] if is_paused else list_polls(requests)
            if polls and candidates is None:
                candidates = await self._finder.find(state, requests, polls)
            if isinstance(requests[0], ReadingRequest):
                await self._finder.gather_for(state, requests[0])
            self._take_without_reads(requests)
            decided = self._core.boottime()
            draft, passed_count = self._decide(queue, requests, candidates)
            entry = self._make_entry(queue, draft, candidates, passed_count)
            if entry is None:
                mark_unsent(requests)
                is_outdated = await self._catch_up_for(queue, requests, always=is_paused)
                fate: Fate = "outdated" if is_outdated else "unneeded"
            elif (entry.outs or self._compaction.is_due) and await self._write_before(entry, queue, requests):
                fate = "postponed"
            else:
                fate = "written" if await self._append(queue, entry, requests, decided) else "refused"
            if fate in {"written", "unneeded"}:
                break
            if fate == "outdated":
                candidates = None
            elif fate == "refused":
                mark_unsent(requests)
                self._take_without_reads(requests, polls=True)
                self._give_up_late(requests)
                is_same = self.state is state and state.withdrawn <= start and set(list_polls(requests)) <= set(polls)
                candidates = candidates if is_same and self._has_deliverable(self.state, candidates) else None
        is_written = entry is not None
        again = self._must_search_again(candidates, draft, passed_count if is_written else 0, is_written=is_written)
        end = RoundEnd(start + 1 if is_written else 0, decided, again)
        self._totals.count_round(requests, entry, self.state)
        if entry is not None and self.state.pending_deletes:
            await self._follow_ups.delete(queue, self.state, end.number)
        await self._answer_requests(requests, polls, candidates, end)
        await self._follow_up(queue, entry, draft)

    async def _write_before(self, entry: ClaimEntry, queue: Queue, requests: Sequence[LogRequest]) -> bool:
        recording = self._record_outbox(queue) if entry.outs else None
        if recording is None and not self._compaction.is_due:
            return False
        mark_unsent(requests)
        await (recording or self._write_snapshot(queue))
        return True

    async def _prepare(self, requests: Sequence[LogRequest]) -> Queue:
        """Loads the state if needed, and reads entries until the state has all that the requests name.

        Settlements that name entries which the log does not have fail. After loading, open deletions are carried out.
        Returns the newest row among the requests, after switching the finder to it.
        """
        queue: Queue = max(map(_row_of, requests), key=_version_of)
        if queue is not self._row:
            self._row = queue
            self._finder.use_row(queue)
        if not self._is_loaded:
            await self._read_from(queue, State(), newest=True)
            self._is_loaded = True
            # Before this round's entry, which then records the deletions as done.
            await self._follow_ups.delete(queue, self.state, 0)
        unknown: list[SettleRequest] = []
        is_current = True
        for request in requests:
            if isinstance(request, SettleRequest) and request.newest > self.state.number:
                unknown.append(request)
            elif isinstance(request, StateQuery) and request.arrived > self._current_at:
                is_current = False
        if unknown or not is_current:
            await self._read_from(queue, self.state)
        last = self.state.number
        for settle in unknown:
            if settle.newest > last:
                text = f"a receipt names entry {settle.newest} of partition {self._partition}, which has only {last}"
                settle.answer(None, InvalidRequest({"receipts": f"{text}. It is of another queue or a purged one."}))
        return queue

    def _has_deliverable(self, state: State, candidates: Candidates | None) -> bool:
        """Returns whether candidates of an earlier state may be delivered now; never with keys."""
        if (
            candidates is None
            or candidates.by_key
            or candidates.covers != self.state.covers.version
            or candidates.includes_expired != state.keeps_expired
        ):
            return False
        if any(not state.is_known(message.position) for message in candidates.scan.fresh):
            return True
        expiry_limit = self._timing.expiry_limit(self._store.clock.now_ms())
        return any(state.has_ended(message.position, expiry_limit) for message in candidates.returned)

    def _begin_draft(self, first: LogRequest, candidates: Candidates | None) -> EntryDraft:
        finder, now = self._finder, self._store.clock.now_ms()
        if finder.duplicates is not None:
            finder.record_copies(finder.duplicates, self.state, first, candidates, now)
        return EntryDraft(self.state, now, self._timing, finder.kind, finder.parts)

    def _decide(
        self, queue: Queue, requests: Sequence[LogRequest], candidates: Candidates | None
    ) -> tuple[EntryDraft, int]:
        finder, first = self._finder, requests[0]
        draft = self._begin_draft(first, candidates)
        draft.records_ends = queue.result_ttl > 0
        polls: list[Poll] = []
        for request in requests:
            if isinstance(request, PollRequest):
                if request.enter():
                    polls.append(request.poll)
            elif not request.future.done() or isinstance(request, SentRequest):
                request.sent = True
                request.edit(draft)
        if isinstance(first, ReadingRequest):
            return draft, first.passed
        if candidates is None:
            return draft, 0
        if candidates.gone:
            draft.end_gone(candidates.gone)
        if candidates.dead_letters:
            target = queue_for(queue.name, queue.dead_letter)
            draft.make_dead_letters(candidates.dead_letters, target, finder.max_deliveries)
        draft.deliver(polls, candidates.returned, candidates.scan.fresh, finder.max_deliveries)
        for expired in (candidates.expired, candidates.scan.expired) if candidates.includes_expired else ():
            draft.expire(expired, queue_for(queue.name, queue.dead_letter))
        chain = candidates.scan.chain
        return draft, draft.advance(chain.bound, chain.seen, delete=queue.on_ack == "delete")

    def _make_entry(
        self, queue: Queue, draft: EntryDraft, candidates: Candidates | None, passed_count: int
    ) -> ClaimEntry | None:
        # With keys, nothing is read beyond what may be remembered, so the cursor must move.
        worth = 1 if candidates is not None and candidates.by_key and candidates.scan.full else MIN_CURSOR_ADVANCE
        if not draft.has_changes_beyond_cursor and passed_count < worth:
            return None
        state = self.state
        deleted = self._follow_ups.known.find_last_deleted(state) if state.pending_deletes else 0
        snapshot = self._compaction.to_name if self._compaction.to_name > state.snapshot else 0
        delete = queue.on_ack == "delete"
        bits = self._core.rng.getrandbits
        secrets = list(map(bits, [SECRET_BITS] * len(draft.groups)))
        return draft.make_entry(bits(63), secrets=secrets, delete=delete, deleted=deleted, snapshot=snapshot)

    def _must_search_again(
        self, candidates: Candidates | None, draft: EntryDraft, passed_count: int, *, is_written: bool
    ) -> bool:
        """Returns whether another round may find messages for the polls that get none; records where the scan ended.

        It may if messages were found that others got or that are gone, if not all messages with ended claims were read,
        if withheld copies are to be delivered, or if the scan was cut short and the next one gets further.

        Args:
            candidates: Messages that this round has read; None if it had no polls.
            draft: The entry of the round.
            passed_count: Number of messages that the cursor has passed.
            is_written: Whether the entry was written; then the next scan begins where this one ended.
        """
        if candidates is None:
            return False
        scan, ordered = candidates.scan, self._finder.ordered
        is_cut = scan.stopped or scan.end is not None
        gets_further = False
        if is_written or is_cut:
            scanner = self._finder.scanner
            gets_further = scanner.advance_front(self.state, scan) if ordered is None else ordered.moved
        is_cut_short = is_cut and (gets_further or passed_count > 0)
        return candidates.has_any or candidates.unread or draft.rules.withdraws_covers or is_cut_short

    # Answers

    async def _answer_requests(
        self, requests: Sequence[LogRequest], polls: Sequence[PollRequest], candidates: Candidates | None, end: RoundEnd
    ) -> None:
        """Answers a round's requests. Polls that got nothing go back to the queue if another round may help.

        A settlement fails as a whole if one of its receipts was refused.
        """
        if candidates is None:
            for poll in list_polls(requests):
                poll.answer([])
        elif unanswered := [poll for poll in polls if not self._answer_poll(poll, candidates, end)]:
            self._waiting.extendleft(reversed(unanswered))
            self.pending_ids += sum(map(_weight_of, unanswered))
        for request in requests:
            if isinstance(request, SettleRequest):
                request.decided = end.decided
                statuses = {*map(_status_of, request.settlements)}
                if ReceiptStatus.REFUSED in statuses:
                    outcome: Outcome = "unknown" if ReceiptStatus.ACCEPTED in statuses else "none"
                    request.answer(None, too_many_claims_error(self._partition, outcome))
                else:
                    request.answer(request.settlements)
            elif not isinstance(request, PollRequest):
                result = partial(request.result, self.state)
                request.answer(await self._core.compute(len(self.state.outstanding), result))

    def _answer_poll(self, request: PollRequest, candidates: Candidates, end: RoundEnd) -> bool:
        """Answers a poll, unless it got nothing and another round may find messages; returns whether it was answered.

        An empty answer comes only from a round that found no message, so at some moment none was free. If others got
        the candidates, new messages may have come since. Answers with an error if a limit was reached or others took
        all candidates. Releases the claims if the caller has gone.
        """
        if claimed := request.list_claimed(self.state, self._partition, end.number):
            request.decided = end.decided
            if not request.answer(claimed) and request.poll.ttl:
                self.add(make_release_request(request.queue, [delivery.receipt for delivery in claimed]))
            return True
        if end.must_search_again and end.decided - request.arrived < REQUEST_TIMEOUT:
            mark_unsent([request])
            return False
        may_find_more = end.must_search_again
        if candidates.full:
            request.answer(None, too_many_claims_error(self._partition))
        elif candidates.by_key and not request.queue.traits.in_order and not may_find_more:
            # Messages that were not read also wait for others of their keys.
            request.answer([])
        elif candidates.scan.full and not may_find_more:
            request.answer(None, (too_many_waiting_error if candidates.by_key else read_limit_error)(self._partition))
        elif may_find_more or candidates.scan.end is not None:
            request.answer(None, ClaimUndecided("Others took all messages that were found. Claim again."))
        else:
            request.answer([])
        return True

    def _give_up_late(self, requests: Sequence[LogRequest]) -> None:
        self._waiting = deque(request for request in self._waiting if not request.future.done())
        self.pending_ids = self._answering_ids + sum(map(_weight_of, self._waiting))
        oldest = self._core.boottime() - REQUEST_TIMEOUT
        for request in [*requests, *self._waiting]:
            if request.arrived < oldest and not request.future.done():
                outcome: Outcome = "unknown" if request.sent else "none"
                request.answer(None, StoreUnavailable("The claim log could not be written in time.", outcome=outcome))

    # The log

    async def _catch_up_for(self, queue: Queue, requests: Sequence[LogRequest], *, always: bool) -> bool:
        if not always and all(request.arrived <= self._current_at for request in requests if request.depends_on_others):
            return False
        before = self.state.number
        await self._read_from(queue, self.state)
        return self.state.number > before

    async def _read_from(self, queue: Queue, state: State, *, newest: bool = False) -> dict[int, int]:
        began = self._core.boottime()
        tokens: dict[int, int] = {}
        while True:
            page = await self._store.claim_logs.read_log(queue, self._partition, state.number + 1, newest=newest)
            before = state.number
            apply = partial(self._apply_page, state, page, tokens)
            state = await self._core.in_thread(apply) if _is_long(page) else apply()
            if state.number >= page.last:
                break
            if state.number == before and newest:
                text = f"ends at {page.last}, and entry {before + 1} is missing"
                raise StoreIncompatible(f"The claim log of partition {self._partition} {text}.")
            # Some replicas do not have the entry yet: a serial read completes it.
            newest = newest or state.number == before
        self.state = state
        self._current_at = began
        return tokens

    def _apply_page(self, state: State, page: LogPage, tokens: dict[int, int]) -> State:
        if page.snapshot is not None and page.snapshot.number > state.number:
            state = State.decode(page.snapshot.body)
            self._compaction.record_snapshot_read(len(page.snapshot.body))
            self._follow_ups.known.add_open([*state.pending_deletes, *state.outbox])
        for log_entry in page.entries:
            if log_entry.number > state.number:
                entry = decode_entry(log_entry.body)
                tokens[log_entry.number] = entry.token
                self._apply_entry(state, log_entry, entry)
        return state

    def _apply_entry(self, state: State, log_entry: LogEntry, entry: ClaimEntry) -> None:
        written = self._core.boottime() - max(0, self._store.clock.now_ms() - entry.at) / 1000
        new_claims = [place for _, places in entry.claims for place in places if not state.is_known(place)]
        state.apply(log_entry.number, entry)
        self._finder.scanner.advance_front_past(new_claims)
        self._compaction.add_entry(log_entry.number, len(log_entry.body), written)
        self._follow_ups.known.add_open([log_entry.number, *(place for place, _, _ in entry.outs)], written)

    async def _append(self, queue: Queue, entry: ClaimEntry, requests: Sequence[LogRequest], decided: float) -> bool:
        """Appends an entry until the result is certain, and applies it, or the other process's entry that was first.

        Returns whether this entry was appended. While that is in doubt, requests that wait too long get an error.
        ``decided`` is the boot time of the decision: if the entry is appended, the state had all others then.
        """
        state = self.state
        log_entry = LogEntry(state.number + 1, encode_entry(entry))
        below = self._compaction.find_truncatable(state.number, decided) if entry.snapshot else None
        append = partial(self._store.claim_logs.append_entry, snapshot=entry.snapshot or None, truncate_below=below)
        is_in_doubt = False
        pause = FIRST_PAUSE
        while True:
            try:
                applied = await append(queue, self._partition, log_entry)
                break
            except QueueChanged:
                if not is_in_doubt:
                    raise
                queue = await _await_in_doubt(self._read_same_queue(queue))
            except StoreUnavailable as error:
                if error.outcome == "none" and not is_in_doubt:
                    raise
                is_in_doubt = True
                self._give_up_late(requests)
                if isinstance(error, StoreClosed):
                    raise StoreClosed(str(error), outcome="unknown") from error
            await asyncio.sleep(pause * (0.5 + self._core.rng.random()))
            pause = min(2 * pause, MAX_PAUSE)
        if applied:
            self._append_seconds = self._core.boottime() - decided
            state.apply(log_entry.number, entry)
            self._compaction.add_entry(log_entry.number, len(log_entry.body), decided)
            self._current_at = decided
            return True
        self.last_conflict = self._core.boottime()
        self._totals.count_refusal()
        await asyncio.sleep(min(MAX_BACK_OFF, self._append_seconds) * self._core.rng.random())
        reading = self._read_from(queue, state)
        tokens = await (_await_in_doubt(reading) if is_in_doubt else reading)
        if log_entry.number not in tokens and is_in_doubt:
            raise StoreUnavailable("Cannot determine whether the claim log was written.", outcome="unknown")
        return tokens.get(log_entry.number) == entry.token

    async def _read_same_queue(self, queue: Queue) -> Queue:
        fresh = await find_same_queue(self._store, queue.application, queue.name, queue.qid)
        if fresh is None:
            raise QueueChanged(queue.name)
        return fresh

    async def _follow_up(self, queue: Queue, entry: ClaimEntry | None, draft: EntryDraft) -> None:
        new_letters = () if entry is None else entry.outs
        if entry is None:  # It adds no follow-up work, but another process may have died before it did its own.
            await self._follow_ups.delete(queue, self.state, 0)
        elif draft.lapsed:
            await self._follow_ups.record_expired_claims(queue, draft.lapsed)
        if self.state.outbox or self._follow_ups.known.open:
            own_letters = [position for position, _, _ in new_letters]
            published = await self._follow_ups.publish(queue, self.state, own_letters, self._finder.scanner.horizon)
            if published:
                self.add(SentRequest(queue, lambda draft: draft.report_sent(published)))
        if self._finder.duplicates is not None:
            await self._finder.duplicates.forget(self.state)

    async def _write_snapshot(self, queue: Queue) -> None:
        state = self.state
        self._compaction.record_snapshot_begun()

        body = await self._core.in_thread(state.encode)
        try:
            await self._store.claim_logs.write_snapshot(queue, self._partition, state.number, body)
        except QueueyError:
            return
        self._compaction.record_snapshot_written(state.number, len(body))


async def _await_in_doubt(work: Awaitable[T]) -> T:
    """Awaits work during which an entry may be appended: its storage errors leave the outcome in doubt."""
    try:
        return await work
    except StoreUnavailable as error:
        raise in_doubt(error) from error


def _is_long(page: LogPage) -> bool:
    return page.snapshot is not None or sum(len(entry.body) for entry in page.entries) > MAX_LOOP_BYTES
