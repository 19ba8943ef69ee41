# Do not edit: python deploy/unasync.py writes this file from queuey/client/_async/resources.py.
"""Client objects for messages by name, schedules, and moves between queues."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Unpack

from msgspec import UNSET, UnsetType

from queuey.api.progress import Move
from queuey.client.calls import message_calls, send_calls, service_calls
from queuey.client.calls.call import Seconds, seconds
from queuey.client.calls.send_calls import Outgoing, SendOptions, ToSend
from queuey.client.errors import AnswerTimeout, NameNotFound
from queuey.client.http.attempts import within_of
from queuey.client.results import Message, Receipt, Schedule

if TYPE_CHECKING:
    from queuey.client._sync.job_results import JobResults
    from queuey.client._sync.sender import Sender


class NamedMessages:
    """The messages of a queue by name. A name stands for at most one message, the last one that was set.

    Get it from :meth:`Client.named <queuey.client.Client.named>`. Safe to use from several threads.

    Attributes:
        queue: The queue's name.

    Example:
        >>> from queuey.client import Client
        >>> with Client() as client:
        ...     queue = (client.create_queue()).name
        ...     named = client.named(queue)
        ...     _ = named.set("reindex", "since Monday")
        ...     _ = named.set("reindex", "since Sunday")
        ...     print((named.get("reindex")).body)
        ...     print([job.body for job in client.job_queue(queue).claim(idle=0)])
        ...     print(named.get("reindex"))
        ...     client.delete_queue(queue)
        since Sunday
        ['since Sunday']
        None
    """

    def __init__(self, queue: str, sender: Sender, jobs: JobResults) -> None:
        self.queue = queue
        self._sender = sender
        self._jobs = jobs

    def create(self, name: str, body: str | bytes | UnsetType = UNSET, **options: Unpack[SendOptions]) -> Receipt:
        """Stores a message under a free name. If an equal message already has the name, returns its receipt.

        The request is repeated if its answer is lost. If the message was acknowledged in between, it is stored again.

        Args:
            name: 1 to 255 characters without ``/``.
            body: Text or bytes. For a JSON value, pass ``json=`` instead.
            options: ``ttl``, ``headers`` and ``content_type`` of :class:`Outgoing`.

        Raises:
            NameTaken: Another message has the name and is not acknowledged.
        """
        call = send_calls.write_named("POST", self.queue, name, Outgoing(body, **options))
        [receipt] = self._jobs.bind(self.queue, [self._sender.run(call)])
        return receipt

    def set(self, name: str, body: str | bytes | UnsetType = UNSET, **options: Unpack[SendOptions]) -> Receipt:
        """Stores a message under a name and replaces the present one. The arguments are those of :meth:`create`.

        A worker that has claimed the old message gets :class:`~queuey.client.ClaimLost` when it acknowledges it. The
        request is repeated if its answer is lost, and may then replace a message that another program set in between.
        """
        call = send_calls.write_named("PUT", self.queue, name, Outgoing(body, **options))
        [receipt] = self._jobs.bind(self.queue, [self._sender.run(call)])
        return receipt

    def get(self, name: str) -> Message | None:
        """Returns the message with the name. Returns None if it does not exist or is acknowledged."""
        try:
            [message] = self._sender.run(message_calls.get_named(self.queue, name))
        except NameNotFound:
            return None
        return message

    def delete(self, name: str) -> None:
        """Deletes the message with the name, if it exists. Workers and lost answers: as for :meth:`set`."""
        self._sender.run(message_calls.delete_named(self.queue, name))


class Schedules:
    """The schedules of an application: messages that the service posts at certain times.

    Get it from :attr:`Client.schedules <queuey.client.Client.schedules>`. Safe to use from several threads.

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

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

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
        """Creates a schedule, or changes the given fields of an existing one.

        Args:
            name: 1 to 100 letters, digits and ``._:@-``, but not ``.`` or ``..``.
            queue: The queue to post to. Required for a new schedule.
            message: The body, or an :class:`~queuey.client.Outgoing` without a delay, of up to 16 KiB. Required for a
                new schedule.
            cron: Minute, hour, day of the month, month, day of the week. A new schedule needs ``cron`` or ``every``.
            timezone: Time zone of ``cron``, such as ``Europe/Berlin``. A new schedule has ``UTC``.
            every: Seconds between messages, at least 10.
            missed: ``skip`` or ``catch_up`` the instants at which no process of the service was running.
            paused: Post no messages until this is False again.

        Raises:
            InvalidRequest: A field is not valid or is missing; ``fields`` names it.
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
        return self._sender.run(service_calls.put_schedule(name, plan, message))

    def get(self, name: str) -> Schedule:
        """Returns a schedule.

        Raises:
            NotFound: The schedule does not exist, or the caller may not see it.
        """
        return self._sender.run(service_calls.show_schedule(name))

    def list(self) -> tuple[Schedule, ...]:
        """Lists the schedules that the caller may see, by name, without their messages."""
        schedules: list[Schedule] = []
        start: str | None = None
        while True:
            page = self._sender.run(service_calls.schedules(start))
            schedules += page.schedules
            if page.more is None:
                return tuple(schedules)
            start = page.more

    def pause(self, name: str) -> Schedule:
        """Pauses a schedule: it posts no messages until it is resumed."""
        return self.put(name, paused=True)

    def resume(self, name: str) -> Schedule:
        """Resumes a schedule from its next instant. It does not catch up on instants during the pause."""
        return self.put(name, paused=False)

    def run(self, name: str) -> Schedule:
        """Posts a schedule's message now, even if the schedule is paused. The result's ``last`` says what happened.

        The request is not repeated if its answer is lost, because it would post the message twice.
        """
        return self._sender.run(service_calls.run_schedule(name))

    def delete(self, name: str) -> None:
        """Deletes a schedule. May raise ``NotFound`` if the first answer was lost and the request was repeated."""
        self._sender.run(service_calls.delete_schedule(name))


MIN_PAUSE, MAX_PAUSE = 0.05, 1.0
"""Min and max seconds between two requests for the progress of a move."""


class Moving:
    """A move of messages from one queue to another. The service continues it without this program.

    Example:
        >>> from queuey.client import Client
        >>> with Client() as client:
        ...     _ = client.create_queue("old-orders")
        ...     moving = client.move("orders", "old-orders")
        ...     move = moving.wait()
        ...     print(move.state, move.moved)
        done 2

    Attributes:
        id: The id of the move. ``client.moving(id)`` returns the move in any program.
    """

    def __init__(self, identifier: str, sender: Sender) -> None:
        self.id = identifier
        self._sender = sender

    def show(self) -> Move:
        """Returns the progress of the move."""
        return self._sender.run(service_calls.show_move(self.id))

    def cancel(self) -> Move:
        """Cancels the move; it ends soon. Moved messages stay in the target. An ended move does not change."""
        return self._sender.run(service_calls.cancel_move(self.id))

    def wait(self, timeout: Seconds | None = None, *, told: Callable[[Move], object] | None = None) -> Move:
        """Waits until the move has ended and returns it. Its state is ``done``, ``cancelled`` or ``failed``.

        Args:
            timeout: Max seconds to wait. Unlimited by default.
            told: Called with the progress, at first more often, then about once a second, and with the ended move.

        Raises:
            AnswerTimeout: The move has not ended in time. It continues.
        """
        clock = self._sender.timing.clock
        end = inf if timeout is None else clock() + seconds(timeout)
        pause = MIN_PAUSE
        while True:
            move = self._sender.run(service_calls.show_move(self.id), within_of(end - clock()))
            if told is not None:
                told(move)
            if move.ended is not None:
                return move
            now = clock()
            if now >= end:
                raise AnswerTimeout(f"move {self.id} has not ended in time; it continues")
            self._sender.timing.sleep(min(pause, end - now))
            pause = min(2 * pause, MAX_PAUSE)
