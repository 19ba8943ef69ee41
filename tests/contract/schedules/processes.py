"""Processes that fire schedules, each by its own clock, and may stop before or after any call of the store."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from queuey.messages.posts import Draft
from queuey.model import ids
from queuey.model.errors import KeyInUse, RecordChanged, StoreUnavailable
from queuey.model.messages import Queue, Record
from queuey.schedules.schedule_states import KIND, Missed, ScheduleDefinition, keep_message
from queuey.schedules.schedules import FireUseCases, ScheduleReport
from queuey.schedules.timetables import Timetable
from queuey.storage import Catalogue, KeyedPosts, Records, Store, StoreClock, bridge
from tests.backends import APP, Clock
from tests.contract.samples import idle_service, read_one, whole_partition
from tests.interposed_store import InterposedStore

KILL_POINTS = (Records.record, StoreClock.now_ticks, Catalogue.queue, Records.set_record, KeyedPosts.append_once)
"""Calls of which any may be the last of a process."""


class Process:
    """A process that fires schedules when the test calls it.

    Args:
        store: Its store.
        clock: Its clock.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self.clock = clock
        self.between = InterposedStore(store)
        self.service = idle_service(self.between.store)
        self.core = self.service.core
        self.schedules = self.service.schedules
        self.firing = FireUseCases(self.between.store, self.service.messages, self.core)

    def put(self, name: str, plan: ScheduleDefinition) -> ScheduleReport:
        return bridge.run(self.schedules.put(APP, name, lambda _before, _now: plan, lambda _queue: True))[0]

    def find(self, name: str) -> Record:
        record = bridge.run(self.between.store.records.record(KIND, APP, name))
        assert record is not None
        return record

    def step(self, name: str) -> bool:
        """Takes the next step of a schedule; returns whether there was one."""
        record = self.find(name)
        return self.core.run(self.firing.take_step(record)) != record

    def settle(self, name: str) -> None:
        """Takes steps until there are none, as a runner does; after an error half a second later.

        Fails after 200 attempts.
        """
        for _ in range(200):
            try:
                if not self.step(name):
                    return
            except (KeyInUse, RecordChanged, StoreUnavailable):
                self.clock.advance(0.5)
        raise AssertionError(self.report(name))

    def report(self, name: str) -> ScheduleReport:
        return bridge.run(self.schedules.show(APP, name, bool))

    def kill_at(self, call_number: int, *, after: bool) -> list[str]:
        """Stops this process before or after the call of this number, counted from now on."""
        return self.between.kill_at(call_number, KILL_POINTS, after=after)


def plan(
    queue: Queue, body: str = "tick", *, every: int = 60, anchor: float = 0, missed: Missed = "skip"
) -> ScheduleDefinition:
    return ScheduleDefinition(
        queue.name, Timetable(every=every, anchor=int(anchor)), keep_message(Draft(body)), missed=missed
    )


def bodies(store: Store, queue: Queue) -> Counter[str | bytes]:
    """Counts how often each body was published, also at the very moment of the clock."""
    part = replace(whole_partition(), keeps_read_delay=False, due=False)
    return Counter(message.body for message in read_one(store, queue, part).messages)


def seconds(clock: Clock) -> float:
    return ids.ticks_to_seconds(clock.ticks)


def pause_plan(given: ScheduleDefinition) -> ScheduleDefinition:
    return replace(given, paused=True)
