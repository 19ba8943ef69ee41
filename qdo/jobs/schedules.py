"""Schedules of tasks: what the code says of when they are called, and the schedules of the service that do it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from random import uniform
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from qdo.errors import InvalidArgument
from qdo.worker.rights import PAUSES
from queuey.client import ClientError, InvalidRequest, NotAllowed, NotFound, Outgoing, QueueNotFound
from queuey.client.calls.service_calls import SCHEDULE_NAME

if TYPE_CHECKING:
    from queuey.client import AsyncClient, Client, Schedule

logger = logging.getLogger("qdo.worker")

FIELDS = 5
"""Number of fields of a cron expression."""
MIN_INTERVAL = 10
"""Min interval, in seconds."""
_REFUSALS = (InvalidRequest, NotAllowed, QueueNotFound)
"""Refusals of one schedule; another one may be put."""
_NOT_ALLOWED = (
    "the credential may not see to the schedules of tasks (%s), so they are as they were. "
    "Call jobs.put_schedules() with one that has admin and send for their queues: %s"
)
_LEFT_OVER = (
    "schedule %s calls a task that has neither cron nor every here. If no other program wants it: "
    "queuey schedule delete %s"
)


class Timetable(NamedTuple):
    """When a task is called without anybody sending a call.

    Attributes:
        cron: Minute, hour, day of the month, month, day of the week; None: there is an interval.
        timezone: Of ``cron``.
        every: Interval in seconds; None: there is a cron expression.
        missed: ``skip`` or ``catch_up``, for ticks while no process of the service ran.
    """

    cron: str | None
    timezone: str | None
    every: int | None
    missed: str


def timetable_of(
    task: str, cron: str | None, timezone: str | None, every: timedelta | float | None, missed: str | None
) -> Timetable | None:
    """Returns the timetable of a task's options; None: it has none. Raises InvalidArgument."""
    if cron is None and every is None:
        if timezone is not None or missed is not None:
            raise InvalidArgument(f"task {task} has neither cron nor every, so leave out timezone and missed")
        return None
    if cron is not None and (every is not None or len(cron.split()) != FIELDS):
        raise InvalidArgument(f"task {task} has cron={cron!r} and every={every}: give one; cron has {FIELDS} fields")
    seconds = every.total_seconds() if isinstance(every, timedelta) else every
    is_whole = isinstance(seconds, int | float) and seconds >= MIN_INTERVAL and float(seconds).is_integer()
    if seconds is not None and (not is_whole or timezone is not None):
        raise InvalidArgument(
            f"every of task {task} is {every!r}: whole seconds, {MIN_INTERVAL} at least, and without a timezone"
        )
    if missed not in {None, "skip", "catch_up"}:
        raise InvalidArgument(f"missed of task {task} is {missed!r}: it is 'skip' or 'catch_up'")
    if seconds is not None:
        return Timetable(None, None, int(seconds), missed or "skip")
    return Timetable(" ".join((cron or "").split()), timezone or "UTC", None, missed or "skip")


def check_scheduled(function: Callable[..., Any], task: str, queue: str) -> None:
    """Raises InvalidArgument if the task needs arguments, or no schedule can have its name."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InvalidArgument(f"task {task} is called at certain times, without arguments, but: {error}") from error
    if SCHEDULE_NAME.fullmatch(_name(queue, task)) is None:
        text = "has up to 100 letters, digits and ._:@-"
        raise InvalidArgument(f"the schedule of task {task} cannot be named {_name(queue, task)!r}: a name {text}")


class TaskSchedule(NamedTuple):
    """The schedule of a task, as the code wants it."""

    task: str
    queue: str
    timetable: Timetable
    body: msgspec.Raw

    @property
    def name(self) -> str:
        return _name(self.queue, self.task)

    def stands(self, found: Schedule) -> bool:
        """Returns True if a schedule is as wanted, paused or not."""
        there = Timetable(found.cron, found.timezone, found.every, found.missed)
        message = {"body": msgspec.json.decode(self.body), "content_type": "application/json"}
        return (found.queue, there, found.message) == (self.queue, self.timetable, message)

    def wanted(self) -> dict[str, Any]:
        """The schedule to put; people decide whether it is paused."""
        return {"queue": self.queue, "message": Outgoing(json=self.body), **self.timetable._asdict()}


def put_schedules(client: Client, wanted: Iterable[TaskSchedule]) -> list[Schedule]:
    """Puts schedules that are not as wanted; returns all.

    A refused one does not keep others from being put; then the first refusal is raised.
    """
    found, refusals = [], list[ClientError]()
    for one in wanted:
        try:
            there = client.schedules.get(one.name)
        except NotFound:
            there = None
        if there is None or not one.stands(there):
            try:
                there = client.schedules.put(one.name, **one.wanted())
            except _REFUSALS as error:
                refusals.append(error)
                continue
        found.append(there)
    if refusals:
        raise refusals[0]
    return found


async def put_schedules_async(client: AsyncClient, wanted: Iterable[TaskSchedule]) -> list[Schedule]:
    """Async variant of :func:`put_schedules`."""
    found, refusals = [], list[ClientError]()
    for one in wanted:
        try:
            there = await client.schedules.get(one.name)
        except NotFound:
            there = None
        if there is None or not one.stands(there):
            try:
                there = await client.schedules.put(one.name, **one.wanted())
            except _REFUSALS as error:
                refusals.append(error)
                continue
        found.append(there)
    if refusals:
        raise refusals[0]
    return found


async def keep_schedules(client: AsyncClient, queues: Collection[str], wanted: list[TaskSchedule]) -> None:
    """Puts the schedules of a worker's tasks as soon as possible, and warns of those that no task has any more.

    A worker works without them: its messages do not depend on them.
    """
    failures = 0
    while True:
        try:
            await put_schedules_async(client, wanted)
            left = _left_over(await client.schedules.list(), queues, {one.name for one in wanted})
        except NotAllowed as error:
            if wanted:
                logger.warning(_NOT_ALLOWED, _names(wanted), error)
            return
        except ClientError as error:
            if not (error.temporary or isinstance(error, QueueNotFound)):
                logger.error("the schedules of tasks (%s) are not as the code says: %s", _names(wanted), error)  # noqa: TRY400 - says it all
                return
            failures += 1
            if wanted and failures == 1:
                logger.warning(
                    "the schedules of tasks (%s) are not put yet, and are tried again: %s", _names(wanted), error
                )
            await asyncio.sleep(PAUSES.pause(failures, uniform(0.5, 1.0)))  # noqa: S311 - spreads load
        else:
            for name in left:
                logger.warning(_LEFT_OVER, name, name)
            return


def _left_over(schedules: Iterable[Schedule], queues: Collection[str], wanted: set[str]) -> list[str]:
    ours = [one for one in schedules if one.queue in queues and one.name.startswith(_name(one.queue, ""))]
    return [one.name for one in ours if one.name not in wanted]


def _name(queue: str, task: str) -> str:
    return f"task:{queue}:{task}"


def _names(wanted: list[TaskSchedule]) -> str:
    return ", ".join(one.task for one in wanted) or "none"
