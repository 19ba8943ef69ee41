"""Work that outlives a process: records with a due time. Any process takes the next step, by compare-and-set.

Each process plans the steps of the records that it changed last and, at its start, of all records. When a record is
due, the process reads it. If the record has not changed since, the process takes the step. Otherwise another process
takes it, and this one drops the record from its plan. So one process usually does all the work of a record. The other
processes search now and then for overdue records, because their process may have ended. If several processes try the
same step, one succeeds.

:mod:`queuey.schedules.schedules` and :mod:`queuey.moves.moves` define the steps.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from queuey.model import ids
from queuey.model.errors import KeyInUse, QueueyError, RecordChanged, StoreClosed, TimeZoneUnknown
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import Record, RecordDue
from queuey.runtime.event_loop import Core
from queuey.storage import Store

T = TypeVar("T")
MAX_STEPS_IN_PASS = 32
"""Max steps before the plan is checked again for steps that have become due."""
MAX_SECONDS_AHEAD = 3600
"""Max seconds by which a past event may be ahead of the clock; beyond it, the clock was ahead at that time."""
MAX_PLANNED = 20_000
"""Max records that a process plans; it finds the others when they are overdue."""
MIN_RETRY_INTERVAL = 0.5
"""Pause in seconds before the first retry of a failed step."""

logger = logging.getLogger(__name__)
Name = tuple[str, str]


def order_in_turns(items: Iterable[T], application: Callable[[T], str]) -> list[T]:
    """Orders items round robin: the first item of each application, then the second items, and so on."""
    turns = Counter[str]()
    ordered = []
    for item in items:
        name = application(item)
        ordered.append((turns[name], item))
        turns[name] += 1
    return [item for _, item in sorted(ordered, key=lambda pair: pair[0])]


def sort_steps(due: Iterable[tuple[int, Name]]) -> list[Name]:
    return [name for _, name in order_in_turns(sorted(due), lambda step: step[1][0])]


class DueTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the steps, in seconds.

    Attributes:
        search: Approximate interval between searches for overdue records.
        overdue: Age of a due record at which processes that have not planned it take its step.
        max_ahead: A record due later than this was postponed by a clock that was ahead; it is due now.
        max_pause: Max pause before a failed step is retried.
        at_once: Max steps that a process takes concurrently.
    """

    search: float = 15.0
    overdue: float = 3.0
    max_ahead: float = math.inf
    max_pause: float = 30.0
    at_once: int = 4


class NextStep(NamedTuple):
    """The next step of a record, as planned for this process.

    Attributes:
        version: Present version of the record.
        due: Ticks; ``ids.TICKS_MAX`` means never.
        rest: Min seconds until the step, even if the clock is changed.
    """

    version: int
    due: int
    rest: float = 0.0


class DueWork(ABC):
    """Takes the steps of the records of one kind.

    Attributes:
        kind: The kind.
    """

    kind: str

    async def prepare(self, ahead: float) -> None:  # noqa: B027 - nothing by default
        """Called before each search.

        Args:
            ahead: Seconds by which the next id will be ahead of the clock, because the clock was ahead before.
        """

    def find_held(self, name: str) -> Record | None:  # noqa: ARG002 - none by default
        """Returns a record whose next step can be taken without reading it, or None.

        Another process's change is then detected by the step itself.
        """
        return None

    @abstractmethod
    async def step(self, record: Record) -> NextStep | None:
        """Takes the next step of a record.

        Returns the step after it, or None if this process takes no further step.

        Raises:
            RecordChanged: Another process has changed the record.
            Exception: The step failed; it is logged and retried.
        """

    def forget(self, name: str) -> None:  # noqa: B027 - nothing by default
        """Called when another process has changed a record, or after the last step."""

    async def end(self) -> None:  # noqa: B027 - nothing by default
        """Called when the service ends, after the last step."""


class _PlannedStep(NamedTuple):
    """The next step of a record, as this process plans it.

    Attributes:
        due: Ticks.
        failed: Number of consecutive failures.
        retry: Boot time before which the step is not taken.
    """

    due: int
    version: int
    failed: int = 0
    retry: float = 0.0


