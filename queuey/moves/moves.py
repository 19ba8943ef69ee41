"""Moves all messages of a queue to another one, as a job that survives its process.

See ``docs/architecture-claims-jobs.md``. The process at work on a move updates its record every second, and the record
becomes due some seconds after the last update. So if that process stops, another one continues. If the first one still
works after all, that does no harm: see :mod:`queuey.moves.active_move`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from secrets import randbits
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from queuey.access.queue_access import QueueAccess
from queuey.api.progress import Move, MoveState
from queuey.claims.claims import ClaimUseCases
from queuey.model import ids
from queuey.model.errors import InvalidRequest, MoveNotFound, QueueyError, RecordChanged
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import Record
from queuey.moves.active_move import ActiveMove
from queuey.moves.move_records import ENDED_STATES, KIND, MoveRecord, MoveRecords, QueueMoveProgress, State, decode
from queuey.runtime.due_work import DueRunner, DueTiming, DueWork, NextStep
from queuey.storage import Store

M = TypeVar("M", bound=Move)
T = TypeVar("T")
MAX_ACTIVE_MOVES = 8
REST_RATIO, MAX_REST = 0.25, 0.1
"""Pause after a chunk, for other requests: its ratio to the time of the chunk, and its max in seconds."""


class MoveTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds.

    Attributes:
        search: Interval between searches for moves that have stopped elsewhere.
        stale: Age of a record's last update after which another process takes the move over.
        beat: Interval between updates of a record.
    """

    search: float = 3.0
    stale: float = 4.0
    beat: float = 1.0

    @property
    def to_due_timing(self) -> DueTiming:
        return DueTiming(search=self.search, overdue=0.0, max_ahead=self.stale, max_pause=self.search, at_once=1)


class MoveUseCases:
    """Starts, shows and cancels moves; these calls block."""

    def __init__(
        self, store: Store, claims: ClaimUseCases, stopping: threading.Event, *, timing: MoveTiming | None = None
    ) -> None:
        self._records = MoveRecords(store)
        self._claims = claims
        timing = timing or MoveTiming()
        self._carrier = MoveCarrier(store, claims, self._records, timing)
        self._runner = DueRunner(store, self._carrier, claims.core, stopping, timing.to_due_timing)

    def statistics(self) -> dict[str, float]:
        return self._carrier.statistics()

    def start_background_work(self) -> None:
        self._runner.start_or_wake()

    def end(self) -> asyncio.Task[None] | None:
        """Wakes and returns the background task, which ends if the service is stopping; None if it was not started."""
        return self._runner.end()

    async def begin(self, source: QueueAccess, target: QueueAccess) -> MoveState:
        """Starts moving all messages that the source has now, or returns the move that does so already.

        The caller may read and delete in the source, and send to the target.

        Raises:
            InvalidRequest: Source and target are the same queue, or one is ordered or limits claims by key.
            ClaimsRefused: The source's consistency level does not allow claims.
            MoveUnderWay: The source is being moved to another queue, or its move is being cancelled.
            TooManyMoves: The application has the max number of moves.
        """
        if source.queue.uid == target.queue.uid:
            raise InvalidRequest({"to": "The target is the queue that has the messages. Choose another one"})
        for access, field in ((source, "from"), (target, "to")):
            access.queue.traits.check("move", access.queue, field)
        await source.refresh()
        await target.refresh()
        self._claims.logs.check(source.queue)
        record, is_new = await self._records.begin(source.queue, target.queue)
        if is_new:
            self._runner.plan(record)
        else:
            self._runner.start_or_wake()
        return _make_report(MoveState, decode(record.value))

    async def show(self, application: str, name: str, may_see: Callable[[str], bool]) -> MoveState:
        """Returns the state of a move; ``may_see`` returns whether the caller may see a queue, by its name.

        Raises:
            MoveNotFound: The move does not exist, or the caller may see neither of its queues.
        """
        record = await self._records.find(application, name)
        if not _is_seen(record, may_see):
            raise MoveNotFound(name)
        return _make_report(MoveState, record)

    async def list(self, application: str, may_see: Callable[[str], bool]) -> list[Move]:
        return [
            _make_report(Move, record)
            for record in await self._records.list_moves(application)
            if _is_seen(record, may_see)
        ]

    async def cancel(self, application: str, name: str, may_delete: Callable[[str], bool]) -> MoveState:
        """Requests the end of a move. Moved messages stay in the target. An ended move is not changed.

        Args:
            application: Owner of both queues.
            name: Id of the move.
            may_delete: Returns whether the caller may delete messages of a queue, by its name. Required for the source.

        Raises:
            MoveNotFound: The move does not exist, or the caller may not cancel it.
        """
        record = await self._records.find(application, name)
        if not may_delete(record.move.source):
            raise MoveNotFound(name)
        is_over = record.progress.state in ENDED_STATES
        return _make_report(MoveState, record if is_over else await self._records.cancel(record.move))


def _is_seen(record: MoveRecord, may_see: Callable[[str], bool]) -> bool:
    return may_see(record.move.source) or may_see(record.move.target)


