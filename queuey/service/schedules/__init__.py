"""Use cases of schedules: messages that are posted at certain times, by any process. See ``docs/schedules.md``."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from queuey import ids
from queuey.errors import KeyInUse, NotAllowed, RecordChanged, ScheduleNotFound, StoreBusy, TooManySchedules
from queuey.messages import Record
from queuey.service.core import Core
from queuey.service.due_work import DueRunner, DueTiming
from queuey.service.messages import MessageUseCases
from queuey.service.schedules import states
from queuey.service.schedules.firing import FireUseCases
from queuey.service.schedules.states import Outcome, Plan, Schedule, kept
from queuey.service.schedules.timetables import (
    Timetable,
    check_cron,
    check_zone,
)
from queuey.storage import Store

__all__ = [
    "MAX_MESSAGE",
    "MAX_NAME",
    "Outcome",
    "Plan",
    "ScheduleReport",
    "ScheduleUseCases",
    "Timetable",
    "check_cron",
    "check_zone",
    "kept",
]

MAX_SCHEDULES = 1000
"""Max schedules of an application; a few more if several are made at the same moment."""
MAX_MESSAGE = 16 << 10
"""Max bytes of a message's body. It is read and written with each tick, and twice in a record."""
MAX_NAME = 100
"""Max characters of a name."""
MAX_LISTED = 100
"""Max schedules in one page of a list."""
MAX_COMING = 5
"""Max next instants that are shown."""
_TRIES = 20
"""Max attempts at a change that others interfere with."""
_PAUSE = 0.1
"""Interval in seconds between attempts to fire while another process is posting."""

MaySee = Callable[[str], bool]
"""Tells if the caller may manage schedules of a queue of this name."""
Changed = Callable[[Plan | None, float], Plan]
"""Returns the new plan of a schedule, given the present one and the time (seconds since 1970)."""


class ScheduleReport(NamedTuple):
    """State of a schedule.

    Attributes:
        plan: The owner's part.
        created, changed: Seconds since 1970.
        next: The next instants (seconds since 1970).
        firing: The instant whose message is being posted; None: none.
        last: Result of the last tick; None: there was none yet.
    """

    name: str
    plan: Plan
    created: float
    changed: float
    next: Sequence[int]
    firing: float | None
    last: Outcome | None


