"""What a client has objects for: the messages of a queue by name, the schedules, a move between queues."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Unpack

from msgspec import UNSET, UnsetType

from queuey.api.progress import Move
from queuey.client.calls import message_calls, send_calls, service_calls
from queuey.client.calls.call import Seconds, seconds
from queuey.client.calls.send_calls import Outgoing, SendOptions, ToSend
from queuey.client.errors import AnswerTimeout, NameNotFound
from queuey.client.results import Message, Receipt, Schedule

if TYPE_CHECKING:
    from queuey.client._sync.job_results import JobResults
    from queuey.client._sync.sender import Sender


class NamedMessages:
    """The messages of a queue by name: a name stands for one message at most, the newest that was set.

    Made by :meth:`Client.named <queuey.client.Client.named>`. Safe to use from several threads.

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
        """Stores a message under a name that is free. If the same message has it, returns that one's receipt.

        If the answer was lost, this is sent again. If the message was acknowledged in between, it is stored again.

        Args:
            name: 1 to 255 characters without ``/``.
            body: Text or bytes; or give any JSON value as ``json=``.
            options: ``ttl``, ``headers`` and ``content_type`` of :class:`Outgoing`.

        Raises:
            NameTaken: Another message has it, and is not acknowledged.
        """
        call = send_calls.write_named("POST", self.queue, name, Outgoing(body, **options))
        [receipt] = self._jobs.bound(self.queue, [self._sender.run(call)])
        return receipt

    def set(self, name: str, body: str | bytes | UnsetType = UNSET, **options: Unpack[SendOptions]) -> Receipt:
        """Stores a message under a name, in place of the present one. The arguments are those of :meth:`create`.

        A worker that has claimed the old message gets :class:`~queuey.client.ClaimLost` when it acknowledges it. If the
        answer was lost, this is sent again, and may replace a message that another program has set in between.
        """
        call = send_calls.write_named("PUT", self.queue, name, Outgoing(body, **options))
        [receipt] = self._jobs.bound(self.queue, [self._sender.run(call)])
        return receipt

    def get(self, name: str) -> Message | None:
        """Returns the message that has the name; None: there is none, or it is acknowledged."""
        try:
            [message] = self._sender.run(message_calls.get_named(self.queue, name))
        except NameNotFound:
            return None
        return message

    def delete(self, name: str) -> None:
        """Deletes the message that has the name, whether or not there is one; otherwise as :meth:`set`."""
        self._sender.run(message_calls.delete_named(self.queue, name))


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
        return self._sender.run(service_calls.put_schedule(name, plan, message))

    def get(self, name: str) -> Schedule:
        """Returns a schedule.

        Raises:
            NotFound: There is none of that name that the caller may see.
        """
        return self._sender.run(service_calls.show_schedule(name))

    def list(self) -> tuple[Schedule, ...]:
        """Lists the schedules that the caller may see, by name, without their messages."""
        found: list[Schedule] = []
        start: str | None = None
        while True:
            page = self._sender.run(service_calls.schedules(start))
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
        return self._sender.run(service_calls.run_schedule(name))

    def delete(self, name: str) -> None:
        """Deletes a schedule. If the answer was lost and this is sent again, it may raise ``NotFound``."""
        self._sender.run(service_calls.delete_schedule(name))


FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Min and max seconds between two requests that ask for the progress."""


class Moving:
    """A move of messages from one queue to another. It goes on without this program.

    Example:
        >>> from queuey.client import Client
        >>> with Client() as client:
        ...     _ = client.create_queue("old-orders")
        ...     moving = client.move("orders", "old-orders")
        ...     move = moving.wait()
        ...     print(move.state, move.moved)
        done 2

    Attributes:
        id: Identifies the move: ``client.moving(id)`` returns this object again, in any program.
    """

    def __init__(self, identifier: str, sender: Sender) -> None:
        self.id = identifier
        self._sender = sender

    def show(self) -> Move:
        """Returns the progress of the move."""
        return self._sender.run(service_calls.show_move(self.id))

    def cancel(self) -> Move:
        """Ends the move soon; messages that have been moved stay in the target. An ended move stays as it is."""
        return self._sender.run(service_calls.cancel_move(self.id))

    def wait(self, timeout: Seconds | None = None, *, told: Callable[[Move], object] | None = None) -> Move:
        """Waits for the end and returns the move, whose state is ``done``, ``cancelled`` or ``failed`` then.

        Args:
            timeout: Max seconds to wait; None: as long as it takes.
            told: Called with the progress, about once a second.

        Raises:
            AnswerTimeout: It has not ended in time, and goes on.
        """
        clock = self._sender.timing.clock
        end = None if timeout is None else clock() + seconds(timeout)
        pause = FIRST_PAUSE
        while True:
            move = self.show()
            if told is not None:
                told(move)
            if move.ended is not None:
                return move
            now = clock()
            if end is not None and now >= end:
                raise AnswerTimeout(f"move {self.id} has not ended in time; it goes on")
            self._sender.timing.sleep(pause if end is None else min(pause, end - now))
            pause = min(2 * pause, LONGEST_PAUSE)
