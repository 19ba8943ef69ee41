"""Fires schedules when they are due, in one task of the process.

Every process knows when some schedules are due: those that it has made or fired last, and, when it begins, all of them.
A due schedule is read, and fired if it has not changed since; else another process fires it, and this one forgets
it. So a schedule mostly stays with one process. The others only look, now and then, for schedules that are
overdue: their process has ended. However many processes try at once, one succeeds (:mod:`.states`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec

from queuey import ids
from queuey.errors import KeyInUse, QueueyError, RecordChanged, StoreClosed, TimeZoneUnknown
from queuey.ids import TICKS_PER_SECOND
from queuey.messages import Record, RecordDue
from queuey.service.core import Core
from queuey.service.schedules import states
from queuey.service.schedules.firing import FireUseCases
from queuey.storage import Store
from queuey.storage.troubles import Trouble
from queuey.time_parsing import clock_warning
from queuey.turns import in_turns

MAX_AT_ONCE = 4
"""Max schedules that a process fires at the same time."""
MAX_IN_PASS = 32
"""Max schedules that it fires before it checks for others that have become due."""
MAX_KNOWN = 20_000
"""Max schedules that a process knows; it finds the others when they are overdue."""
FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0
"""Seconds after which a failed step is repeated."""

logger = logging.getLogger(__name__)
Name = tuple[str, str]
"""Application and name of a schedule."""


def firing_order(due: Iterable[tuple[int, Name]]) -> list[Name]:
    return [name for _, name in in_turns(sorted(due), lambda each: each[1][0])]


class ScheduleTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds.

    Attributes:
        look: Between two searches for overdue schedules, about.
        overdue: How long one must be due until a process that does not know it fires it.
    """

    look: float = 15.0
    overdue: float = 3.0


class _Known(NamedTuple):
    """A schedule.

    Attributes:
        due: Ticks.
        failed: How often a step of it has failed in a row.
        retry: Boot time before which the step is not repeated.
    """

    due: int
    version: int
    failed: int = 0
    retry: float = 0.0


class ScheduleRunner:
    """Fires schedules."""

    def __init__(
        self,
        store: Store,
        firing: FireUseCases,
        core: Core,
        stopping: threading.Event,
        *,
        timing: ScheduleTiming | None = None,
    ) -> None:
        self._store = store
        self._firing = firing
        self._core = core
        self._stopping = stopping
        self._timing = timing or ScheduleTiming()
        self._known: dict[Name, _Known] = {}
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._next_look: float | None = None
        self._clock = Trouble(logger, "The clock")
        self._clock_before = 0
        """The clock at the last search (ticks)."""

    def watch(self) -> None:
        """Fires what is due, from now on. Does not wait."""
        self._core.tell(self._begin)

    def know(self, record: Record) -> None:
        """Adds a schedule that was made or changed here. Does not wait."""
        self._core.tell(self._begin, record)

    def _begin(self, record: Record | None = None) -> None:
        if record is not None:
            self._note(record)
        if self._task is None or self._task.done():
            self._task = self._core.spawn(self._run())
        self._woken.set()

    def end(self) -> asyncio.Task[None] | None:
        """Wakes its task and returns it, if it has begun; it ends once the service does."""
        self._woken.set()
        return self._task

    def _note(self, record: Record) -> None:
        name = record.application, record.name
        if record.due == ids.TICKS_MAX:
            self._known.pop(name, None)
        elif name in self._known or len(self._known) < MAX_KNOWN:
            self._known[name] = _Known(record.due, record.version)

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
                logger.debug("schedules wait: %s", error)
                rest, failed = _pause(failed), failed + 1
            except Exception:
                logger.exception("firing schedules has failed; it is tried again")
                rest, failed = _pause(failed), failed + 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), rest)

    async def _go_on(self) -> float:
        """Fires due schedules, and searches for overdue ones; returns the seconds to rest."""
        now = self._firing.now()
        boottime = self._core.boottime()
        if self._next_look is None or boottime >= self._next_look:
            await self._look(now)
            # Not all processes at the same moment.
            self._next_look = boottime + self._timing.look * (0.8 + 0.4 * self._core.chance.random())
        due = firing_order(
            (known.due, name) for name, known in self._known.items() if known.due <= now and known.retry <= boottime
        )[:MAX_IN_PASS]
        for first in range(0, len(due), MAX_AT_ONCE):
            if self._stopping.is_set():
                return 0.0
            await asyncio.gather(*map(self._fire, due[first : first + MAX_AT_ONCE]))
        if due:
            return 0.0
        waits = (max((each.due - now) / TICKS_PER_SECOND, each.retry - boottime) for each in self._known.values())
        return max(0.0, min([self._next_look - boottime, *waits]))

    async def _look(self, now: int) -> None:
        """Finds overdue schedules; the first time all of them. If the clock was ahead, takes a step of each."""
        is_first = self._next_look is None
        ahead = await self._core.in_thread(self._store.ids_ahead)
        if warning := clock_warning(ahead):
            self._clock.met("ahead", warning)
        else:
            self._clock.passed()
        was_ahead = (ahead if is_first else (self._clock_before - now) / TICKS_PER_SECOND) > states.MAX_AHEAD
        until = ids.TICKS_MAX - 1
        if not is_first and not was_ahead:
            until = now - int(self._timing.overdue * TICKS_PER_SECOND)
        find: Callable[[], list[RecordDue]] = partial(self._store.due_records, states.KIND, until, limit=MAX_KNOWN)
        for row in await self._core.in_thread(find):
            name = row.application, row.name
            known = self._known.get(name)
            if was_ahead or known is None or known.version != row.version:
                self._known[name] = _Known(min(row.due, now) if was_ahead else row.due, row.version)
        self._clock_before = now

    async def _fire(self, name: Name) -> None:
        """Carries out the next step of a schedule, if it has not changed since this process read it.

        After a failed step it may have: the step may have been taken.
        """
        known = self._known.get(name)
        if known is None:
            return  # It was paused meanwhile.
        try:
            record = await self._firing.find(*name)
            if record is None or (record.version != known.version and not known.failed):
                self._forget(name, known)
                return
            record = await self._firing.go_on(record)
        except RecordChanged:
            self._forget(name, known)
        except StoreClosed:
            raise
        except Exception as error:
            if isinstance(error, QueueyError):
                level = logging.WARNING if isinstance(error, TimeZoneUnknown) else logging.DEBUG
                logger.log(level, "schedule %s of %s waits: %s", *reversed(name), error)
            else:
                logger.exception("schedule %s of %s could not be fired; it is tried again", *reversed(name))
            pause = FIRST_PAUSE if isinstance(error, KeyInUse) else _pause(known.failed)
            if self._known.get(name) == known:
                self._known[name] = known._replace(failed=known.failed + 1, retry=self._core.boottime() + pause)
        else:
            if self._known.get(name) == known:
                self._note(record)

    def _forget(self, name: Name, known: _Known) -> None:
        """Leaves a schedule to the process that has changed it, unless that was a call to this one."""
        if self._known.get(name) == known:
            del self._known[name]


def _pause(failed: int) -> float:
    return min(FIRST_PAUSE * 2.0 ** min(failed, 10), MAX_PAUSE)
