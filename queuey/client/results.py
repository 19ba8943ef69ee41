"""Results of the client's calls: frozen, typed, with the names of the API's JSON when encoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from inspect import iscoroutinefunction
from typing import Annotated, Any

import msgspec

from queuey.api.jobs import JobInfo
from queuey.api.messages import PostedMessage
from queuey.api.schedules import ListedSchedule
from queuey.api.values import Id
from queuey.client.errors import ApiError, ClientError, InvalidArgument
from queuey.deadletters import Attempt
from queuey.ids import order_of, time_of
from queuey.messages import ChosenOptions
from queuey.titles import instant, titled


class Receipt(PostedMessage, frozen=True, dict=True):
    """The answer to a stored message, and a way to ask what became of it as a job.

    Two receipts of one message are equal. One that was pickled or copied does not know its client any more.

    Example:
        >>> receipt = client.send("orders", "two pears")
        >>> receipt.partition, len(receipt.id)
        (1, 32)

    Attributes:
        id: 32 lower-case hex digits, unique in the partition.
        timestamp: The id's time, seconds since 1970 with seven decimals, exactly as the server wrote it.
        partition: 1 to the queue's count.
    """

    @property
    def time(self) -> datetime:
        """The id's time in UTC, cut to microseconds."""
        return time_of(self.id)

    @property
    def ticks(self) -> int:
        """The id's time in 100 ns steps since 1582-10-15, exactly."""
        return order_of(self.id)[0]

    def status(self) -> JobInfo:
        """Returns what became of the job: whether it waits, is claimed, done, failed, and so on."""
        source, queue = self._source("status")
        info: JobInfo = source.show(queue, self)
        return info

    def state(self) -> Any:  # noqa: ANN401 - any JSON value
        """Returns the last state that a worker has set for the job, None if no worker has."""
        source, queue = self._source("state")
        return source.show(queue, self, states=True).state

    def result(self, timeout: float | timedelta | None = None) -> Any:  # noqa: ANN401 - any JSON value
        """Waits until the job has ended, and returns the result of the attempt that was acknowledged.

        Callers that wait at the same moment share a request. Its queue must have a ``result_ttl``.

        Args:
            timeout: Seconds; without it there is no limit.

        Raises:
            ResultTimeout: It has not ended in time.
            JobFailed: It is a dead letter.
            JobGone: It expired, was removed or superseded.
            ResultTooLarge: It is done, and its result was too large to be kept.
            ResultUnknown: Its result is not known, or not any more.

        Example:
            >>> receipt = client.send("orders", "two pears")
            >>> try:
            ...     receipt.result(timeout=0)
            ... except TimeoutError:
            ...     print(receipt.status().status)
            waiting
        """
        source, queue = self._source("result")
        return source.result(queue, self, timeout)

    async def astatus(self) -> JobInfo:
        """Async variant of :meth:`status`, for receipts of an async client."""
        source, queue = self._source("astatus")
        info: JobInfo = await source.show(queue, self)
        return info

    async def astate(self) -> Any:  # noqa: ANN401 - any JSON value
        """Async variant of :meth:`state`."""
        source, queue = self._source("astate")
        return (await source.show(queue, self, states=True)).state

    async def aresult(self, timeout: float | timedelta | None = None) -> Any:  # noqa: ANN401, ASYNC109 - any JSON value; part of the API
        """Async variant of :meth:`result`."""
        source, queue = self._source("aresult")
        return await source.result(queue, self, timeout)

    def _source(self, method: str) -> tuple[Any, str]:
        """Returns what asks for the job, and its queue.

        Raises:
            InvalidArgument: The receipt has no client, or one of the other kind.
        """
        source: tuple[Any, str] | None = self.__dict__.get("source")
        if source is None:
            raise InvalidArgument("this receipt has no client: use client.job_queue(queue).status(receipt)")
        is_async = iscoroutinefunction(source[0].show)
        if is_async != method.startswith("a"):
            kind, other = ("an AsyncClient", f"a{method}") if is_async else ("a Client", method[1:])
            raise InvalidArgument(f"this receipt is of {kind}: call {other}()")
        return source


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message of a queue.

    The garbage collector does not track messages, which makes reading them a third faster. If you put an object into a
    body that refers to the message, neither is ever freed.

    Example:
        >>> message = client.read("orders").messages[0]
        >>> message.body, message.partition
        ('one apple', 1)

    Attributes:
        id: 32 lower-case hex digits, unique in the partition.
        timestamp: The id's time, seconds since 1970 with seven decimals, exactly as the server wrote it.
        partition: 1 to the queue's count.
        body: ``str`` for text, ``bytes`` for anything else, or the value of a body that was sent as JSON.
        content_type: As given by the producer; None if it gave none.
        headers: As given by the producer, names in lower case.
        key: The key that the producer gave, in an ordered queue or one with ``max_claimed_per_key``; else None.
        early: It lies above the horizon: it is stored, but may vanish yet, and others may come below it.
    """

    id: str = msgspec.field(name="message_id")
    timestamp: str
    partition: int
    body: Any
    content_type: str | None = None
    headers: Mapping[str, str] = {}
    key: str | None = None
    early: bool = False

    @property
    def time(self) -> datetime:
        """The id's time in UTC, cut to microseconds."""
        return time_of(self.id)

    @property
    def ticks(self) -> int:
        """The id's time in 100 ns steps since 1582-10-15, exactly."""
        return order_of(self.id)[0]


class StreamedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message of a stream.

    Example:
        >>> streamed = next(client.stream("orders", since=0))
        >>> streamed.queue, streamed.message.body
        ('orders', 'one apple')

    Attributes:
        queue: Its queue's name.
        message: The message.
        cursor: Where another stream of the same queues goes on after it.
    """

    queue: str
    message: Message
    cursor: str


class RawMessage(msgspec.Struct, frozen=True):
    """A message with its body as bytes. Fields as in :class:`Message`.

    Example:
        >>> receipt = client.send("orders", b"JPEG", content_type="image/jpeg")
        >>> raw = client.get_raw("orders", receipt)
        >>> raw.body, raw.content_type
        (b'JPEG', 'image/jpeg')
    """

    id: str
    timestamp: str
    partition: int
    body: bytes
    content_type: str
    headers: Mapping[str, str] = {}


class Page(msgspec.Struct, frozen=True):
    """The result of one read.

    Example:
        >>> page = client.read("orders", limit=1)
        >>> page.messages[0].body, page.more
        ('one apple', True)
        >>> client.read("orders", since=page.cursor).messages[0].body
        'two eggs'

    Attributes:
        messages: In the order asked for; early ones are the last.
        horizon: An id; nothing at or above it was read, but for early messages.
        next: Per partition, the ``since`` of the next read in the same order; None: a descending read is complete.
        cursor: The position as one text, to be kept; empty when every partition is complete.
        more: Another read now may return messages.
        cursor_safe: False after ``delay=0``: a read that continues from this cursor may miss messages.
    """

    messages: tuple[Message, ...]
    horizon: str
    next: Mapping[int, str | None]
    cursor: str
    more: bool
    cursor_safe: bool = True


class QueueRead(msgspec.Struct, frozen=True):
    """The result of a read of several queues for one of them: a page, or the error.

    Example:
        >>> for part in client.read_queues(["orders", "nothing"]):
        ...     print(part.queue, len(part.page.messages) if part.page else part.error.status)
        orders 2
        nothing 404
    """

    queue: str
    page: Page | None = None
    error: ApiError | None = None


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """Unread messages of a queue, or the error of one that cannot be read.

    Example:
        >>> for part in client.unread(["orders", "nothing"]):
        ...     print(part.queue, part.unread, part.error.status if part.error else None)
        orders 2 None
        nothing None 404

    Attributes:
        read: Per partition the id of the last message that counts as read.
        unread: Messages above; None: not counted, because the call had counted as much as it may. Ask again for these.
        more: There are more than ``unread``.
    """

    queue: str
    read: dict[int, Id] = {}
    unread: int | None = None
    more: bool = False
    error: ApiError | None = None


class Queue(ChosenOptions, frozen=True, kw_only=True):
    """A queue as the server describes it.

    Example:
        >>> queue = client.update_queue("orders", ttl=3600)
        >>> queue.name, queue.partitions, queue.ttl
        ('orders', 1, 3600)

    Attributes:
        partitions, type, consistency, ttl, read_delay, max_deliveries, backoff: As in
            :class:`~queuey.client.QueueFields`.
        dead_letter, on_ack, on_expiry, kind, max_claimed, max_claimed_per_key, claims, result_ttl,
        description: As in
            :class:`~queuey.client.QueueFields`.
        principals: Callers that may read and delete.
        created: Seconds since 1970; None in the answer to a create.
        application: Only in listings.
        count: Messages, in listings that asked for them.
    """

    name: Annotated[str, titled("queue")] = msgspec.field(name="queue_name")
    principals: tuple[str, ...] = ()
    created: Annotated[float | None, titled(unit=instant)] = None
    application: str | None = None
    count: Annotated[int | None, titled("messages")] = None


class CreatedQueue(Queue, frozen=True, kw_only=True):
    """The answer to a create. ``new`` is False if the queue existed with the same fields.

    Example:
        >>> client.create_queue("orders", partitions=1).new
        False
    """

    new: bool


class QueuePage(msgspec.Struct, frozen=True):
    """One page of the list of queues; ``next`` is the ``start`` of the next one, None at the end.

    Example:
        >>> [queue.name for queue in client.queue_page(limit=10).queues]
        ['orders']

    Attributes:
        patterns: Those of the credential, in which ``*`` stands for any text: the list has only queues that match one
            of them. None: an older service does not say.
    """

    queues: tuple[Queue, ...]
    next: str | None
    patterns: tuple[str, ...] | None = None

    def lists_all(self, prefix: str = "") -> bool:
        """Returns whether the list has every queue whose name begins like this; so assumed of an older service."""
        return self.patterns is None or any(
            pattern.endswith("*") and "*" not in (begin := pattern[:-1]) and prefix.startswith(begin)
            for pattern in self.patterns
        )


class NamePage(msgspec.Struct, frozen=True):
    """One page of the list of queue names; ``next`` is the ``start`` of the next one, None at the end.

    Example:
        >>> client.name_page(limit=10).names
        ('orders',)
    """

    names: tuple[str, ...]
    next: str | None


class Claimed(msgspec.Struct, frozen=True):
    """A message that is claimed by this caller alone, until ``expires``.

    Example:
        >>> (claimed,) = client.job_queue("orders").receive(1)
        >>> claimed.message.body, claimed.deliveries
        ('one apple', 1)

    Attributes:
        message: The message.
        receipt: Identifies this claim; acknowledge, renew or release the message with it.
        deliveries: Number of deliveries of the message, including this one.
        expires: Seconds since 1970, by the server's clock. Then another caller may get the message.
        queue: The message's queue.
        state: The last state that a worker has set for an earlier delivery; None if there is no such state.
        result_ttl: Seconds for which the queue keeps results of jobs; 0: it keeps none.
    """

    message: Message
    receipt: str
    deliveries: int
    expires: float
    queue: str = ""
    state: Any = None
    result_ttl: int = 0


class Refused(msgspec.Struct, frozen=True):
    """A receipt that a call refused.

    Example:
        >>> jobs = client.job_queue("orders")
        >>> (first,) = jobs.receive(1)
        >>> released = jobs.release(first)
        >>> again = jobs.receive(10)
        >>> [refused.status for refused in jobs.ack(first)]
        ['superseded']

    Attributes:
        receipt: The receipt.
        status: The reason: ``superseded``, the claim had expired and the message was delivered to another caller,
            became a dead letter or was moved, or a newer message has its name.
    """

    receipt: str
    status: str


class Received(list[Claimed]):
    """Claimed messages, as a list.

    Example:
        >>> jobs = client.job_queue("orders")
        >>> first = jobs.receive(1)
        >>> second = jobs.receive(1, acknowledge=first)
        >>> second[0].message.body, second.refused
        ('two eggs', [])

    Attributes:
        refused: The receipts that were to be acknowledged and were refused.
        errors: The error of each queue that cannot be claimed from, in a claim of several.
    """

    def __init__(self, claimed: Iterable[Claimed] = (), refused: Iterable[Refused] = ()) -> None:
        super().__init__(claimed)
        self.refused = list(refused)
        self.errors: dict[str, ClientError] = {}


class OutstandingJob(msgspec.Struct, frozen=True):
    """A message that was delivered and is not acknowledged.

    Example:
        >>> jobs = client.job_queue("orders")
        >>> claimed = jobs.receive(1)
        >>> [one.deliveries for one in jobs.outstanding()]
        [1]

    Attributes:
        worker: The name of the worker that has it, or had it last.
        expires: When its claim, or the delay of its release, ends, in seconds since 1970; None: it has ended.
        state: The state that this worker has set; None: none, or it was not asked for.
        state_at: When it was set, in seconds since 1970.
        status: ``claimed``; ``retrying``: released with a delay that is not over; ``waiting``: the claim has ended.
            Blank: a service of 0.1.0 does not say.
        task, arguments: The name of the task that it calls, and a short form of the arguments; blank if it does
            not call one, or if states were not asked for.
        failure: The last failed attempt, or None if no attempt has failed, or if states were not asked for.
    """

    message_id: str
    partition: int
    deliveries: int
    worker: str
    expires: float | None
    state: Any = None
    state_at: float | None = None
    status: str = ""
    task: str = ""
    arguments: str = ""
    failure: Attempt | None = None


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
