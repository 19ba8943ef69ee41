"""Results of the client's calls: frozen, typed, and encoded with the names of the API's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from inspect import iscoroutinefunction
from typing import Annotated, Any

import msgspec

from queuey.api.jobs import JobInfo
from queuey.api.messages import PostedMessage
from queuey.api.schedules import ListedSchedule
from queuey.api.values import Id
from queuey.client.errors import ApiError, ClientError, InvalidArgument
from queuey.model.deadletters import Attempt
from queuey.model.ids import order_of, time_of
from queuey.model.messages import ChosenOptions
from queuey.model.titles import instant, titled


class Receipt(PostedMessage, frozen=True, dict=True):
    """The receipt of a stored message. It can also query the message's status and result as a job.

    Two receipts of one message are equal. A pickled or copied receipt has lost its client and cannot query.

    Example:
        >>> receipt = client.send("orders", "two pears")
        >>> receipt.partition, len(receipt.id)
        (1, 32)

    Attributes:
        id: 32 lower-case hex digits, unique in the partition.
        timestamp: The id's time, seconds since 1970 with seven decimals, exactly as the server wrote it.
        partition: 1 to the queue's number of partitions.
        merged: None if the call stored the message. Otherwise it was merged into an equal job of the same name, with
            this status: a ``claimed`` one may have read its input before, a ``waiting`` or ``retrying`` one runs later.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Receipt) and (self.id, self.partition) == (other.id, other.partition)

    def __hash__(self) -> int:
        return hash((self.id, self.partition))

    @property
    def time(self) -> datetime:
        """The id's time in UTC, truncated to microseconds."""
        return time_of(self.id)

    @property
    def ticks(self) -> int:
        """The id's exact time in 100 ns steps since 1582-10-15."""
        return order_of(self.id)[0]

    def status(self) -> JobInfo:
        """Returns the job's status: waiting, claimed, done, failed, and so on."""
        source, queue = self._source("status")
        info: JobInfo = source.show(queue, self)
        return info

    def state(self) -> Any:  # noqa: ANN401 - any JSON value
        """Returns the last state that a worker has set for the job, or None if no worker has set one."""
        source, queue = self._source("state")
        return source.show(queue, self, states=True).state

    def result(self, timeout: float | timedelta | None = None) -> Any:  # noqa: ANN401 - any JSON value
        """Waits until the job has ended, and returns the result of the acknowledged attempt.

        The queue must have a ``result_ttl``. Concurrent callers share requests.

        Args:
            timeout: Max seconds to wait. Unlimited by default.

        Raises:
            ResultTimeout: The job has not ended in time.
            JobFailed: The job is a dead letter.
            JobGone: The job expired, was removed or superseded.
            ResultTooLarge: The job is done, but its result was too large to keep.
            ResultUnknown: The result was not set, or is not kept any more.

        Example:
            >>> receipt = client.send("orders", "two pears")
            >>> try:
            ...     receipt.result(timeout=0)
            ... except TimeoutError:
            ...     print(receipt.status().status)
            waiting
        """
        source, queue = self._source("result")
        return self._convert(source.result(queue, self, timeout))

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
        return self._convert(await source.result(queue, self, timeout))

    def _convert(self, result: Any) -> Any:  # noqa: ANN401 - any values
        """Returns a result as the type that the task of the receipt returns, if there is one and the result fits it."""
        with suppress(TypeError, msgspec.ValidationError):
            return msgspec.convert(result, self.__dict__.get("result_type", Any), str_keys=True)
        return result

    def _source(self, method: str) -> tuple[Any, str]:
        source: tuple[Any, str] | None = self.__dict__.get("source")
        if source is None:
            raise InvalidArgument("this receipt has no client: use client.job_queue(queue).status(receipt)")
        is_async = iscoroutinefunction(source[0].show)
        if is_async != method.startswith("a"):
            kind, other = ("an AsyncClient", f"a{method}") if is_async else ("a Client", method[1:])
            raise InvalidArgument(f"this receipt comes from {kind}: call {other}()")
        return source


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message of a queue.

    The garbage collector does not track messages, so that reads are a third faster. If you put an object that refers to
    the message into its body, neither is ever freed.

    Example:
        >>> message = client.read("orders").messages[0]
        >>> message.body, message.partition
        ('one apple', 1)

    Attributes:
        id: 32 lower-case hex digits, unique in the partition.
        timestamp: The id's time, seconds since 1970 with seven decimals, exactly as the server wrote it.
        partition: 1 to the queue's number of partitions.
        body: ``str`` for text, ``bytes`` for other bytes, or the value of a body that was sent as JSON.
        content_type: Content type set by the producer, or None.
        headers: Headers set by the producer, with lower-case names.
        key: Key set by the producer, in an ordered queue or a queue with ``max_claimed_per_key``; else None.
        early: The message is above the horizon. It is stored, but can still disappear, and messages before it can
            still come.
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
        """The id's time in UTC, truncated to microseconds."""
        return time_of(self.id)

    @property
    def ticks(self) -> int:
        """The id's exact time in 100 ns steps since 1582-10-15."""
        return order_of(self.id)[0]


class StreamedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message of a stream.

    Example:
        >>> streamed = next(client.stream("orders", since=0))
        >>> streamed.queue, streamed.message.body
        ('orders', 'one apple')

    Attributes:
        queue: Name of the message's queue.
        message: The message.
        cursor: Pass it to a later stream of the same queues to continue after this message.
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
        messages: The messages in the requested order. Early messages come last.
        horizon: An id. Only messages before it were read, except early ones.
        next: The ``since`` of the next read in the same order, by partition. None if a descending read of the
            partition is complete.
        cursor: The position as one text that can be stored. Empty if all partitions are complete.
        more: Another read now may return messages.
        cursor_safe: False after ``delay=False``: a read that continues from this cursor may miss messages.
    """

    messages: tuple[Message, ...]
    horizon: str
    next: Mapping[int, str | None]
    cursor: str
    more: bool
    cursor_safe: bool = True


class QueueRead(msgspec.Struct, frozen=True):
    """The result for one queue of a read of several queues: a page or an error.

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
    """Number of unread messages of a queue, or the error if the queue cannot be read.

    Example:
        >>> for part in client.unread(["orders", "nothing"]):
        ...     print(part.queue, part.unread, part.error.status if part.error else None)
        orders 2 None
        nothing None 404

    Attributes:
        read: The id of the last message that counts as read, by partition.
        unread: Number of messages after these. None if they were not counted because the call had reached the
            server's limit. Call again for these queues.
        more: The queue has more unread messages than ``unread``.
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
        principals: Other callers that may read and delete.
        created: When the queue was created, in seconds since 1970. None in the answer to a create.
        application: The queue's application, only in lists.
        count: Number of messages, only in lists with ``count``.
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
    """One page of the list of queues. ``next`` is the ``start`` of the next page, or None at the end.

    Example:
        >>> [queue.name for queue in client.queue_page(limit=10).queues]
        ['orders']

    Attributes:
        patterns: The credential's name patterns, in which ``*`` stands for any text. The list has only queues that
            match one of them.
    """

    queues: tuple[Queue, ...]
    next: str | None
    patterns: tuple[str, ...]

    def lists_all(self, prefix: str = "") -> bool:
        """Returns whether the list contains every queue with the prefix."""
        return any(
            pattern.endswith("*") and "*" not in (begin := pattern[:-1]) and prefix.startswith(begin)
            for pattern in self.patterns
        )


class NamePage(msgspec.Struct, frozen=True):
    """One page of the list of queue names. ``next`` is the ``start`` of the next page, or None at the end.

    Example:
        >>> client.name_page(limit=10).names
        ('orders',)
    """

    names: tuple[str, ...]
    next: str | None


class Claimed(msgspec.Struct, frozen=True):
    """A message that only this caller has claimed, until ``expires``.

    Example:
        >>> (claimed,) = client.job_queue("orders").receive(1)
        >>> claimed.message.body, claimed.deliveries
        ('one apple', 1)

    Attributes:
        message: The message.
        receipt: The receipt of this claim, to acknowledge, renew or release it.
        deliveries: Number of this attempt: the deliveries so far, without deliveries that were given back before work
            on the message began.
        expires: When another caller may get the message, in seconds since 1970, by the server's clock.
        queue: The message's queue.
        state: The last state that a worker has set in an earlier delivery, or None.
        result_ttl: Seconds for which the queue keeps results of jobs. 0 if it keeps no results.
        handed_out: Number of all deliveries of the message, including this one.
        suspected: An earlier claim expired: perhaps the message has ended its worker. So it comes alone; handle no
            other message beside it.
    """

    message: Message
    receipt: str
    deliveries: int
    expires: float
    queue: str = ""
    state: Any = None
    result_ttl: int = 0
    handed_out: int = 1
    suspected: bool = False


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
        status: The reason. ``superseded``: the claim had expired, and the message was delivered to another caller,
            became a dead letter or was moved; or a newer message has its name.
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
        refused: Receipts whose acknowledgement was refused.
        errors: The errors of queues that cannot be claimed from, by name, in a claim from several queues.
    """

    def __init__(self, claimed: Iterable[Claimed] = (), refused: Iterable[Refused] = ()) -> None:
        super().__init__(claimed)
        self.refused = list(refused)
        self.errors: dict[str, ClientError] = {}


