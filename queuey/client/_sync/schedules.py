"""An application's schedules."""

from __future__ import annotations

from datetime import timedelta

from queuey.client._sync.send_call import SendCall
from queuey.client.calls import schedule_calls
from queuey.client.calls.call import seconds
from queuey.client.calls.send_calls import ToSend
from queuey.client.results import Schedule


class Schedules:
    """The schedules of an application: messages that the service posts at certain times.

    It is :attr:`Client.schedules <queuey.client.Client.schedules>`. Safe to use from several threads.

    Example:
        >>> from queuey.client import Client
        >>> with Client() as client:
        ...     schedules, cron = client.schedules, "30 8 * * *"
        ...     _ = schedules.put("report", queue="orders", message="new", cron=cron, timezone="Asia/Tokyo")
        ...     print((schedules.pause("report")).next)
        ...     print(len((schedules.resume("report")).next))
        ...     print((schedules.run("report")).last.state)
        ...     print([schedule.name for schedule in schedules.list()])
        ...     schedules.delete("report")
        ()
        5
        published
        ['report']
    """

    def __init__(self, send: SendCall) -> None:
        self._send = send

    def put(
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
        return self._send(schedule_calls.put(name, plan, message))

    def get(self, name: str) -> Schedule:
        """Returns a schedule.

        Raises:
            NotFound: There is none of that name that the caller may see.
        """
        return self._send(schedule_calls.show(name))

    def list(self) -> tuple[Schedule, ...]:
        """Lists the schedules that the caller may see, by name, without their messages."""
        found: list[Schedule] = []
        start: str | None = None
        while True:
            page = self._send(schedule_calls.page(start))
            found += page.schedules
            if page.more is None:
                return tuple(found)
            start = page.more

    def pause(self, name: str) -> Schedule:
        """Pauses a schedule: it posts nothing until it is resumed."""
        return self.put(name, paused=True)

    def resume(self, name: str) -> Schedule:
        """Resumes a schedule with its next instant. The instants during the pause are not made up for."""
        return self.put(name, paused=False)

    def run(self, name: str) -> Schedule:
        """Posts a schedule's message now, also if it is paused; ``last`` is the result.

        If the answer is lost, this is not sent again, because it would post another one.
        """
        return self._send(schedule_calls.run(name))

    def delete(self, name: str) -> None:
        """Deletes a schedule. If the answer was lost and this is sent again, it may raise ``NotFound``."""
        self._send(schedule_calls.delete(name))
