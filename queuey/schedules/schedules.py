"""Use cases of schedules: messages that any process posts at scheduled times. See ``docs/schedules.md``."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from queuey.access.queue_access import MAX_ATTEMPTS, find_queue
from queuey.messages.posts import MessageUseCases, hash_content
from queuey.model import ids
from queuey.model.errors import (
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
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import PostKey, PostResult, Record
from queuey.model.rights import SHARES_TEXT, has_room
from queuey.model.time_parsing import clock_warning
from queuey.runtime.due_work import DueRunner, DueTiming, DueWork, NextStep
from queuey.runtime.event_loop import Core
from queuey.schedules import schedule_states
from queuey.schedules.schedule_states import Firing, Outcome, ScheduleDefinition, State, StoredSchedule
from queuey.storage import Store, change_record
from queuey.storage.lasting_failures import Trouble

MAX_SCHEDULES = 1000
"""Max schedules of an application; concurrent calls may exceed it by a few."""
MAX_BODY_BYTES = 16 << 10
"""Max bytes of a message's body. Each tick reads and writes it, and a record may have it twice."""
MAX_NAME_LENGTH = 100
MAX_LISTED = 100
MAX_NEXT_INSTANTS = 5
_MAX_ATTEMPTS = 20
_FIRE_RETRY_INTERVAL = 0.1
"""Interval in seconds between attempts to fire while another process is posting."""
QUEUE_GONE_TEXT = "the queue was purged or created again while the message was being posted"
FIRING_TOO_OLD_TEXT = (
    f"the message could not be posted within {schedule_states.MAX_FIRING_SECONDS} seconds; it may have been stored"
)

logger = logging.getLogger(__name__)
MaySee = Callable[[str], bool]
"""Returns whether the caller may manage schedules of a queue with this name."""
ChangePlan = Callable[[ScheduleDefinition | None, float], ScheduleDefinition]
"""Returns the new plan of a schedule, given the present one and the time (seconds since 1970)."""


class ScheduleReport(NamedTuple):
    """State of a schedule.

    Attributes:
        plan: The part that the owner sets.
        created, changed: Seconds since 1970.
        next: The next instants, in seconds since 1970.
        firing: The instant whose message is being posted, or None.
        last: Result of the last tick, or None before the first one.
    """

    name: str
    plan: ScheduleDefinition
    created: float
    changed: float
    next: Sequence[int]
    firing: float | None
    last: Outcome | None


