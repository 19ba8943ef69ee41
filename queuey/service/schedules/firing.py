"""Fires schedules by the steps of :mod:`queuey.service.schedules.states`, any of which may be a process's last."""

from __future__ import annotations

import logging
from functools import partial

from queuey import ids
from queuey.errors import (
    InvalidRequest,
    NotFound,
    QueueChanged,
    StoreBusy,
    StoreClosed,
    StoreUnavailable,
    TooManyRequests,
    in_doubt,
)
from queuey.ids import TICKS_PER_SECOND
from queuey.messages import PostKey, PostResult, Record
from queuey.service.core import Core
from queuey.service.due_work import NextStep
from queuey.service.messages import MessageUseCases, content_of
from queuey.service.queue_access import ATTEMPTS, find_queue
from queuey.service.schedules import states
from queuey.service.schedules.states import Firing, Outcome, Schedule, State
from queuey.storage import Store
from queuey.storage.troubles import Trouble
from queuey.time_parsing import clock_warning

GONE = "the queue was purged or made anew while the message was being posted"
TOO_OLD = f"it could not be posted within {states.MAX_FIRING} seconds; it may have been"


logger = logging.getLogger(__name__)


class FireUseCases:
    """Carries out the steps, as :class:`~queuey.service.due_work.DueWork` and for callers.

    ``counts`` are the ticks of this process by state.
    """

    kind = states.KIND

    def __init__(self, store: Store, messages: MessageUseCases, core: Core) -> None:
        self._store = store
        self._messages = messages
        self._core = core
        self._clock = Trouble(logger, "The clock")
        self.counts: dict[State, int] = {"published": 0, "skipped": 0, "failed": 0, "unknown": 0}

    def prepare(self, ahead: float) -> None:
        if warning := clock_warning(ahead):
            self._clock.met("ahead", warning)
        else:
            self._clock.passed()

    async def step(self, record: Record) -> NextStep:
        record = await self.go_on(record)
        return NextStep(record.version, record.due)

    def held(self, name: str) -> None: ...

    def forget(self, name: str) -> None: ...

    async def end(self) -> None: ...

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
        find = partial(find_queue, self._store, record.application, schedule.plan.queue, fresh=True)
        try:
            queue = await self._core.in_thread(find)
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
        find = partial(find_queue, self._store, application, firing.queue, fresh=True)
        queue = await self._core.in_thread(find)
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
        return self._store.claim_time()

    async def save(self, record: Record, schedule: Schedule) -> Record:
        """Replaces a schedule.

        Raises:
            RecordChanged: Another process was quicker.
        """
        return await self._core.in_thread(partial(self._store.set_record, states.recorded(record, schedule)))
