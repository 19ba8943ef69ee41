"""A schedule as it is kept, and what is decided about it: pure functions.

A schedule's row has one of two states::

    waiting ──the instant has come──► firing (instant, key, message, queue) ──posted, refused or given up──► waiting
       └──────the instant was missed: skipped──────────────────────────────────────────────────────────────► waiting

Every arrow is one compare-and-set. Between the last two, any process may post the message under the key, any number of
times: the key says that it is stored once. That holds while the key is remembered, so nobody posts when the firing is
older than ``MAX_FIRING``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import islice, takewhile
from typing import Literal

import msgspec
from msgspec.structs import replace

from queuey import ids
from queuey.errors import TimeZoneUnknown
from queuey.ids import TICKS_PER_SECOND
from queuey.messages import Meta, Record
from queuey.service.drafts import Draft
from queuey.service.schedules.timetables import Timetable, instants, next_instant

KIND = "schedule"
"""Of records."""
MAX_LATE = 60
"""Seconds after which a tick counts as missed."""
MAX_CAUGHT_UP = 100
"""Missed ticks that are made up for, the newest."""
INTERVAL_CAUGHT_UP = 86_400
"""Seconds for which a missed tick is made up for."""
MAX_FIRING = 3600
"""Seconds for which a firing is repeated."""
KEY_SECONDS = 86_400
"""For which a key is remembered: far longer than a firing is repeated, whatever a process does in between."""
TIMEOUT_FIRING = 5
"""Seconds after which other processes go on with a firing."""
MAX_ERROR = 200
"""Characters of the text of an outcome."""

Missed = Literal["skip", "catch_up"]
State = Literal["published", "skipped", "failed", "unknown"]


class KeptMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message as it is kept: one form of body, and whether that is text."""

    body: bytes
    text: bool
    ttl: int | None
    partition: int | None
    meta: Meta | None
    key: str | None

    @property
    def draft(self) -> Draft:
        """The message to post."""
        body = self.body.decode() if self.text else self.body
        return Draft(body, self.ttl, self.partition, self.meta, key=self.key)


def kept(draft: Draft) -> KeptMessage:
    """Returns what is kept of a message, which has no delay."""
    text = isinstance(draft.body, str)
    body = draft.body.encode() if isinstance(draft.body, str) else draft.body
    return KeptMessage(body, text, draft.ttl, draft.partition, draft.meta, draft.key)


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """What its owner says of a schedule.

    Attributes:
        queue: Name of the queue that gets the messages.
        missed: What is done about ticks that nobody was there for.
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
        queue, qid: Where it goes. A key belongs to the ``qid``, so it goes nowhere else.
        message: What the plan said when it began.
        began: When (ticks).
    """

    instant: float
    key: str
    queue: str
    qid: int
    message: KeptMessage
    began: int


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of a tick.

    Attributes:
        instant: When it was due (seconds since 1970).
        at: When that was known (seconds since 1970).
        partition, message_id: Of the message; 0 and blank: it is not known that there is one.
        error: Why there is none.
        queue: Where it went, or was to go; blank: it was skipped.
    """

    instant: float
    at: float
    state: State
    partition: int = 0
    message_id: str = ""
    error: str = ""
    queue: str = ""


class Schedule(msgspec.Struct, frozen=True, array_like=True):
    """A schedule as it is kept.

    Attributes:
        identity: Another one for each schedule that is made, also under the same name; part of its keys.
        created, changed: Seconds since 1970.
        next: The next instant (seconds since 1970); None: it is paused, or never comes again.
        fired: The last instant of its timetable that was fired or skipped. None at or below it is fired again.
        firing: What is being posted.
        last: What became of the last tick.
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
    """What is to be done now.

    Attributes:
        instant: The one to fire; None: none.
        next: The one after that.
        skipped: The newest one that was missed; None: none was.
    """

    instant: int | None
    next: int | None
    skipped: int | None = None


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Schedule).decode


def due_ticks(schedule: Schedule) -> int:
    """Returns when there is something to do with a schedule (ticks): when others go on with it, if it is firing."""
    if schedule.firing is not None:
        return schedule.firing.began + TIMEOUT_FIRING * TICKS_PER_SECOND
    return ids.TICKS_MAX if schedule.next is None else ids.EPOCH_TICKS + schedule.next * TICKS_PER_SECOND


def recorded(record: Record, schedule: Schedule) -> Record:
    """Returns the record of a schedule with what it is now; its version is still that of before."""
    return replace(record, value=encode(schedule), due=due_ticks(schedule))


def choose(schedule: Schedule, now: float) -> Ticks:
    """Decides which instant to fire now."""
    first, timetable = schedule.next, schedule.plan.timetable
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


def _between(timetable: Timetable, after: float, until: float) -> Iterator[int]:
    return takewhile(lambda instant: instant <= until, instants(timetable, after))


def skip(schedule: Schedule, ticks: Ticks, now: float) -> Schedule:
    """Goes on to the next instant without a message."""
    last = schedule.last
    fired = schedule.fired
    if ticks.skipped is not None:
        last = Outcome(ticks.skipped, now, "skipped", error=f"nobody was there within {MAX_LATE} seconds")
        fired = max(fired, ticks.skipped)
    return replace(schedule, next=ticks.next, fired=fired, last=last)


def begin(schedule: Schedule, instant: float, qid: int, now: int) -> Schedule:
    """Begins to fire an instant; one of the timetable or, between those, now.

    Args:
        schedule: It is waiting.
        instant: Seconds since 1970.
        qid: Of the queue.
        now: Ticks.
    """
    plan = schedule.plan
    # The identity is known to nobody else, so nobody posts under this key.
    text = blake2b(b"%d %a" % (schedule.identity, instant), digest_size=16).hexdigest()
    return replace(schedule, firing=Firing(instant, f"schedule {text}", plan.queue, qid, plan.message, now))


def advance(schedule: Schedule, ticks: Ticks) -> Schedule:
    """Notes that an instant of the timetable is done with or begun."""
    assert ticks.instant is not None  # noqa: S101 - it was chosen
    return replace(schedule, next=ticks.next, fired=max(schedule.fired, ticks.instant))


def end(schedule: Schedule, outcome: Outcome) -> Schedule:
    """Goes on to wait, with what has become of the tick."""
    return replace(schedule, firing=None, last=outcome)


def reschedule(schedule: Schedule, now: float) -> Schedule:
    """Sets the next instant anew, for a plan that has changed."""
    after = max(now, float(schedule.fired))
    following = None if schedule.plan.paused else next_instant(schedule.plan.timetable, after)
    return replace(schedule, next=following)


def coming(schedule: Schedule, most: int) -> list[int]:
    """Returns the next instants; only the first one if its time zone is not known on this machine any more."""
    if schedule.next is None:
        return []
    found = [schedule.next]
    with suppress(TimeZoneUnknown):
        found += islice(instants(schedule.plan.timetable, schedule.next), most - 1)
    return found
