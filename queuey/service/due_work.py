"""Work that outlives a process: records with a due time, whose next step any process takes by compare-and-set.

Every process knows when some records are due: those that it has made or changed last, and, when it begins, all of
them. A due record is read, and its step is taken if it has not changed since; else another process does that, and this
one forgets it. So the work of a record mostly stays with one process. The others only look, now and then, for records
that are overdue: their process has ended. However many processes try at once, one succeeds.

:mod:`queuey.service.schedules` and :mod:`queuey.service.moves` say what the steps are.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from queuey import ids
from queuey.errors import KeyInUse, QueueyError, RecordChanged, StoreClosed, TimeZoneUnknown
from queuey.ids import TICKS_PER_SECOND
from queuey.messages import Record, RecordDue
from queuey.service.core import Core
from queuey.storage import Store
from queuey.turns import in_turns

MAX_IN_PASS = 32
"""Max steps that it takes before it checks for others that have become due."""
MAX_AHEAD = 3600
"""Max seconds by which something that has happened may be ahead of the clock; else the clock was ahead at that time."""
MAX_KNOWN = 20_000
"""Max records that a process knows; it finds the others when they are overdue."""
FIRST_PAUSE = 0.5
"""Interval in seconds before a failed step is repeated for the first time."""

logger = logging.getLogger(__name__)
Name = tuple[str, str]
"""Application and name of a record."""


def order_of_steps(due: Iterable[tuple[int, Name]]) -> list[Name]:
    return [name for _, name in in_turns(sorted(due), lambda step: step[1][0])]


class DueTiming(msgspec.Struct, frozen=True, kw_only=True):
    """When steps are taken; times are in seconds.

    Attributes:
        search: Between two searches for overdue records, about.
        overdue: How long one must be due until a process that does not know it takes its step.
        max_ahead: One that is due later than this was put off by a clock that was ahead: it is due now.
        max_pause: Max interval before a failed step is repeated.
        at_once: Number of records whose steps a process takes at the same time.
    """

    search: float = 15.0
    overdue: float = 3.0
    max_ahead: float = math.inf
    max_pause: float = 30.0
    at_once: int = 4


class NextStep(NamedTuple):
    """When this process takes the next step of a record.

    Attributes:
        version: The record's, as it is now.
        due: Ticks; ``ids.TICKS_MAX``: never.
        rest: Seconds from now for which it rests at least, whatever is done to the clock.
    """

    version: int
    due: int
    rest: float = 0.0


class DueWork(ABC):
    """What is done with the records of a kind.

    Attributes:
        kind: The kind.
    """

    kind: str

    @abstractmethod
    async def prepare(self, ahead: float) -> None:
        """Is called before each search.

        Args:
            ahead: Seconds by which the next id will be ahead of the clock, because the clock was ahead once.
        """

    def held(self, name: str) -> Record | None:  # noqa: ARG002 - none by default
        """Returns a record that need not be read before its next step: another process's change is noticed later."""
        return None

    @abstractmethod
    async def step(self, record: Record) -> NextStep | None:
        """Takes the next step of a record.

        Returns when this process takes the one after; None: not at all.

        Raises:
            RecordChanged: Another process was quicker.
            QueueyError: It failed, and is to be repeated.
        """

    def forget(self, name: str) -> None:  # noqa: B027 - nothing by default
        """Is called when another process has changed a record, or after its last step."""

    async def end(self) -> None:  # noqa: B027 - nothing by default
        """Is called when the service ends, after the last step."""


class _PlannedStep(NamedTuple):
    """The next step of a record, as this process plans it.

    Attributes:
        due: Ticks.
        failed: How often a step of it has failed in a row.
        retry: Boot time before which its step is not taken.
    """

    due: int
    version: int
    failed: int = 0
    retry: float = 0.0