def _make_report(kind: type[M], record: MoveRecord) -> M:
    move, progress = record.move, record.progress
    return kind(
        id=move.id,
        source=move.source,
        target=move.target,
        state=progress.state,
        moved=progress.moved,
        total=None if progress.total < 0 else progress.total,
        left=progress.left,
        began=ids.ticks_to_seconds(move.number),
        updated=progress.updated or None,
        ended=progress.ended or None,
        error=progress.error or None,
    )


class _Work(NamedTuple):
    """A move at work, and its record as this process last wrote it."""

    active: ActiveMove
    record: Record
    saved: float


class MoveCarrier(DueWork):
    """Carries out the steps of moves, as a ``DueWork``: each step moves one chunk of one partition.

    A step takes over a move that no live process runs, and raises ``RecordChanged`` if another process runs it. A
    process runs at most :data:`MAX_ACTIVE_MOVES` moves and puts the others off.
    """

    kind = KIND

    def __init__(
        self,
        store: Store,
        claims: ClaimUseCases,
        move_records: MoveRecords,
        timing: MoveTiming,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._claims = claims
        self._core = claims.core
        self._records = move_records
        self._timing = timing
        self._clock = clock
        self._wall = wall
        self._token = randbits(63) | 1
        self._work: dict[str, _Work] = {}
        self._moved = 0

    def statistics(self) -> dict[str, float]:
        return {"moves_running": len(self._work), "moves_messages_total": self._moved}

    def find_held(self, name: str) -> Record | None:
        work = self._work.get(name)
        return None if work is None else work.record

    def forget(self, name: str) -> None:
        self._work.pop(name, None)

    async def step(self, record: Record) -> NextStep | None:
        progress = decode(record.value).progress
        work = self._work.get(record.name)
        if work is None or progress.runner != self._token:
            is_put_off = self._store.clock.now_ticks() < record.due <= self._ticks_in(self._timing.stale)
            if is_put_off and progress.runner not in {0, self._token}:
                raise RecordChanged(record.name)  # Another process works on it.
            if len(self._work) >= MAX_ACTIVE_MOVES:
                return NextStep(record.version, 0, self._timing.stale)
            work = await self._take_over(record, progress)
        else:
            work = work._replace(record=record)
        active = work.active
        active.progress = replace(active.progress, state=progress.state)
        began, error = self._clock(), active.progress.error
        if not active.is_over and active.due <= began:
            await active.run()
        if active.is_over:
            await self._record_end(work)
            return None
        now = self._clock()
        if now - work.saved >= self._timing.beat or active.progress.error != error:
            work = await self._save(work, active.make_progress(), self._ticks_in(self._timing.stale))
        pause = max(active.due - now, min(MAX_REST, REST_RATIO * (now - began)))
        return NextStep(work.record.version, 0, min(pause, self._timing.beat))

    async def _take_over(self, record: Record, before: QueueMoveProgress) -> _Work:
        own_progress = replace(before, runner=self._token)
        due = self._ticks_in(self._timing.stale)
        record = await self._records.save(record, own_progress, due)
        active = ActiveMove(decode(record.value).move, own_progress, self._store, self._claims, self._clock)
        if own_progress.total < 0:
            await active.estimate_total()
        work = self._work[record.name] = _Work(active, record, self._clock())
        return work

    async def _save(self, work: _Work, progress: QueueMoveProgress, due: int) -> _Work:
        active, record = work.active, work.record
        moved = progress.moved - active.progress.moved
        if moved:
            progress = replace(progress, updated=self._wall())
        saved, progress = await self._write(partial(self._records.save, due=due), record, progress)
        self._moved += moved
        active.progress = progress
        work = self._work[record.name] = _Work(active, saved, self._clock())
        return work

    async def _record_end(self, work: _Work) -> None:
        record, counted = work.record, work.active.make_progress()
        state: State = "cancelled" if counted.state == "cancelling" else "done"
        if counted.error:
            state = "failed"
        moved, now = counted.moved - work.active.progress.moved, self._wall()
        final = replace(counted, state=state, ended=now, runner=0, updated=now if moved else counted.updated)
        await self._write(self._records.end, record, final)
        self._moved += moved

    async def _write(
        self, write: Callable[[Record, QueueMoveProgress], Awaitable[T]], record: Record, progress: QueueMoveProgress
    ) -> tuple[T, QueueMoveProgress]:
        while True:
            try:
                return await write(record, progress), progress
            except RecordChanged:
                record = await self._records.reread(record)
                stored = decode(record.value).progress
                if stored.runner != self._token or stored.state != "cancelling":
                    raise
                if progress.state == "running":
                    progress = replace(progress, state="cancelling")

    async def end(self) -> None:
        # Remove the runner from the records, so that other processes continue at once.
        for work in list(self._work.values()):
            try:
                await self._save(work, replace(work.active.make_progress(), runner=0), self._store.clock.now_ticks())
            except RecordChanged:
                continue
            except QueueyError:
                return

    def _ticks_in(self, seconds: float) -> int:
        return self._store.clock.now_ticks() + round(seconds * TICKS_PER_SECOND)
