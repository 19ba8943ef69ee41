"""Schedules: messages that are posted at scheduled times."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from queuey.api.messages import ScheduledMessage
from queuey.api.values import Id, Partition, Seconds, text_choice

MAX_EXPRESSION = 200
MIN_INTERVAL, MAX_INTERVAL = 10, 366 * 86_400
"""Min and max interval of a schedule, in seconds."""
Cron = Annotated[
    str, Meta(max_length=MAX_EXPRESSION, description="Minute, hour, day of the month, month, day of the week")
]
Zone = Annotated[str, Meta(max_length=64, description="A time zone of the IANA database, such as Europe/Berlin")]
Every = Annotated[int, Meta(ge=MIN_INTERVAL, le=MAX_INTERVAL, description="Interval in seconds")]
Missed = Annotated[str, text_choice("skip", "catch_up", description="Policy for ticks that no process fired")]


class SchedulePlan(Struct, frozen=True, kw_only=True):
    """The plan of a schedule. A new one needs a queue, a message, and cron or every; a change keeps absent fields."""

    queue: str | None = None
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
        instant: When the tick was due, in seconds since 1970.
        at: When the result was known, in seconds since 1970.
        state: ``published``; ``skipped``: the tick was missed; ``failed``: no message was stored; ``unknown``: the
            message may have been stored.
        message_id, partition: Location of the published message.
        queue: The queue of the message; None if the tick was skipped.
        error: Why no message was published.
    """

    instant: float
    at: float
    state: Annotated[str, text_choice("published", "skipped", "failed", "unknown")]
    message_id: Id | None = None
    partition: Partition | None = None
    queue: str | None = None
    error: str | None = None


class ListedSchedule(Struct, frozen=True, kw_only=True):
    """A schedule without its message."""

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
    """A schedule with its message."""

    message: ScheduledMessage


class ScheduleList(Struct, frozen=True, tag_field="status", tag="ok"):
    """Schedules by name. ``more`` is the ``start`` of the next page, or null on the last page."""

    schedules: list[ListedSchedule]
    more: str | None


class ScheduleQuery(Struct, frozen=True, kw_only=True):
    """The requested page of schedules."""

    start: Annotated[str, Meta(description="Schedule to start at, inclusive")] = ""
