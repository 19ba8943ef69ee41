"""The record of a schedule and the decisions on it: pure functions.

A schedule's row has one of two states::

    waiting ──the instant has come──► firing (instant, key, message, queue) ──posted, refused or given up──► waiting
       └──────the instant was missed: skipped──────────────────────────────────────────────────────────────► waiting

Every arrow is one compare-and-set. Between the last two, any process may post the message under the key, any number of
times: the key makes sure that it is stored once. That holds while the key is remembered, so a firing older than
``MAX_FIRING`` is not posted any more.
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

from queuey import ids
from queuey.errors import TimeZoneUnknown
from queuey.ids import TICKS_PER_SECOND
from queuey.messages import Meta, Record
from queuey.service.due_work import MAX_AHEAD
from queuey.service.messages import Draft
from queuey.service.schedules.timetables import Timetable, instants, next_instant

KIND = "schedule"
"""Kind of the records."""
MAX_LATE = 60
"""Max seconds after which a tick is not missed."""
MAX_CAUGHT_UP = 100
"""Max missed ticks that are made up for, the newest."""
INTERVAL_CAUGHT_UP = 86_400
"""Max seconds for which a missed tick is made up for."""
MAX_FIRING = 3600
"""Max seconds for which a firing is repeated."""
KEY_SECONDS = 86_400
"""Number of seconds for which a key is remembered: far longer than a firing is repeated, whatever a process does in
between."""
TIMEOUT_FIRING = 5
"""Timeout in seconds after which other processes go on with a firing."""
MAX_REMEMBERED = 4096
"""Max timetables whose next instants are remembered."""
MAX_ERROR = 200
"""Max characters of the text of an outcome."""

Missed = Literal["skip", "catch_up"]
State = Literal["published", "skipped", "failed", "unknown"]


class KeptMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message in a record: one form of body, and whether that is text."""

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


def kept(draft: Draft) -> KeptMessage:
    """Returns the record's form of a message, which has no delay."""
    text = isinstance(draft.body, str)
    body = draft.body.encode() if isinstance(draft.body, str) else draft.body
    return KeptMessage(body, text, draft.ttl, draft.partition, draft.meta, draft.key)


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """The owner's part of a schedule.

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
        key: Its idempotency key.
        queue, qid: The target. A key belongs to the ``qid``, so the message goes nowhere else.
        message: Of the plan when it began.
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
        instant: When it was due (seconds since 1970).
        at: When the result was known (seconds since 1970).
        partition, message_id: Of the message; 0 and blank: it is not known that there is one.
        error: Reason for no message.
        queue: The target; blank: the tick was skipped.
    """

    instant: float
    at: float
    state: State
    partition: int = 0
    message_id: str = ""
    error: str = ""
    queue: str = ""


class Schedule(msgspec.Struct, frozen=True, array_like=True):
    """A schedule in its record.

    Attributes:
        identity: A random number, part of its keys; a new schedule of the same name has another one.
        created, changed: Seconds since 1970.
        next: The next instant (seconds since 1970); None: it is paused, or never comes again.
        fired: The last instant of its timetable that was fired or skipped. None at or below it is fired again.
        firing: The message that is being posted.
        last: Result of the last tick.
    """

    identity: int
    created: float
    changed: float
    plan: Plan
    next: int | None = None
    fired: int = 0
    firing: Firing | None = None
    last: Outcome | None = None


class Ticks(msgspec.Struct, frozen=True):
    """Ticks that are due now.

    Attributes:
        instant: The one to fire; None: none.
        next: The one after that.
        skipped: The newest one that was missed; None: none.
    """

    instant: int | None
    next: int | None
    skipped: int | None = None


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Schedule).decode


def due_ticks(schedule: Schedule) -> int:
    """Returns the time of the next step (ticks): while it is firing, when others go on with it."""
    if schedule.firing is not None:
        return schedule.firing.began + TIMEOUT_FIRING * TICKS_PER_SECOND
    return ids.TICKS_MAX if schedule.next is None else ids.EPOCH_TICKS + schedule.next * TICKS_PER_SECOND


