"""Schedules: messages that are posted at certain times."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from queuey.api.messages import ScheduledMessage
from queuey.api.values import Id, Partition, Seconds, words

MAX_EXPRESSION = 200
"""Max characters of a cron expression."""
MIN_INTERVAL, MAX_INTERVAL = 10, 366 * 86_400
"""Min and max interval of a schedule, in seconds."""
Cron = Annotated[
    str, Meta(max_length=MAX_EXPRESSION, description="minute, hour, day of the month, month, day of the week")
]
Zone = Annotated[str, Meta(max_length=64, description="a name of the IANA database, such as Europe/Berlin")]
Every = Annotated[int, Meta(ge=MIN_INTERVAL, le=MAX_INTERVAL, description="seconds")]
Missed = Annotated[str, words("skip", "catch_up", description="the policy for ticks that no process fired")]


class SchedulePlan(Struct, frozen=True, kw_only=True):
    """The plan of a schedule. A new one needs a queue, a message, and cron or every; others keep the rest."""

    queue: Annotated[str, Meta(max_length=50)] | None = None
    message: ScheduledMessage | None = None
    cron: Cron | None = None
    timezone: Zone | None = None
    every: Every | None = None
    missed: Missed | None = None
    paused: bool | None = None


class Tick(Struct, frozen=True, omit_defaults=True):
    """The result of a tick of a schedule.

    Example:
        >>> _ = client.schedules.put("hourly", queue="orders", message="count", cron="0 * * * *")
        >>> tick = client.schedules.run("hourly").last
        >>> tick.state, client.get("orders", (tick.partition, tick.message_id))[0].body
        ('published', 'count')
        >>> client.schedules.delete("hourly")

    Attributes:
        instant: When it was due, seconds since 1970.
        at: When that was known, seconds since 1970.
        state: ``published``; ``skipped``: it was missed; ``failed``: the queue did not get it; ``unknown``: it may have
            been published.
        message_id, partition: Of the message that was published.
        queue: Where it went, or was to go; None: it was skipped.
        error: Why none was.
    """

    instant: float
    at: float
    state: Annotated[str, words("published", "skipped", "failed", "unknown")]
    message_id: Id | None = None
    partition: Partition | None = None
    queue: str | None = None
    error: str | None = None


class ListedSchedule(Struct, frozen=True, kw_only=True):
    """How a schedule stands."""

    name: str = field(name="schedule")
    queue: str
    cron: Cron | None
    timezone: Zone | None
    every: Every | None
    missed: Missed
    paused: bool
    created: Seconds
    changed: Seconds
    next: tuple[int, ...]
    firing: Seconds | None
    last: Tick | None


class ScheduleState(ListedSchedule, frozen=True, kw_only=True, tag_field="status", tag="ok"):
    """How a schedule stands, and its message."""

    message: ScheduledMessage


class ScheduleList(Struct, frozen=True, tag_field="status", tag="ok"):
    """Schedules by name. `more` is the name to go on at, as `start`; null: these are the last."""

    schedules: list[ListedSchedule]
    more: str | None


class ScheduleQuery(Struct, frozen=True, kw_only=True):
    """The page of schedules that is asked for."""

    start: Annotated[str, Meta(description="Schedule to start at, inclusive")] = ""
