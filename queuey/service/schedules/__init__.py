"""Use cases of schedules: messages that are posted at certain times, by any process. See ``docs/schedules.md``."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from queuey import ids
from queuey.errors import (
    InvalidRequest,
    KeyInUse,
    NotAllowed,
    NotFound,
    QueueChanged,
    RecordChanged,
    ScheduleNotFound,
    StoreBusy,
    StoreClosed,
    StoreUnavailable,
    TooManyRequests,
    TooManySchedules,
    in_doubt,
)
from queuey.ids import TICKS_PER_SECOND
from queuey.messages import PostKey, PostResult, Record
from queuey.service.core import Core
from queuey.service.due_work import DueRunner, DueTiming, DueWork, NextStep
from queuey.service.messages import MessageUseCases, content_of
from queuey.service.queue_access import ATTEMPTS, find_queue
from queuey.service.schedules import states
from queuey.service.schedules.states import Firing, Outcome, Plan, Schedule, State
from queuey.storage import Store, bridge
from queuey.storage.troubles import Trouble
from queuey.time_parsing import clock_warning

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
GONE = "the queue was purged or made anew while the message was being posted"
TOO_OLD = f"it could not be posted within {states.MAX_FIRING} seconds; it may have been"

logger = logging.getLogger(__name__)
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
            record = bridge.run(self._store.records.record(states.KIND, application, name))
            now = ids.ticks_to_seconds(self._store.claim_logs.claim_time())
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
        there = bridge.run(
            self._store.records.due_records(states.KIND, ids.TICKS_MAX, application=application, limit=MAX_SCHEDULES)
        )
        if len(there) >= MAX_SCHEDULES:
            raise TooManySchedules(f"The application has {MAX_SCHEDULES} schedules. Remove some that are not needed.")

    def _save(self, record: Record, schedule: Schedule) -> Record:
        saved = bridge.run(self._store.records.set_record(states.recorded(record, schedule)))
        self._runner.know(saved)
        return saved

    def show(self, application: str, name: str, may_see: MaySee) -> ScheduleReport:
        return _report(self._find(application, name, may_see))

    def list(self, application: str, may_see: MaySee, *, start: str = "") -> tuple[list[ScheduleReport], str | None]:
        """Lists schedules that the caller may manage, by name from ``start`` on.

        Returns a page, and the name to start the next one at; None: this is the last.
        """
        records = bridge.run(self._store.records.records(states.KIND, application, start=start, limit=MAX_LISTED + 1))
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
                bridge.run(self._store.records.remove_record(record))
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
            record = await self._core.in_thread(partial(self._find, application, name, may_see))
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
        record = bridge.run(self._store.records.record(states.KIND, application, name))
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


class FireUseCases(DueWork):
    """Fires schedules by steps, any of which may be a process's last; as a ``DueWork``, and for callers.

    ``counts`` are the ticks of this process by state.
    """

    kind = states.KIND

    def __init__(self, store: Store, messages: MessageUseCases, core: Core) -> None:
        self._store = store
        self._messages = messages
        self._core = core
        self._clock = Trouble(logger, "The clock")
        self.counts: dict[State, int] = {"published": 0, "skipped": 0, "failed": 0, "unknown": 0}

    async def prepare(self, ahead: float) -> None:
        if warning := clock_warning(ahead):
            self._clock.met("ahead", warning)
        else:
            self._clock.passed()

    async def step(self, record: Record) -> NextStep:
        record = await self.go_on(record)
        return NextStep(record.version, record.due)

    async def go_on(self, record: Record) -> Record:
        """Carries out the next step of a schedule, and returns its record; the same one if there is no step.

        Raises:
            RecordChanged: Another process was quicker.
            StoreUnavailable: It failed, and is to be repeated. The message may have been posted.
            TooManyRequests: There was no thread for it in time. Nothing was done.
            KeyInUse: Another process is posting the message.
        """
        schedule = states.decode(record.value)
        if schedule.firing is not None:
            return await self._finish(record, schedule, schedule.firing)
        now = self.now()
        ticks = await self._core.in_thread(partial(states.choose, schedule, ids.ticks_to_seconds(now)))
        if ticks.instant is not None:
            return await self._fire(record, states.advance(schedule, ticks), ticks.instant, now)
        if ticks.next == schedule.next:
            return record
        record = await self.save(record, states.skip(schedule, ticks, ids.ticks_to_seconds(now)))
        self.counts["skipped"] += ticks.skipped is not None
        return record

    async def fire_now(self, record: Record) -> Record:
        """Fires a schedule that waits, whatever its timetable. Raises as :meth:`go_on`."""
        now = self.now()
        return await self._fire(record, states.decode(record.value), ids.ticks_to_seconds(now), now)

    async def _fire(self, record: Record, schedule: Schedule, instant: float, now: int) -> Record:
        try:
            queue = await find_queue(self._store, record.application, schedule.plan.queue, fresh=True)
        except NotFound as error:
            return await self._end(record, schedule, instant, "failed", error=str(error))
        schedule = states.begin(schedule, instant, queue.qid, now)
        record = await self.save(record, schedule)
        assert schedule.firing is not None  # noqa: S101 - it has begun
        try:
            return await self._finish(record, schedule, schedule.firing)
        except StoreClosed:
            raise
        except (StoreUnavailable, TooManyRequests) as error:
            # The record names this firing, so another process may post its message if this one does not.
            raise in_doubt(error) from error

    async def _finish(self, record: Record, schedule: Schedule, firing: Firing) -> Record:
        """Posts the message of a firing that this process or another one has begun."""
        ended = partial(self._end, record, schedule, firing.instant)
        for _ in range(ATTEMPTS):
            if abs(self.now() - firing.began) > states.MAX_FIRING * TICKS_PER_SECOND:
                return await ended("unknown", error=TOO_OLD)
            try:
                posted = await self._post(record.application, firing)
            except QueueChanged:
                continue
            except (InvalidRequest, NotFound) as error:
                return await ended("failed", error=str(error))
            if posted is None:
                return await ended("unknown", error=GONE)
            [(partition, position)] = posted.locations
            return await ended("published", partition=partition, message_id=ids.to_hex(position))
        raise StoreBusy(f"Queue {firing.queue!r} changed {ATTEMPTS} times while this request ran. Try again.")

    async def _post(self, application: str, firing: Firing) -> PostResult | None:
        """Posts a message under its key; returns None if the queue was purged or made anew since."""
        queue = await find_queue(self._store, application, firing.queue, fresh=True)
        if queue.qid != firing.qid:
            return None
        drafts = [firing.message.draft]
        key = PostKey(firing.key, content_of(drafts), states.KEY_SECONDS)
        return await self._messages.post(queue, drafts, key=key)

    async def _end(
        self,
        record: Record,
        schedule: Schedule,
        instant: float,
        state: State,
        *,
        partition: int = 0,
        message_id: str = "",
        error: str = "",
    ) -> Record:
        at = ids.ticks_to_seconds(self.now())
        queue = schedule.plan.queue if schedule.firing is None else schedule.firing.queue
        outcome = Outcome(instant, at, state, partition, message_id, error[: states.MAX_ERROR], queue)
        record = await self.save(record, states.end(schedule, outcome))
        self.counts[state] += 1
        return record

    def now(self) -> int:
        """Returns the time (ticks); ids may be ahead of it."""
        return self._store.claim_logs.claim_time()

    async def save(self, record: Record, schedule: Schedule) -> Record:
        """Replaces a schedule.

        Raises:
            RecordChanged: Another process was quicker.
        """
        return await self._store.records.set_record(states.recorded(record, schedule))