class ScheduleUseCases:
    """Creates, shows, changes, fires and removes schedules."""

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

    def start_background_work(self) -> None:
        self._runner.start_or_wake()

    def end(self) -> asyncio.Task[None] | None:
        return self._runner.end()

    async def put(
        self, application: str, name: str, change: ChangePlan, may_see: MaySee
    ) -> tuple[ScheduleReport, bool]:
        """Creates or changes a schedule. Returns it, and whether it is new.

        If the timetable changes, or the schedule is paused or resumed, its next instant is computed again from now on:
        ticks that were missed before do not fire.

        Raises:
            NotAllowed: A schedule with this name belongs to a queue that the caller may not manage.
            TooManySchedules: The application has the maximum number of schedules.
            TimeZoneUnknown: This machine does not know the schedule's time zone.
            StoreBusy: Too many concurrent changes of the schedule.
        """
        key, is_new = (schedule_states.KIND, application, name), False

        async def decide(record: Record | None) -> Record:
            nonlocal is_new
            before, is_new = None if record is None else schedule_states.decode(record.value), record is None
            now = ids.ticks_to_seconds(self._store.clock.now_ticks())
            if before is None:
                schedule = StoredSchedule(secrets.randbits(62), now, now, change(None, now))
                await self._require_room(application, may_see)
            else:
                if not may_see(before.plan.queue):
                    raise NotAllowed(f"Schedule {name!r} belongs to a queue that the credential may not manage.")
                schedule = replace(before, changed=now, plan=change(before.plan, now))
            schedule = self._reschedule_if_changed(before, schedule, now)
            return schedule_states.make_record(record or Record(*key, b"", 0), schedule)

        saved = await change_record(self._store.records, key, decide)
        assert saved is not None  # noqa: S101 - it always decides on a record
        self._runner.plan(saved)
        return _make_report(saved), is_new

    @staticmethod
    def _reschedule_if_changed(before: StoredSchedule | None, schedule: StoredSchedule, now: float) -> StoredSchedule:
        old, new = None if before is None else before.plan, schedule.plan
        if old is not None and old.timetable == new.timetable and old.paused == new.paused:
            return schedule
        return schedule_states.reschedule(schedule, now)

    async def _require_room(self, application: str, may_see: MaySee) -> None:
        records = self._store.records
        held = len(
            await records.due_records(schedule_states.KIND, ids.TICKS_MAX, application=application, limit=MAX_SCHEDULES)
        )
        own, is_admin = 0, may_see("")  # Only patterns for all queues match a blank name.
        if not is_admin and held >= MAX_SCHEDULES // 2:
            stored = await records.records(schedule_states.KIND, application, limit=MAX_SCHEDULES)
            own = sum(may_see(schedule_states.decode(record.value).plan.queue) for record in stored)
        if not has_room(MAX_SCHEDULES, held, own, is_admin=is_admin):
            text = f"An application has at most {MAX_SCHEDULES:,} schedules. Remove unused ones. {SHARES_TEXT}"
            raise TooManySchedules(text)

    async def show(self, application: str, name: str, may_see: MaySee) -> ScheduleReport:
        return _make_report(await self._find_managed(application, name, may_see))

    async def list(
        self, application: str, may_see: MaySee, *, start: str = ""
    ) -> tuple[list[ScheduleReport], str | None]:
        """Lists schedules that the caller may manage, by name from ``start`` on.

        Returns a page, and the start of the next one, or None on the last page.
        """
        managed: list[Record] = []
        records: Sequence[Record] | None = None
        while len(managed) <= MAX_LISTED and (records is None or len(records) > MAX_LISTED):
            start = start if records is None else f"{records[-1].name}\0"
            records = await self._store.records.records(
                schedule_states.KIND, application, start=start, limit=MAX_LISTED + 1
            )
            managed += [record for record in records if may_see(schedule_states.decode(record.value).plan.queue)]
        following = managed[MAX_LISTED].name if len(managed) > MAX_LISTED else None
        return [_make_report(record) for record in managed[:MAX_LISTED]], following

    async def remove(self, application: str, name: str, may_see: MaySee) -> None:
        """Removes a schedule. A message that is being posted may still be stored.

        Raises:
            ScheduleNotFound: The caller may not manage a schedule with this name, or it does not exist.
            RecordChanged: Too many concurrent changes of the schedule.
        """
        for _ in range(_MAX_ATTEMPTS):
            record = await self._find_managed(application, name, may_see)
            try:
                await self._store.records.remove_record(record)
            except RecordChanged:
                continue
            return
        raise RecordChanged(name)

    async def fire(self, application: str, name: str, may_see: MaySee) -> ScheduleReport:
        """Posts a schedule's message now, even if the schedule is paused. Its timetable does not change.

        If the schedule is firing already, that is finished first. Once its own firing has begun, a run finishes that
        one, whatever happens to the schedule: if it was removed, the report shows the schedule as it was.

        Raises:
            ScheduleNotFound: The caller may not manage a schedule with this name, or it does not exist.
            StoreBusy: Other processes are firing the schedule.
            StoreUnavailable: The store failed. If firing had begun, any process continues it.
        """
        for _ in range(_MAX_ATTEMPTS):
            record = await self._find_managed(application, name, may_see)
            schedule = schedule_states.decode(record.value)
            try:
                if schedule.firing is not None:
                    await self._firing.take_step(record)
                    continue
                ended = await self._firing.fire_now(record)
            except RecordChanged:
                continue  # This run has not begun.
            except KeyInUse:
                await asyncio.sleep(_FIRE_RETRY_INTERVAL)
                continue
            finally:
                self._runner.start_or_wake()
            self._runner.plan(ended)
            after = schedule_states.decode(ended.value)
            if not may_see(after.plan.queue):  # The schedule was moved to another queue meanwhile.
                ended = schedule_states.make_record(record, replace(schedule, last=after.last))
            return _make_report(ended)
        raise StoreBusy(f"Schedule {name!r} is being fired by other processes. Try again.")

    async def _find_managed(self, application: str, name: str, may_see: MaySee) -> Record:
        record = await self._store.records.record(schedule_states.KIND, application, name)
        if record is None or not may_see(schedule_states.decode(record.value).plan.queue):
            raise ScheduleNotFound(name)
        return record


