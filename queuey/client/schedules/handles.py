"""An application's schedules, for threads and for async code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from queuey.client.calls import schedule_calls
from queuey.client.calls.call import Call
from queuey.client.calls.send_calls import ToSend
from queuey.client.claims.async_jobs import AsyncRun
from queuey.client.schedules.results import Schedule

T = TypeVar("T")


class Schedules:
    """The schedules of an application: messages that the service posts at certain times.

    It is ``schedules`` of a ``Client``. Safe to use from several threads.

    Example:
        >>> schedules = client.schedules
        >>> _ = schedules.put("report", queue="orders", message="report", cron="30 8 * * *", timezone="Asia/Tokyo")
        >>> schedules.pause("report").next
        ()
        >>> len(schedules.resume("report").next)
        5
        >>> schedules.run("report").last.state
        'published'
        >>> [schedule.name for schedule in schedules.list()]
        ['report']
        >>> schedules.delete("report")
    """

    def __init__(self, run: Callable[[Call[Any]], Any]) -> None:
        self._run = run

    def put(
        self,
        name: str,
        *,
        queue: str | None = None,
        message: ToSend | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        every: int | None = None,
        missed: str | None = None,
        paused: bool | None = None,
    ) -> Schedule:
        """Makes a schedule, or changes what is given of one.

        Args:
            name: 1 to 100 letters, digits and ``._:@-``, but not ``.`` or ``..``.
            queue: Where its messages go. Required for a new one.
            message: The body, or an :class:`Outgoing` without a delay, of up to 16 KiB. Required for a new one.
            cron: Minute, hour, day of the month, month, day of the week. A new one needs this or ``every``.
            timezone: Of ``cron``, such as ``Europe/Berlin``; at first ``UTC``.
            every: Seconds, at least 10.
            missed: What is done about ticks that no process of the service was there for: ``skip`` or ``catch_up``.
            paused: Post nothing until this is False again.

        Raises:
            InvalidRequest: Something is not valid, or is required; ``fields`` says what.
            NotAllowed: It takes ``admin`` and ``send`` for the queue.
        """
        plan = {"queue": queue, "cron": cron, "timezone": timezone, "every": every, "missed": missed, "paused": paused}
        found: Schedule = self._run(schedule_calls.put(name, plan, message))
        return found

    def get(self, name: str) -> Schedule:
        """Returns how a schedule stands.

        Raises:
            NotFound: There is none of that name that the caller may see.
        """
        found: Schedule = self._run(schedule_calls.show(name))
        return found

    def list(self) -> tuple[Schedule, ...]:
        """Lists the schedules that the caller may see, by name, without their messages."""
        found: list[Schedule] = []
        start: str | None = None
        while True:
            page = self._run(schedule_calls.page(start))
            found += page.schedules
            if page.more is None:
                return tuple(found)
            start = page.more

    def pause(self, name: str) -> Schedule:
        """Has a schedule post nothing until it is resumed."""
        return self.put(name, paused=True)

    def resume(self, name: str) -> Schedule:
        """Has a schedule go on with its next instant. What came while it was paused is not made up for."""
        return self.put(name, paused=False)

    def run(self, name: str) -> Schedule:
        """Posts a schedule's message now, also if it is paused; ``last`` says what became of that.

        If the answer is lost, this is not sent again, because it would post another one.
        """
        found: Schedule = self._run(schedule_calls.run(name))
        return found

    def delete(self, name: str) -> None:
        """Removes a schedule. If the answer was lost and this is sent again, it may raise ``NotFound``."""
        self._run(schedule_calls.delete(name))


class AsyncSchedules:
    """Is :class:`Schedules` for async code.

    Example:
        >>> import asyncio
        >>> from queuey.client import AsyncClient
        >>> async def main() -> str:
        ...     async with AsyncClient() as client:
        ...         await client.schedules.put("tidy", queue="orders", message="tidy up", every=3600)
        ...         found = await client.schedules.run("tidy")
        ...         await client.schedules.delete("tidy")
        ...         return found.last.state
        >>> asyncio.run(main())
        'published'
    """

    def __init__(self, run: AsyncRun) -> None:
        self._run = run

    async def put(
        self,
        name: str,
        *,
        queue: str | None = None,
        message: ToSend | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        every: int | None = None,
        missed: str | None = None,
        paused: bool | None = None,
    ) -> Schedule:
        """Makes a schedule, or changes what is given of one; see :meth:`Schedules.put`."""
        plan = {"queue": queue, "cron": cron, "timezone": timezone, "every": every, "missed": missed, "paused": paused}
        return await self._run(schedule_calls.put(name, plan, message))

    async def get(self, name: str) -> Schedule:
        """Returns how a schedule stands; see :meth:`Schedules.get`."""
        return await self._run(schedule_calls.show(name))

    async def list(self) -> tuple[Schedule, ...]:
        """Lists schedules; see :meth:`Schedules.list`."""
        found: list[Schedule] = []
        start: str | None = None
        while True:
            page = await self._run(schedule_calls.page(start))
            found += page.schedules
            if page.more is None:
                return tuple(found)
            start = page.more

    async def pause(self, name: str) -> Schedule:
        """Has a schedule post nothing; see :meth:`Schedules.pause`."""
        return await self.put(name, paused=True)

    async def resume(self, name: str) -> Schedule:
        """Has a schedule go on; see :meth:`Schedules.resume`."""
        return await self.put(name, paused=False)

    async def run(self, name: str) -> Schedule:
        """Posts a schedule's message now; see :meth:`Schedules.run`."""
        return await self._run(schedule_calls.run(name))

    async def delete(self, name: str) -> None:
        """Removes a schedule; see :meth:`Schedules.delete`."""
        await self._run(schedule_calls.delete(name))
