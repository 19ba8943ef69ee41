"""The record of a schedule, and its state changes as pure functions.

A schedule has one of two states::

    waiting ──the instant has come──► firing (instant, key, message, queue) ──posted, refused or given up──► waiting
       └──────the instant was missed: skipped──────────────────────────────────────────────────────────────► waiting

Each arrow is one compare-and-set. While a schedule is firing, any process may post the message under the key, any
number of times: the key makes sure that it is stored once. That holds only while the key is remembered, so a firing
older than ``MAX_FIRING_SECONDS`` is no longer posted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from itertools import islice, takewhile
from typing import Literal

import msgspec
from msgspec.structs import replace

from queuey.messages.posts import Draft
from queuey.model import ids
from queuey.model.errors import TimeZoneUnknown
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import Meta, Record
from queuey.runtime.due_work import MAX_SECONDS_AHEAD
from queuey.schedules.timetables import Timetable, find_next_instant, iterate_instants

KIND = "schedule"
MAX_LATE_SECONDS = 60
"""Max seconds by which a tick may fire late; after that it is missed."""
MAX_CAUGHT_UP = 100
"""Max missed ticks that ``catch_up`` fires: the newest ones."""
MAX_CATCH_UP_AGE = 86_400
"""Max age in seconds of a missed tick that ``catch_up`` fires."""
MAX_FIRING_SECONDS = 3600
"""Max seconds for which posting the message of a firing is retried."""
KEY_SECONDS = 86_400
"""Seconds for which a key is remembered: far longer than ``MAX_FIRING_SECONDS``, also for a process that was paused."""
FIRING_TIMEOUT = 5
"""Seconds after which other processes continue a firing."""
MAX_CACHED_TIMETABLES = 4096
MAX_ERROR_LENGTH = 200

Missed = Literal["skip", "catch_up"]
State = Literal["published", "skipped", "failed", "unknown"]


class KeptMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message in a record. ``body`` is UTF-8 if ``text`` is true."""

    body: bytes
    text: bool
    ttl: int | None
    partition: int | None
    meta: Meta | None
    key: str | None

    @property
    def draft(self) -> Draft:
        body = self.body.decode() if self.text else self.body
        return Draft(body, self.ttl, self.partition, self.meta, key=self.key)


def keep_message(draft: Draft) -> KeptMessage:
    text = isinstance(draft.body, str)
    body = draft.body.encode() if isinstance(draft.body, str) else draft.body
    return KeptMessage(body, text, draft.ttl, draft.partition, draft.meta, draft.key)


class ScheduleDefinition(msgspec.Struct, frozen=True, array_like=True):
    """The part of a schedule that its owner sets.

    Attributes:
        queue: Name of the queue that gets the messages.
        missed: Treatment of missed ticks.
    """

    queue: str
    timetable: Timetable
    message: KeptMessage
    missed: Missed = "skip"
    paused: bool = False


class Firing(msgspec.Struct, frozen=True, array_like=True):
    """A message that is being posted.

    Attributes:
        instant: Seconds since 1970.
        key: Idempotency key of the post.
        queue, qid: The target. The key belongs to this ``qid``, so the message is posted to no other queue.
        message: The plan's message at the beginning of the firing.
        began: Ticks.
    """

    instant: float
    key: str
    queue: str
    qid: int
    message: KeptMessage
    began: int


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """Result of a tick.

    Attributes:
        instant: When the tick was due, in seconds since 1970.
        at: When the result was known, in seconds since 1970.
        partition, message_id: Location of the published message; otherwise 0 and blank.
        error: Why no message was published.
        queue: The target; blank if the tick was skipped.
    """

    instant: float
    at: float
    state: State
    partition: int = 0
    message_id: str = ""
    error: str = ""
    queue: str = ""


class StoredSchedule(msgspec.Struct, frozen=True, array_like=True):
    """A schedule in its record.

    Attributes:
        identity: A random number, part of the schedule's keys. A new schedule of the same name has another one.
        created, changed: Seconds since 1970.
        next: The next instant in seconds since 1970, or None if the schedule is paused or has no further instant.
        fired: The last instant of the timetable that was fired or skipped. No instant up to it is fired again.
        firing: The message that is being posted, or None.
        last: Result of the last tick.
    """

    identity: int
    created: float
    changed: float
    plan: ScheduleDefinition
    next: int | None = None
    fired: int = 0
    firing: Firing | None = None
    last: Outcome | None = None


class TickChoice(msgspec.Struct, frozen=True):
    """Ticks that are due now.

    Attributes:
        instant: The instant to fire, or None.
        next: The next instant after that.
        skipped: The first instant that was missed, or None.
    """

    instant: int | None
    next: int | None
    skipped: int | None = None


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(StoredSchedule).decode