def recorded(record: Record, schedule: Schedule) -> Record:
    """Returns the record with a new value; its version is still the old one."""
    return replace(record, value=encode(schedule), due=due_ticks(schedule))


def choose(schedule: Schedule, now: float) -> Ticks:
    first, timetable = upcoming(schedule, now), schedule.plan.timetable
    if first is None or first > now:
        return Ticks(None, first)
    if schedule.plan.missed == "catch_up":
        begin = max(first, int(now) - INTERVAL_CAUGHT_UP) if now - first > MAX_LATE else first
        [*missed] = deque(_between(timetable, begin - 1, now), MAX_CAUGHT_UP)
        instant = missed[0] if missed else None
        return Ticks(instant, next_instant(timetable, now if instant is None else instant))
    [*recent] = deque(_between(timetable, max(first, int(now) - MAX_LATE) - 1, now), 1)
    if recent:
        return Ticks(recent[0], next_instant(timetable, now))
    return Ticks(None, next_instant(timetable, now), skipped=first)


def upcoming(schedule: Schedule, now: float) -> int | None:
    """Returns the next instant, which is set anew if the clock was ahead when the schedule was fired or changed."""
    if schedule.next is None or schedule.next <= now or not _was_ahead(schedule, now):
        return schedule.next
    return next_instant(schedule.plan.timetable, now)


def _was_ahead(schedule: Schedule, now: float) -> bool:
    last = 0.0 if schedule.last is None else schedule.last.at
    return max(schedule.fired, schedule.changed, last) > now + MAX_AHEAD


def _between(timetable: Timetable, after: float, until: float) -> Iterator[int]:
    return takewhile(lambda instant: instant <= until, instants(timetable, after))


def skip(schedule: Schedule, ticks: Ticks, now: float) -> Schedule:
    last = schedule.last
    fired = min(schedule.fired, int(now))
    if ticks.skipped is not None:
        last = Outcome(ticks.skipped, now, "skipped", error=f"nobody was there within {MAX_LATE} seconds")
        fired = max(fired, ticks.skipped)
    return replace(schedule, next=ticks.next, fired=fired, last=last)


def begin(schedule: Schedule, instant: float, qid: int, now: int) -> Schedule:
    """Begins to fire an instant: one of the timetable or, between those, now. ``now`` is in ticks."""
    plan = schedule.plan
    # The identity is known to nobody else, so nobody posts under this key.
    text = blake2b(b"%d %a" % (schedule.identity, instant), digest_size=16).hexdigest()
    return replace(schedule, firing=Firing(instant, f"schedule {text}", plan.queue, qid, plan.message, now))


def advance(schedule: Schedule, ticks: Ticks) -> Schedule:
    """Moves on from an instant of the timetable."""
    assert ticks.instant is not None  # noqa: S101 - it was chosen
    return replace(schedule, next=ticks.next, fired=max(schedule.fired, ticks.instant))


def end(schedule: Schedule, outcome: Outcome) -> Schedule:
    """Returns to waiting, with the result of the tick."""
    return replace(schedule, firing=None, last=outcome, next=upcoming(schedule, outcome.at))


def reschedule(schedule: Schedule, now: float) -> Schedule:
    """Sets the next instant anew, for a plan that has changed."""
    after = now if _was_ahead(schedule, now) else max(now, float(schedule.fired))
    following = None if schedule.plan.paused else next_instant(schedule.plan.timetable, after)
    return replace(schedule, next=following)


def coming(schedule: Schedule, most: int) -> list[int]:
    """Returns the next instants; only the first one if this machine does not know its time zone."""
    return [] if schedule.next is None else list(_coming(schedule.plan.timetable, schedule.next, most))


@lru_cache(MAX_REMEMBERED)
def _coming(timetable: Timetable, first: int, most: int) -> tuple[int, ...]:
    """Computes next instants once: those of rare times, such as a leap day, take milliseconds each."""
    with suppress(TimeZoneUnknown):
        return (first, *islice(instants(timetable, first), most - 1))
    return (first,)