def _make_report(record: Record) -> ScheduleReport:
    schedule = schedule_states.decode(record.value)
    firing = None if schedule.firing is None else schedule.firing.instant
    following = schedule_states.list_next_fire_times(schedule, MAX_NEXT_INSTANTS)
    return ScheduleReport(
        record.name, schedule.plan, schedule.created, schedule.changed, following, firing, schedule.last
    )


class FireUseCases(DueWork):
    """Fires schedules, for the due work and for callers. Another process can continue after each step.

    Attributes:
        counts: Ticks of this process by state.
    """

    kind = schedule_states.KIND

    def __init__(self, store: Store, messages: MessageUseCases, core: Core) -> None:
        self._store = store
        self._messages = messages
        self._core = core
        self._clock = Trouble(logger, "The clock")
        self.counts: dict[State, int] = {"published": 0, "skipped": 0, "failed": 0, "unknown": 0}

    async def prepare(self, ahead: float) -> None:
        if warning := clock_warning(ahead):
            self._clock.record_failure("ahead", warning)
        else:
            self._clock.record_success()

    async def step(self, record: Record) -> NextStep:
        record = await self.take_step(record)
        return NextStep(record.version, record.due)

    async def take_step(self, record: Record) -> Record:
        """Takes the next step of a schedule. Returns its new record, or the same record if no step is due.

        Raises:
            RecordChanged: Another process has changed the schedule.
            StoreUnavailable: The step failed and must be retried. The message may have been posted.
            TooManyRequests: No thread was free in time. Nothing was changed.
            KeyInUse: Another process is posting the message.
        """
        schedule = schedule_states.decode(record.value)
        if schedule.firing is not None:
            return await self._finish(record, schedule, schedule.firing)
        now = self.now()
        choose_tick = partial(schedule_states.choose_tick, schedule, ids.ticks_to_seconds(now))
        ticks = await self._core.in_thread(choose_tick)
        if ticks.instant is not None:
            return await self._fire(record, schedule_states.pass_instant(schedule, ticks), ticks.instant, now)
        if ticks.next == schedule.next:
            return record
        record = await self.save(record, schedule_states.record_skip(schedule, ticks, ids.ticks_to_seconds(now)))
        self.counts["skipped"] += ticks.skipped is not None
        return record

    async def fire_now(self, record: Record) -> Record:
        """Fires a waiting schedule regardless of its timetable. Raises as :meth:`take_step`."""
        now, schedule = self.now(), schedule_states.decode(record.value)
        instant = ids.ticks_to_seconds(now)
        if schedule.last is not None and instant <= schedule.last.instant < instant + 1:
            instant = math.nextafter(schedule.last.instant, math.inf)  # Two runs of one instant would share a key.
        return await self._fire(record, schedule, instant, now)

    async def _fire(self, record: Record, schedule: StoredSchedule, instant: float, now: int) -> Record:
        """Begins to fire an instant, posts its message and records the outcome: ``failed`` if the queue does not exist.

        Errors of the store after the beginning are in doubt, because another process may continue.
        """
        try:
            queue = await find_queue(self._store, record.application, schedule.plan.queue, fresh=True)
        except NotFound as error:
            outcome = self._make_outcome(instant, schedule.plan.queue, "failed", str(error))
            return await self._record_outcome(record, schedule, outcome)
        schedule = schedule_states.begin_firing(schedule, instant, queue.qid, now)
        record = await self.save(record, schedule)
        assert schedule.firing is not None  # noqa: S101 - it has begun
        try:
            for _ in range(_MAX_ATTEMPTS):
                with suppress(KeyInUse):  # Another process posts this firing's message.
                    return await self._finish(record, schedule, schedule.firing)
                await asyncio.sleep(_FIRE_RETRY_INTERVAL)
            raise StoreBusy(f"Other processes are firing schedule {record.name!r}. Its message may be stored.")
        except StoreClosed:
            raise
        except (StoreUnavailable, TooManyRequests) as error:
            # The record has this firing, so another process may still post its message.
            raise in_doubt(error) from error

    async def _finish(self, record: Record, schedule: StoredSchedule, firing: Firing) -> Record:
        outcome = await self._post_once(record.application, firing)
        for _ in range(_MAX_ATTEMPTS):
            with suppress(RecordChanged):
                return await self._record_outcome(record, schedule, outcome)
            present = await self._store.records.record(schedule_states.KIND, record.application, record.name)
            if present is None or (changed := schedule_states.decode(present.value)).identity != schedule.identity:
                return schedule_states.make_record(record, schedule_states.end_firing(schedule, outcome))
            record, schedule = present, changed
            if schedule.last is not None and schedule.last.instant == firing.instant:
                return record
            if schedule.firing is None or schedule.firing.key != firing.key:
                return schedule_states.make_record(record, replace(schedule, last=outcome))
        raise StoreBusy(f"Schedule {record.name!r} is being changed by others. Try again.")

    async def _post_once(self, application: str, firing: Firing) -> Outcome:
        ended = partial(self._make_outcome, firing.instant, firing.queue)
        for _ in range(MAX_ATTEMPTS):
            if abs(self.now() - firing.began) > schedule_states.MAX_FIRING_SECONDS * TICKS_PER_SECOND:
                return ended("unknown", FIRING_TOO_OLD_TEXT)
            try:
                posted = await self._post(application, firing)
            except QueueChanged:
                continue
            except (InvalidRequest, NotFound) as error:
                return ended("failed", str(error))
            if posted is None:
                return ended("unknown", QUEUE_GONE_TEXT)
            [(partition, position)] = posted.locations
            return replace(ended("published"), partition=partition, message_id=ids.to_hex(position))
        raise StoreBusy(f"Queue {firing.queue!r} changed {MAX_ATTEMPTS} times while this request ran. Try again.")

    async def _post(self, application: str, firing: Firing) -> PostResult | None:
        queue = await find_queue(self._store, application, firing.queue, fresh=True)
        if queue.qid != firing.qid:
            return None
        drafts = [firing.message.draft]
        key = PostKey(firing.key, hash_content(drafts), schedule_states.KEY_SECONDS)
        return await self._messages.post(queue, drafts, key=key)

    def _make_outcome(self, instant: float, queue: str, state: State, error: str = "") -> Outcome:
        ended = ids.ticks_to_seconds(self.now())
        return Outcome(instant, ended, state, error=error[: schedule_states.MAX_ERROR_LENGTH], queue=queue)

    async def _record_outcome(self, record: Record, schedule: StoredSchedule, outcome: Outcome) -> Record:
        record = await self.save(record, schedule_states.end_firing(schedule, outcome))
        self.counts[outcome.state] += 1
        return record

    def now(self) -> int:
        """Returns the present time (ticks). Ids may be ahead of it."""
        return self._store.clock.now_ticks()

    async def save(self, record: Record, schedule: StoredSchedule) -> Record:
        return await self._store.records.set_record(schedule_states.make_record(record, schedule))
