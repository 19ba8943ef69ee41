"""Results of calls about schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Tick(msgspec.Struct, frozen=True):
    """The result of a tick of a schedule.

    Example:
        >>> _ = client.schedules.put("hourly", queue="orders", message="count", cron="0 * * * *")
        >>> tick = client.schedules.run("hourly").last
        >>> tick.state, client.get("orders", (tick.partition, tick.message_id))[0].body
        ('published', 'count')
        >>> client.schedules.delete("hourly")

    Attributes:
        instant: When it was due, seconds since 1970.
        at: When the result was known, seconds since 1970.
        state: ``published``; ``skipped``: it was missed; ``failed``: the queue did not get it; ``unknown``: it may have
            been published.
        message_id, partition: Of the message that was published.
        queue: The queue of the message; None: the tick was skipped.
        error: Why it failed.
    """

    instant: float
    at: float
    state: str
    message_id: str | None = None
    partition: int | None = None
    queue: str | None = None
    error: str | None = None


class Schedule(msgspec.Struct, frozen=True):
    """A schedule and its state.

    Example:
        >>> schedule = client.schedules.put("hourly", queue="orders", message="count", cron="0 * * * *")
        >>> schedule.name, schedule.cron, schedule.timezone, schedule.missed, schedule.paused
        ('hourly', '0 * * * *', 'UTC', 'skip', False)
        >>> [instant % 3600 for instant in schedule.next]
        [0, 0, 0, 0, 0]
        >>> client.schedules.delete("hourly")

    Attributes:
        name: Its name in the application.
        queue: The queue of its messages.
        cron, timezone: Its times; None: it has an interval.
        every: Seconds of the interval; None: there is a cron expression.
        missed: ``skip`` or ``catch_up``.
        paused: Nothing is posted.
        created, changed: Seconds since 1970.
        next: The next instants, seconds since 1970.
        firing: The instant whose message is being posted; None: none.
        last: The result of the last tick; None: there was none yet.
        message: The message, as in a batch of the API; None in lists.
    """

    name: str = msgspec.field(name="schedule")
    queue: str
    cron: str | None
    timezone: str | None
    every: int | None
    missed: str
    paused: bool
    created: float
    changed: float
    next: tuple[int, ...]
    firing: float | None
    last: Tick | None
    message: Mapping[str, Any] | None = None