class DueRunner:
    """Takes the steps of the records of a kind, in one task of the process."""

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
        """The clock at the last search (ticks)."""

    def watch(self) -> None:
        """Takes the steps that are due, from now on. Does not wait."""
        self._core.tell(self._begin)

    def know(self, record: Record) -> None:
        """Adds a record that was made or changed here. Does not wait."""
        self._core.tell(self._begin, record)

    def _begin(self, record: Record | None = None) -> None:
        if record is not None:
            self._record((record.application, record.name), NextStep(record.version, record.due))
        if self._task is None or self._task.done():
            self._task = self._core.spawn(self._run())
        self._woken.set()

    def end(self) -> asyncio.Task[None] | None:
        """Wakes its task and returns it, if it has begun; it ends once the service does."""
        self._woken.set()
        return self._task

    def _record(self, name: Name, following: NextStep) -> None:
        if following.due == ids.TICKS_MAX:
            self._planned.pop(name, None)
        elif name in self._planned or len(self._planned) < MAX_KNOWN:
            self._planned[name] = _PlannedStep(
                following.due, following.version, retry=self._core.boottime() + following.rest
            )

    async def _run(self) -> None:
        failed = 0
        while not self._stopping.is_set():
            self._woken.clear()
            try:
                rest = await self._go_on()
                failed = 0
            except StoreClosed:
                return
            except QueueyError as error:
                logger.debug("%ss wait: %s", self._work.kind, error)
                rest, failed = self._pause(failed), failed + 1
            except Exception:
                logger.exception("work on %ss has failed; it is tried again", self._work.kind)
                rest, failed = self._pause(failed), failed + 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), rest)
        await self._work.end()

    async def _go_on(self) -> float:
        """Takes steps that are due, and searches for overdue ones; returns the seconds to rest."""
        now = self._store.claim_logs.claim_time()
        boottime = self._core.boottime()
        if self._next_search is None or boottime >= self._next_search:
            await self._find_overdue(now)
            # Not all processes at the same moment.
            self._next_search = boottime + self._timing.search * (0.8 + 0.4 * self._core.chance.random())
        due = order_of_steps(
            (step.due, name) for name, step in self._planned.items() if step.due <= now and step.retry <= boottime
        )[:MAX_IN_PASS]
        for first in range(0, len(due), self._timing.at_once):
            if self._stopping.is_set():
                return 0.0
            await asyncio.gather(*map(self._step, due[first : first + self._timing.at_once]))
        if due:
            return 0.0
        waits = (max((step.due - now) / TICKS_PER_SECOND, step.retry - boottime) for step in self._planned.values())
        return max(0.0, min([self._next_search - boottime, *waits]))

    async def _find_overdue(self, now: int) -> None:
        """Finds overdue records; the first time all of them. If the clock was ahead, takes a step of each."""
        was_ahead, rows = await self._search(now)
        for row in rows:
            name = row.application, row.name
            planned = self._planned.get(name)
            if was_ahead or planned is None or planned.version != row.version:
                self._planned[name] = _PlannedStep(row.due, row.version)
        self._searched = now

    async def _search(self, now: int) -> tuple[bool, list[RecordDue]]:
        """Returns whether the clock was ahead, and the records that this process has to know of.

        A record that was put off by a clock that was ahead is due now.
        """
        ahead = await self._store.ledger.ids_ahead()
        await self._work.prepare(ahead)
        was_ahead = (ahead if self._searched is None else (self._searched - now) / TICKS_PER_SECOND) > MAX_AHEAD
        is_each = was_ahead or self._searched is None
        overdue = now - int(self._timing.overdue * TICKS_PER_SECOND)
        latest = now + self._timing.max_ahead * TICKS_PER_SECOND
        until = overdue if not is_each and latest == math.inf else ids.TICKS_MAX - 1
        found = []
        for row in await self._store.records.due_records(self._work.kind, until, limit=MAX_KNOWN):
            if was_ahead or row.due > latest:
                found.append(replace(row, due=min(row.due, now)))
            elif is_each or row.due <= overdue:
                found.append(row)
        return was_ahead, found

    async def _step(self, name: Name) -> None:
        """Takes the next step of a record, if it has not changed since this process read it.

        After a failed step it may have: the step may have been taken.
        """
        planned = self._planned.get(name)
        if planned is None:
            return  # It was changed meanwhile, and is never due any more.
        try:
            record = None if planned.failed else self._work.held(name[1])
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
        except Exception as error:  # noqa: BLE001 - of any kind, it is logged, and the step is repeated
            self._postpone(name, planned, error)
        else:
            if following is None:
                self._forget(name, planned)
            elif self._planned.get(name) == planned:
                self._record(name, following)

    def _postpone(self, name: Name, planned: _PlannedStep, error: Exception) -> None:
        kind = self._work.kind
        if isinstance(error, QueueyError):
            level = logging.WARNING if isinstance(error, TimeZoneUnknown) else logging.DEBUG
            logger.log(level, "%s %s of %s waits: %s", kind, *reversed(name), error)
        else:
            logger.error("%s %s of %s has failed; it is tried again", kind, *reversed(name), exc_info=error)
        pause = FIRST_PAUSE if isinstance(error, KeyInUse) else self._pause(planned.failed)
        if self._planned.get(name) == planned:
            self._planned[name] = planned._replace(failed=planned.failed + 1, retry=self._core.boottime() + pause)

    def _forget(self, name: Name, planned: _PlannedStep) -> None:
        """Leaves a record to the process that has changed it, unless that was a call to this one."""
        self._work.forget(name[1])
        if self._planned.get(name) == planned:
            del self._planned[name]

    def _pause(self, failed: int) -> float:
        return min(FIRST_PAUSE * 2.0 ** min(failed, 10), self._timing.max_pause)