class ScheduleUseCases:
    """Makes, shows, changes and removes schedules."""

    def __init__(
        self,
        store: Store,
        messages: MessageUseCases,
        core: Core,
        stopping: threading.Event,
        *,
        timing: DueTiming | None = None,
    ) -> None:
        self._store = store
        self._core = core
        self._firing = FireUseCases(store, messages, core)
        self._runner = DueRunner(store, self._firing, core, stopping, timing or DueTiming())

    def statistics(self) -> dict[str, float]:
        return {f"schedules_{state}_total": count for state, count in self._firing.counts.items()}

    def watch(self) -> None:
        """Starts to fire schedules. Does not wait."""
        self._runner.watch()

    def end(self) -> asyncio.Task[None] | None:
        """Returns the task in the background if it has begun; it ends once the service does."""
        return self._runner.end()

    def put(self, application: str, name: str, change: Changed, may_see: MaySee) -> tuple[ScheduleReport, bool]:
        """Makes or changes a schedule; returns it, and whether it is new.

        A plan whose timetable changes, or that is not paused any more, has its next instant set anew: missed ticks are
        not made up for.

        Raises:
            NotAllowed: The name is that of a schedule of a queue that the caller may not manage.
            TooManySchedules: The application has as many as it may have.
            TimeZoneUnknown: This machine does not know the schedule's time zone.
            RecordChanged: Too many concurrent changes of the schedule.
        """
        for _ in range(_TRIES):
            record = self._store.record(states.KIND, application, name)
            now = ids.ticks_to_seconds(self._store.claim_time())
            if record is None:
                schedule = Schedule(secrets.randbits(62), now, now, change(None, now))
                self._require_room(application)
            else:
                before = states.decode(record.value)
                if not may_see(before.plan.queue):
                    raise NotAllowed(f"Schedule {name!r} is of a queue that the credential does not manage.")
                schedule = replace(before, changed=now, plan=change(before.plan, now))
            schedule = self._rescheduled(None if record is None else before, schedule, now)
            new = record or Record(states.KIND, application, name, b"", 0)
            try:
                saved = self._save(new, schedule)
            except RecordChanged:
                continue
            return _report(saved), record is None
        raise RecordChanged(name)

    @staticmethod
    def _rescheduled(before: Schedule | None, schedule: Schedule, now: float) -> Schedule:
        old, new = None if before is None else before.plan, schedule.plan
        if old is not None and old.timetable == new.timetable and old.paused == new.paused:
            return schedule
        return states.reschedule(schedule, now)

    def _require_room(self, application: str) -> None:
        there = self._store.due_records(states.KIND, ids.TICKS_MAX, application=application, limit=MAX_SCHEDULES)
        if len(there) >= MAX_SCHEDULES:
            raise TooManySchedules(f"The application has {MAX_SCHEDULES} schedules. Remove some that are not needed.")

    def _save(self, record: Record, schedule: Schedule) -> Record:
        saved = self._store.set_record(states.recorded(record, schedule))
        self._runner.know(saved)
        return saved

    def show(self, application: str, name: str, may_see: MaySee) -> ScheduleReport:
        return _report(self._find(application, name, may_see))

    def list(self, application: str, may_see: MaySee, *, start: str = "") -> tuple[list[ScheduleReport], str | None]:
        """Lists schedules that the caller may manage, by name from ``start`` on.

        Returns a page, and the name to start the next one at; None: this is the last.
        """
        records = self._store.records(states.KIND, application, start=start, limit=MAX_LISTED + 1)
        following = records[MAX_LISTED].name if len(records) > MAX_LISTED else None
        seen = (record for record in records[:MAX_LISTED] if may_see(states.decode(record.value).plan.queue))
        return [_report(record) for record in seen], following

    def remove(self, application: str, name: str, may_see: MaySee) -> None:
        """Removes a schedule. A message that is being posted may still be stored.

        Raises:
            ScheduleNotFound: There is none of that name that the caller may manage.
            RecordChanged: Too many concurrent changes of the schedule.
        """
        for _ in range(_TRIES):
            record = self._find(application, name, may_see)
            try:
                self._store.remove_record(record)
            except RecordChanged:
                continue
            return
        raise RecordChanged(name)

    async def fire(self, application: str, name: str, may_see: MaySee) -> ScheduleReport:
        """Posts a schedule's message now, also if it is paused. Its timetable does not change.

        Raises:
            ScheduleNotFound: There is none of that name that the caller may manage.
            StoreBusy: Other processes fire the schedule at the same time.
            StoreUnavailable: It failed. If it had begun, any process goes on with it.
        """
        for _ in range(_TRIES):
            find = partial(self._find, application, name, may_see)
            record = await self._core.in_thread(find)
            try:
                if states.decode(record.value).firing is not None:
                    await self._firing.go_on(record)
                    continue
                record = await self._firing.fire_now(record)
            except RecordChanged:
                continue
            except KeyInUse:
                await asyncio.sleep(_PAUSE)
                continue
            finally:
                self._runner.watch()
            self._runner.know(record)
            return _report(record)
        raise StoreBusy(f"Schedule {name!r} is being fired by other processes. Try again.")

    def _find(self, application: str, name: str, may_see: MaySee) -> Record:
        record = self._store.record(states.KIND, application, name)
        if record is None or not may_see(states.decode(record.value).plan.queue):
            raise ScheduleNotFound(name)
        return record


def _report(record: Record) -> ScheduleReport:
    schedule = states.decode(record.value)
    firing = None if schedule.firing is None else schedule.firing.instant
    following = states.coming(schedule, MAX_COMING)
    return ScheduleReport(
        record.name, schedule.plan, schedule.created, schedule.changed, following, firing, schedule.last
    )