def find_next_step_ticks(schedule: StoredSchedule) -> int:
    if schedule.firing is not None:
        return schedule.firing.began + FIRING_TIMEOUT * TICKS_PER_SECOND
    return ids.TICKS_MAX if schedule.next is None else ids.EPOCH_TICKS + schedule.next * TICKS_PER_SECOND


def make_record(record: Record, schedule: StoredSchedule) -> Record:
    return replace(record, value=encode(schedule), due=find_next_step_ticks(schedule))


def choose_tick(schedule: StoredSchedule, now: float) -> TickChoice:
    """Returns what to do at a time: a tick is fired if it is recent, or, with ``catch_up``, the first missed one.

    Otherwise the due ticks count as skipped. With ``catch_up``, ticks that are too old or too many leave no outcome.
    """
    first, timetable = next_fire_time(schedule, now), schedule.plan.timetable
    if first is None or first > now:
        return TickChoice(None, first)
    if schedule.plan.missed == "catch_up":
        begin = max(first, int(now) - MAX_CATCH_UP_AGE) if now - first > MAX_LATE_SECONDS else first
        [*missed] = deque(_instants_between(timetable, begin - 1, now), MAX_CAUGHT_UP)
        instant = missed[0] if missed else None
        return TickChoice(instant, find_next_instant(timetable, now if instant is None else instant))
    [*recent] = deque(_instants_between(timetable, max(first, int(now) - MAX_LATE_SECONDS) - 1, now), 1)
    if recent:
        return TickChoice(recent[0], find_next_instant(timetable, now))
    return TickChoice(None, find_next_instant(timetable, now), skipped=first)


def next_fire_time(schedule: StoredSchedule, now: float) -> int | None:
    """Returns the next instant. If the clock was ahead when the schedule was fired or changed, computes it again."""
    if schedule.next is None or schedule.next <= now or not _was_ahead(schedule, now):
        return schedule.next
    return find_next_instant(schedule.plan.timetable, now)


def _was_ahead(schedule: StoredSchedule, now: float) -> bool:
    last = 0.0 if schedule.last is None else schedule.last.at
    return max(schedule.fired, schedule.changed, last) > now + MAX_SECONDS_AHEAD


def _instants_between(timetable: Timetable, after: float, until: float) -> Iterator[int]:
    return takewhile(lambda instant: instant <= until, iterate_instants(timetable, after))


def record_skip(schedule: StoredSchedule, ticks: TickChoice, now: float) -> StoredSchedule:
    """Returns the schedule with the next instant of ``ticks``, and an outcome if these were skipped.

    If the clock was ahead, ``fired`` is set back to now.
    """
    last = schedule.last
    fired = min(schedule.fired, int(now))
    if ticks.skipped is not None:
        last = Outcome(ticks.skipped, now, "skipped", error=f"no process fired it within {MAX_LATE_SECONDS} seconds")
        fired = max(fired, ticks.skipped)
    return replace(schedule, next=ticks.next, fired=fired, last=last)


def begin_firing(schedule: StoredSchedule, instant: float, qid: int, now: int) -> StoredSchedule:
    """Begins to fire an instant, of the timetable or on request. ``now`` is in ticks."""
    plan = schedule.plan
    # The identity is secret, so no other caller can post under this key.
    text = blake2b(b"%d %a" % (schedule.identity, instant), digest_size=16).hexdigest()
    return replace(schedule, firing=Firing(instant, f"schedule {text}", plan.queue, qid, plan.message, now))


def pass_instant(schedule: StoredSchedule, ticks: TickChoice) -> StoredSchedule:
    assert ticks.instant is not None  # noqa: S101 - it was chosen
    return replace(schedule, next=ticks.next, fired=max(schedule.fired, ticks.instant))


def end_firing(schedule: StoredSchedule, outcome: Outcome) -> StoredSchedule:
    return replace(schedule, firing=None, last=outcome, next=next_fire_time(schedule, outcome.at))


def reschedule(schedule: StoredSchedule, now: float) -> StoredSchedule:
    """Returns a copy whose ``next`` is the first instant after both now and ``fired``, or None if paused.

    If the clock was ahead, ``fired`` is ignored.
    """
    after = now if _was_ahead(schedule, now) else max(now, float(schedule.fired))
    following = None if schedule.plan.paused else find_next_instant(schedule.plan.timetable, after)
    return replace(schedule, next=following)


def list_next_fire_times(schedule: StoredSchedule, limit: int) -> list[int]:
    return [] if schedule.next is None else list(_instants_from(schedule.plan.timetable, schedule.next, limit))


@lru_cache(MAX_CACHED_TIMETABLES)
def _instants_from(timetable: Timetable, first: int, limit: int) -> tuple[int, ...]:
    """Returns up to ``limit`` instants, beginning with ``first``; only that one if the time zone is unknown.

    They are cached, because rare ones, such as leap days, take milliseconds each.
    """
    with suppress(TimeZoneUnknown):
        return (first, *islice(iterate_instants(timetable, first), limit - 1))
    return (first,)