class OutstandingJob(msgspec.Struct, frozen=True):
    """A message that was delivered but is not acknowledged.

    Example:
        >>> jobs = client.job_queue("orders")
        >>> claimed = jobs.receive(1)
        >>> [one.deliveries for one in jobs.outstanding()]
        [1]

    Attributes:
        deliveries: Number of attempts: deliveries that were given back before work on the message began do not count.
        worker: Name of the worker that has the message, or had it last.
        expires: When the claim or the delay of a release ends, in seconds since 1970. None if it has ended.
        state: The state that this worker has set, or None. Only with ``states``.
        state_at: When the state was set, in seconds since 1970.
        status: ``claimed``; ``retrying`` if it was released and the delay is not over; ``waiting`` if the claim has
            ended.
        task, arguments: Name of the task that the message calls, and its arguments in short form. Empty without a
            task. Only with ``states``.
        failure: The last failed attempt, or None. Only with ``states``.
        handed_out: Number of all deliveries.
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
    handed_out: int = 0


class Schedule(ListedSchedule, frozen=True, kw_only=True):
    """A schedule and its state.

    Example:
        >>> schedule = client.schedules.put("hourly", queue="orders", message="count", cron="0 * * * *")
        >>> schedule.name, schedule.cron, schedule.timezone, schedule.missed, schedule.paused
        ('hourly', '0 * * * *', 'UTC', 'skip', False)
        >>> [instant % 3600 for instant in schedule.next]
        [0, 0, 0, 0, 0]
        >>> client.schedules.delete("hourly")

    Attributes:
        name: Name of the schedule in the application.
        queue: The queue to which messages are posted.
        cron, timezone: The cron expression and its time zone. None if the schedule has an interval.
        every: The interval in seconds. None if the schedule has a cron expression.
        missed: ``skip`` or ``catch_up``.
        paused: The schedule posts no messages.
        created, changed: Seconds since 1970.
        next: The next instants, in seconds since 1970.
        firing: The instant whose message is being posted, or None.
        last: The result of the last tick, or None before the first tick.
        message: The message in the API's batch format. None in lists.
    """

    message: Mapping[str, Any] | None = None
