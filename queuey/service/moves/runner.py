"""Carries moves out, in one task of the process, and takes over those that have stopped elsewhere.

A process at work on a move changes the move's record every second. A process that sees a record stand still
for some seconds goes on with that move. If the other one works after all, that does no harm: see
:mod:`queuey.service.moves.partition_moves`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from secrets import randbits

import msgspec
from msgspec.structs import replace

from queuey.errors import QueueyError, StoreClosed
from queuey.service.claims import ClaimUseCases
from queuey.service.moves.active_move import ActiveMove
from queuey.service.moves.records import OVER, Move, MoveRecords, Progress, State, progress_of
from queuey.storage import Store

MOST_HERE = 8
"""Max moves that one process works on at a time."""
REST, LONGEST_REST = 0.25, 0.1
"""Rest after a chunk, for other requests: its ratio to the time of the chunk, and max seconds."""

logger = logging.getLogger(__name__)


class MoveTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds.

    Attributes:
        look: Between two searches for moves that have stopped elsewhere.
        stale: A move whose record has not changed for so long is taken over.
        beat: Between two changes of a record.
    """

    look: float = 2.0
    stale: float = 5.0
    beat: float = 1.0


class _Work:
    """A move in work, and its record as this process has written it."""

    def __init__(self, active: ActiveMove, raw: bytes, now: float) -> None:
        self.active = active
        self.raw = raw
        self.saved = now


class MoveRunner:
    """Works on moves."""

    def __init__(
        self,
        store: Store,
        claims: ClaimUseCases,
        records: MoveRecords,
        stopping: threading.Event,
        *,
        timing: MoveTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._claims = claims
        self._records = records
        self._stopping = stopping
        self._timing = timing or MoveTiming()
        self._clock = clock
        self._wall = wall
        self._token = randbits(63) | 1
        self._core = claims.core
        self._woken = asyncio.Event()
        self._new: list[Move] = []
        self._task: asyncio.Task[None] | None = None
        self._work: dict[int, _Work] = {}
        self._seen: dict[int, tuple[bytes | None, float]] = {}
        self._looked = -1e9
        self._moved = 0

    def statistics(self) -> dict[str, float]:
        return {"moves_running": len(self._work), "moves_messages_total": self._moved}

    def watch(self, new: Move | None = None) -> None:
        """Begins with a new move, and starts to search for moves that have stopped elsewhere. Does not wait."""
        self._core.tell(self._begin, new)

    def _begin(self, new: Move | None) -> None:
        if new is not None:
            self._new.append(new)
        if self._task is None or self._task.done():
            self._task = self._core.spawn(self._run())
        self._woken.set()

    def end(self) -> asyncio.Task[None] | None:
        """Wakes its task and returns it, if it has begun; it ends once the service does."""
        self._woken.set()
        return self._task

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._woken.clear()
                await self._look()
                rest = await self._go_on()
            except StoreClosed:
                return
            except QueueyError as error:
                logger.debug("moves wait: %s", error)
                rest = self._timing.look
            except Exception:
                logger.exception("moves between queues have failed; they are tried again")
                rest = self._timing.look
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), rest)
        await self._hand_back()

    # Which moves to work on

    async def _look(self) -> None:
        new, self._new = self._new, []
        for move in new:
            if len(self._work) < MOST_HERE:
                await self._take_over(move, None)
        now = self._clock()
        if now - self._looked < self._timing.look:
            return
        self._looked = now
        there = await self._core.in_thread(self._records.under_way)
        self._seen = {move.number: self._seen[move.number] for move in there if move.number in self._seen}
        for move in there:
            if move.number not in self._work:
                await self._consider(move, now)

    async def _consider(self, move: Move, now: float) -> None:
        """Starts to work on a move if no process does."""
        raw = await self._core.in_thread(partial(self._records.raw, move))
        before, since = self._seen.get(move.number, (b"", now))
        if before != raw:
            self._seen[move.number] = raw, now
            since = now
        idle = raw is not None and progress_of(raw).runner == 0
        if (idle or now - since >= self._timing.stale) and len(self._work) < MOST_HERE:
            await self._take_over(move, raw)

    async def _take_over(self, move: Move, raw: bytes | None) -> None:
        before = progress_of(raw)
        if before.state in OVER:
            await self._core.in_thread(partial(self._records.leave, move))
            return
        mine = replace(before, runner=self._token, beat=before.beat + 1)
        there = await self._core.in_thread(partial(self._records.save, move, mine, raw))
        if not there or progress_of(there) != mine:
            return
        active = ActiveMove(move, mine, self._store, self._claims, self._clock)
        if mine.total < 0:
            await active.estimate()
        self._work[move.number] = _Work(active, there, self._clock())

    # Work

    async def _go_on(self) -> float:
        """Moves each a chunk further; returns the seconds to rest."""
        began = self._clock()
        due = began + self._timing.look
        for work in list(self._work.values()):
            if self._stopping.is_set():
                break
            active = work.active
            if not active.over and active.due <= self._clock():
                failed = active.progress.error
                await active.run()
                if active.progress.error != failed:
                    work.saved = -1e9
            if active.over:
                await self._end(work)
                continue
            if self._clock() - work.saved >= self._timing.beat and not await self._save(work, active.counted()):
                del self._work[active.move.number]
                continue
            due = min(due, active.due)
        now = self._clock()
        return max(0.0, min(LONGEST_REST, REST * (now - began)) if due <= now else due - now)

    async def _save(self, work: _Work, progress: Progress) -> bool:
        """Records progress; returns False if another process works on the move now."""
        active = work.active
        moved = progress.moved - active.progress.moved
        while True:
            new = replace(progress, beat=active.progress.beat + 1)
            if moved:
                new = replace(new, updated=progress.ended or self._wall())
            there = await self._core.in_thread(partial(self._records.save, active.move, new, work.raw))
            if not there:
                return False
            found = progress_of(there)
            if found == new:
                work.raw, work.saved = there, self._clock()
                self._moved += moved
                active.progress = new
                return True
            if found.runner != self._token or found.state != "cancelling":
                return False
            work.raw = there
            active.progress = replace(active.progress, state="cancelling", beat=found.beat)
            progress = replace(progress, state="cancelling" if progress.state == "running" else progress.state)

    async def _end(self, work: _Work) -> None:
        """Records the end of a move."""
        counted = work.active.counted()
        state: State = "cancelled" if counted.state == "cancelling" else "done"
        if counted.error:
            state = "failed"
        over = replace(counted, state=state, ended=self._wall(), runner=0)
        del self._work[work.active.move.number]
        if await self._save(work, over):
            await self._core.in_thread(partial(self._records.leave, work.active.move))

    async def _hand_back(self) -> None:
        """Clears the runner, so that other processes go on at once."""
        for work in self._work.values():
            try:
                await self._save(work, replace(work.active.counted(), runner=0))
            except QueueyError:
                return
