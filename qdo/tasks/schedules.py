"""Schedules of tasks: checks the timetables in the code, and puts them into the service."""

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
from qdo.worker.rights import RETRY_PAUSES
from queuey.client import ClientError, InvalidRequest, NotAllowed, NotFound, Outgoing, QueueNotFound
from queuey.client.calls.service_calls import SCHEDULE_NAME

if TYPE_CHECKING:
    from queuey.client import AsyncClient, Client, Schedule

logger = logging.getLogger("qdo.worker")

CRON_FIELDS = 5
MIN_INTERVAL = 10
"""Min value of ``every``, in seconds."""
_REFUSALS = (InvalidRequest, NotAllowed, QueueNotFound)
"""Refusals that concern a single schedule, so that others may still be put."""
_NOT_ALLOWED = (
    "the credential may not change the schedules of tasks (%s), so they are unchanged. "
    "Call jobs.put_schedules() with one that has admin and send for their queues: %s"
)
_LEFT_OVER = (
    "schedule %s calls a task that has neither cron nor every here. If no other program uses it, delete it: "
    "queuey schedule delete %s"
)


class TaskTimetable(NamedTuple):
    """The times at which the service calls a task.

    Attributes:
        cron: Minute, hour, day of the month, month, day of the week. None with ``every``.
        timezone: The time zone of ``cron``.
        every: The interval in seconds. None with ``cron``.
        missed: What happens to times at which no process of the service ran: ``skip`` or ``catch_up``.
    """

    cron: str | None
    timezone: str | None
    every: int | None
    missed: str


def make_timetable(
    task: str, cron: str | None, timezone: str | None, every: timedelta | float | None, missed: str | None
) -> TaskTimetable | None:
    """Returns a timetable, in UTC by default, or None without ``cron`` and ``every``.

    Raises InvalidArgument for options that are not valid together.
    """
    if cron is None and every is None:
        if timezone is not None or missed is not None:
            raise InvalidArgument(f"task {task} has neither cron nor every, so leave out timezone and missed")
        return None
    if cron is not None and (every is not None or len(cron.split()) != CRON_FIELDS):
        raise InvalidArgument(
            f"task {task} has cron={cron!r} and every={every}: use one; cron has {CRON_FIELDS} fields"
        )
    seconds = every.total_seconds() if isinstance(every, timedelta) else every
    is_whole = isinstance(seconds, int | float) and seconds >= MIN_INTERVAL and float(seconds).is_integer()
    if seconds is not None and (not is_whole or timezone is not None):
        raise InvalidArgument(
            f"every of task {task} is {every!r}: use whole seconds, at least {MIN_INTERVAL}, and no timezone"
        )
    if missed not in {None, "skip", "catch_up"}:
        raise InvalidArgument(f"missed of task {task} is {missed!r}: use 'skip' or 'catch_up'")
    if seconds is not None:
        return TaskTimetable(None, None, int(seconds), missed or "skip")
    return TaskTimetable(" ".join((cron or "").split()), timezone or "UTC", None, missed or "skip")


def check_scheduled(function: Callable[..., Any], task: str, queue: str) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InvalidArgument(f"task {task} has a timetable, so it is called without arguments: {error}") from error
    if SCHEDULE_NAME.fullmatch(_make_name(queue, task)) is None:
        text = "use up to 100 letters, digits and ._:@-"
        raise InvalidArgument(f"the schedule of task {task} cannot be named {_make_name(queue, task)!r}: {text}")


class TaskSchedule(NamedTuple):
    """The schedule of a task, as specified in the code."""

    task: str
    queue: str
    timetable: TaskTimetable
    body: msgspec.Raw

    @property
    def name(self) -> str:
        return _make_name(self.queue, self.task)

    def matches(self, schedule: Schedule) -> bool:
        timetable = TaskTimetable(schedule.cron, schedule.timezone, schedule.every, schedule.missed)
        message = {"body": msgspec.json.decode(self.body), "content_type": "application/json"}
        return (schedule.queue, timetable, schedule.message) == (self.queue, self.timetable, message)

    def fields(self) -> dict[str, Any]:
        return {"queue": self.queue, "message": Outgoing(json=self.body), **self.timetable._asdict()}


def put_schedules(client: Client, tasks: Iterable[TaskSchedule]) -> list[Schedule]:
    """Puts the schedules that differ from the service's, and returns all.

    If some are refused, puts the others and then raises the first refusal.
    """
    schedules, refusals = [], list[ClientError]()
    for task in tasks:
        try:
            schedule = client.schedules.get(task.name)
        except NotFound:
            schedule = None
        if schedule is None or not task.matches(schedule):
            try:
                schedule = client.schedules.put(task.name, **task.fields())
            except _REFUSALS as error:
                refusals.append(error)
                continue
        schedules.append(schedule)
    if refusals:
        raise refusals[0]
    return schedules


async def put_schedules_async(client: AsyncClient, tasks: Iterable[TaskSchedule]) -> list[Schedule]:
    schedules, refusals = [], list[ClientError]()
    for task in tasks:
        try:
            schedule = await client.schedules.get(task.name)
        except NotFound:
            schedule = None
        if schedule is None or not task.matches(schedule):
            try:
                schedule = await client.schedules.put(task.name, **task.fields())
            except _REFUSALS as error:
                refusals.append(error)
                continue
        schedules.append(schedule)
    if refusals:
        raise refusals[0]
    return schedules


async def keep_schedules(client: AsyncClient, queues: Collection[str], tasks: list[TaskSchedule]) -> None:
    """Puts the schedules of a worker's tasks, with retries, and warns of schedules that no task has any more.

    Runs in the background, because the worker's messages do not depend on it. Logs a refusal and gives up then.
    """
    failures = 0
    while True:
        try:
            await put_schedules_async(client, tasks)
            left_over = _find_left_over(await client.schedules.list(), queues, {task.name for task in tasks})
        except NotAllowed as error:
            if tasks:
                logger.warning(_NOT_ALLOWED, _format_tasks(tasks), error)
            return
        except ClientError as error:
            if not (error.temporary or isinstance(error, QueueNotFound)):
                logger.error("the schedules of tasks (%s) could not be put: %s", _format_tasks(tasks), error)  # noqa: TRY400 - the message is enough
                return
            failures += 1
            if tasks and failures == 1:
                logger.warning(
                    "the schedules of tasks (%s) could not be put yet, retrying: %s", _format_tasks(tasks), error
                )
            await asyncio.sleep(RETRY_PAUSES.pause(failures, uniform(0.5, 1.0)))  # noqa: S311 - spreads load
        else:
            for name in left_over:
                logger.warning(_LEFT_OVER, name, name)
            return


def _find_left_over(schedules: Iterable[Schedule], queues: Collection[str], names: set[str]) -> list[str]:
    ours = [s for s in schedules if s.queue in queues and s.name.startswith(_make_name(s.queue, ""))]
    return [schedule.name for schedule in ours if schedule.name not in names]


def _make_name(queue: str, task: str) -> str:
    return f"task:{queue}:{task}"


def _format_tasks(schedules: list[TaskSchedule]) -> str:
    return ", ".join(schedule.task for schedule in schedules) or "none"
