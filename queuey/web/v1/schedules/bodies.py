"""The bodies of schedules as types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from queuey.service.schedules import MAX_EXPRESSION, MAX_INTERVAL, MIN_INTERVAL
from queuey.web.v1.schemas import Done, Id, Ok, Partition, Seconds, Ttl

Cron = Annotated[
    str, Meta(max_length=MAX_EXPRESSION, description="minute, hour, day of the month, month, day of the week")
]
Zone = Annotated[str, Meta(max_length=64, description="a name of the IANA database, such as Europe/Berlin")]
Every = Annotated[int, Meta(ge=MIN_INTERVAL, le=MAX_INTERVAL, description="seconds")]
Missed = Annotated[
    Literal["skip", "catch_up"], Meta(description="what is done about ticks that nobody was there to fire")
]


class ScheduledMessage(Struct, kw_only=True, omit_defaults=True):
    """A message as in a batch, without a delay. A string body is text; any other JSON value is kept as that value."""

    body: Any
    ttl: Ttl | None = None
    partition: Partition | None = None
    message_key: Annotated[str, Meta(max_length=256)] | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None
    encoding: Literal["base64"] | None = None


class SchedulePlan(Struct, kw_only=True):
    """What a schedule is to do. A new one needs a queue, a message, and cron or every; others keep the rest."""

    queue: Annotated[str, Meta(max_length=50)] | UnsetType = UNSET
    message: ScheduledMessage | UnsetType = UNSET
    cron: Cron | UnsetType = UNSET
    timezone: Zone | UnsetType = UNSET
    every: Every | UnsetType = UNSET
    missed: Missed | UnsetType = UNSET
    paused: bool | UnsetType = UNSET


class Tick(Struct, kw_only=True, omit_defaults=True):
    """What became of a tick. `unknown`: its message may have been posted."""

    instant: Seconds
    at: Seconds
    state: Literal["published", "skipped", "failed", "unknown"]
    message_id: Id | UnsetType = UNSET
    partition: Partition | UnsetType = UNSET
    queue: Annotated[str, Meta(description="where the message went, or was to go")] | UnsetType = UNSET
    error: str | UnsetType = UNSET


class ListedSchedule(Struct, kw_only=True):
    """How a schedule stands."""

    schedule: str
    queue: str
    cron: Cron | None
    timezone: Zone | None
    every: Every | None
    missed: Missed
    paused: bool
    created: Seconds
    changed: Seconds
    next: Annotated[list[int], Meta(description="the next instants, seconds since 1970")]
    firing: Annotated[float, Meta(description="the instant whose message is being posted, seconds since 1970")] | None
    last: Tick | None


class Schedule(ListedSchedule, kw_only=True):
    """How a schedule stands, and its message."""

    status: Ok = "ok"
    message: ScheduledMessage


class ScheduleList(Done, kw_only=True):
    """Schedules by name. `more` is the name to go on at, as `start`; null: these are the last."""

    schedules: list[ListedSchedule]
    more: str | None