class DueRunner:
    """Runs the steps of the records of one kind, in one task of the process."""

    def __init__(self, store: Store, work: DueWork, core: Core, stopping: threading.Event, timing: DueTiming) -> None:
        self._store = store
        self._work = work
        self._core = core
        self._stopping = stopping
        self._timing = timing
        self._planned: dict[Name, _PlannedStep] = {}
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._next_search: float | None = None
        self._searched: int | None = None
        """Time of the last search (ticks)."""

    def start_or_wake(self) -> None:
        """Starts the task that takes due steps, or wakes it."""
        self._core.call_soon(self._begin)

    def plan(self, record: Record) -> None:
        self._core.call_soon(self._begin, record)

    def _begin(self, record: Record | None = None) -> None:
        if record is not None:
            self._plan_step((record.application, record.name), NextStep(record.version, record.due))
        if self._task is None or self._task.done():
            self._task = self._core.spawn(self._run())
        self._woken.set()

    def end(self) -> asyncio.Task[None] | None:
        """Wakes the task, which ends if the service is stopping, and returns it. Returns None if it has not begun."""
        self._woken.set()
        return self._task

    def _plan_step(self, name: Name, following: NextStep) -> None:
        if following.due == ids.TICKS_MAX:
            self._planned.pop(name, None)
        elif name in self._planned or len(self._planned) < MAX_PLANNED:
            self._planned[name] = _PlannedStep(
                following.due, following.version, retry=self._core.boottime() + following.rest
            )

    async def _run(self) -> None:
        """Takes turns until the service or the store ends; the pause doubles with each failed turn.

        When the service ends, it ends the work, too. If the store closes first, it returns without ending the work.
        """
        failed = 0
        while not self._stopping.is_set():
            self._woken.clear()
            try:
                pause = await self._take_turn()
                failed = 0
            except StoreClosed:
                return
            except QueueyError as error:
                logger.debug("%ss wait: %s", self._work.kind, error)
                pause, failed = self._retry_pause(failed), failed + 1
            except Exception:
                logger.exception("work on %ss failed; it will be retried", self._work.kind)
                pause, failed = self._retry_pause(failed), failed + 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), pause)
        await self._work.end()

    async def _take_turn(self) -> float:
        now = self._store.clock.now_ticks()
        boottime = self._core.boottime()
        if self._next_search is None or boottime >= self._next_search:
            await self._plan_overdue(now)
            # Jitter keeps processes from searching at the same moment.
            self._next_search = boottime + self._timing.search * (0.8 + 0.4 * self._core.rng.random())
        due = sort_steps(
            (step.due, name) for name, step in self._planned.items() if step.due <= now and step.retry <= boottime
        )[:MAX_STEPS_IN_PASS]
        for first in range(0, len(due), self._timing.at_once):
            if self._stopping.is_set():
                return 0.0
            await asyncio.gather(*map(self._step, due[first : first + self._timing.at_once]))
        if due:
            return 0.0
        waits = (max((step.due - now) / TICKS_PER_SECOND, step.retry - boottime) for step in self._planned.values())
        return max(0.0, min([self._next_search - boottime, *waits]))

    async def _plan_overdue(self, now: int) -> None:
        was_ahead, rows = await self._search(now)
        for row in rows:
            name = row.application, row.name
            planned = self._planned.get(name)
            if was_ahead or planned is None or planned.version != row.version:
                self._planned[name] = _PlannedStep(row.due, row.version)
        self._searched = now

    async def _search(self, now: int) -> tuple[bool, list[RecordDue]]:
        """Returns whether the clock was ahead, and the records that this process must plan.

        A record that was postponed by a clock that was ahead is due now.
        """
        ahead = await self._store.ledger.ids_ahead()
        await self._work.prepare(ahead)
        was_ahead = (ahead if self._searched is None else (self._searched - now) / TICKS_PER_SECOND) > MAX_SECONDS_AHEAD
        is_full = was_ahead or self._searched is None
        overdue = now - int(self._timing.overdue * TICKS_PER_SECOND)
        latest = now + self._timing.max_ahead * TICKS_PER_SECOND
        until = overdue if not is_full and latest == math.inf else ids.TICKS_MAX - 1
        rows = []
        for row in await self._store.records.due_records(self._work.kind, until, limit=MAX_PLANNED):
            if was_ahead or row.due > latest:
                rows.append(replace(row, due=min(row.due, now)))
            elif is_full or row.due <= overdue:
                rows.append(row)
        return was_ahead, rows

    async def _step(self, name: Name) -> None:
        """Takes the next step of a record if the record has not changed since it was planned.

        After a failed step the record may have changed, because the step may have been taken.
        """
        planned = self._planned.get(name)
        if planned is None:
            return  # The record was changed meanwhile and is no longer due.
        try:
            record = None if planned.failed else self._work.find_held(name[1])
            if record is None:
                record = await self._store.records.record(self._work.kind, *name)
            if record is None or (record.version != planned.version and not planned.failed):
                self._forget(name, planned)
                return
            following = await self._work.step(record)
        except RecordChanged:
            self._forget(name, planned)
        except StoreClosed:
            raise
        except Exception as error:  # noqa: BLE001 - any error is logged, and the step retried
            self._postpone(name, planned, error)
        else:
            if following is None:
                self._forget(name, planned)
            elif self._planned.get(name) == planned:
                self._plan_step(name, following)

    def _postpone(self, name: Name, planned: _PlannedStep, error: Exception) -> None:
        kind = self._work.kind
        if isinstance(error, QueueyError):
            level = logging.WARNING if isinstance(error, TimeZoneUnknown) else logging.DEBUG
            logger.log(level, "%s %s of %s waits: %s", kind, *reversed(name), error)
        else:
            logger.error("%s %s of %s failed; it will be retried", kind, *reversed(name), exc_info=error)
        pause = MIN_RETRY_INTERVAL if isinstance(error, KeyInUse) else self._retry_pause(planned.failed)
        if self._planned.get(name) == planned:
            self._planned[name] = planned._replace(failed=planned.failed + 1, retry=self._core.boottime() + pause)

    def _forget(self, name: Name, planned: _PlannedStep) -> None:
        self._work.forget(name[1])
        if self._planned.get(name) == planned:
            del self._planned[name]

    def _retry_pause(self, failed: int) -> float:
        return min(MIN_RETRY_INTERVAL * 2.0 ** min(failed, 10), self._timing.max_pause)
