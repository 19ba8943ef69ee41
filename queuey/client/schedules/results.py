"""Results of calls about schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queuey.api.schedules import ListedSchedule, Tick

__all__ = ["Schedule", "Tick"]


class Schedule(ListedSchedule, frozen=True, kw_only=True):
    """How a schedule stands.

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

    message: Mapping[str, Any] | None = None
