"""An application's schedules."""

from __future__ import annotations

from datetime import timedelta

from queuey.client._async.send_call import AsyncSendCall
from queuey.client.calls import schedule_calls
from queuey.client.calls.call import seconds
from queuey.client.calls.send_calls import ToSend
from queuey.client.results import Schedule


class AsyncSchedules:
    """The schedules of an application: messages that the service posts at certain times.

    It is :attr:`AsyncClient.schedules <queuey.client.AsyncClient.schedules>`. For async code, in one event loop.

    Example:
        >>> import asyncio
        >>> from queuey.client import AsyncClient
        >>> async def main():
        ...     async with AsyncClient() as client:
        ...         schedules, cron = client.schedules, "30 8 * * *"
        ...         _ = await schedules.put("report", queue="orders", message="new", cron=cron, timezone="Asia/Tokyo")
        ...         print((await schedules.pause("report")).next)
        ...         print(len((await schedules.resume("report")).next))
        ...         print((await schedules.run("report")).last.state)
        ...         print([schedule.name for schedule in await schedules.list()])
        ...         await schedules.delete("report")
        >>> asyncio.run(main())
        ()
        5
        published
        ['report']
    """

    def __init__(self, send: AsyncSendCall) -> None:
        self._send = send

    async def put(
        self,
        name: str,
        *,
        queue: str | None = None,
        message: ToSend | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        every: int | timedelta | None = None,
        missed: str | None = None,
        paused: bool | None = None,
    ) -> Schedule:
        """Creates a schedule, or changes the given fields of one.

        Args:
            name: 1 to 100 letters, digits and ``._:@-``, but not ``.`` or ``..``.
            queue: The queue of its messages. Required for a new one.
            message: The body, or an :class:`~queuey.client.Outgoing` without a delay, of up to 16 KiB. Required for a
                new one.
            cron: Minute, hour, day of the month, month, day of the week. A new one needs this or ``every``.
            timezone: Of ``cron``, such as ``Europe/Berlin``; at first ``UTC``.
            every: Seconds, at least 10.
            missed: ``skip`` or ``catch_up``: for instants at which no process of the service ran.
            paused: Post nothing until this is False again.

        Raises:
            InvalidRequest: Something is not valid, or is required; ``fields`` names it.
            NotAllowed: The credential lacks ``admin``, or ``send`` for the queue.
        """
        plan = {
            "queue": queue,
            "cron": cron,
            "timezone": timezone,
            "every": seconds(every),
            "missed": missed,
            "paused": paused,
        }
        return await self._send(schedule_calls.put(name, plan, message))

    async def get(self, name: str) -> Schedule:
        """Returns a schedule.

        Raises:
            NotFound: There is none of that name that the caller may see.
        """
        return await self._send(schedule_calls.show(name))

    async def list(self) -> tuple[Schedule, ...]:
        """Lists the schedules that the caller may see, by name, without their messages."""
        found: list[Schedule] = []
        start: str | None = None
        while True:
            page = await self._send(schedule_calls.page(start))
            found += page.schedules
            if page.more is None:
                return tuple(found)
            start = page.more

    async def pause(self, name: str) -> Schedule:
        """Pauses a schedule: it posts nothing until it is resumed."""
        return await self.put(name, paused=True)

    async def resume(self, name: str) -> Schedule:
        """Resumes a schedule with its next instant. The instants during the pause are not made up for."""
        return await self.put(name, paused=False)

    async def run(self, name: str) -> Schedule:
        """Posts a schedule's message now, also if it is paused; ``last`` is the result.

        If the answer is lost, this is not sent again, because it would post another one.
        """
        return await self._send(schedule_calls.run(name))

    async def delete(self, name: str) -> None:
        """Deletes a schedule. If the answer was lost and this is sent again, it may raise ``NotFound``."""
        await self._send(schedule_calls.delete(name))
