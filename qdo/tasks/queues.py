"""Queues of tasks: creates them and sets their options as the code specifies.

A worker creates missing queues, and sets options that are 0, empty or unset in the queue. It never overrides a value,
because two programs with different values would override each other again and again.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, TypeVar

from msgspec.structs import asdict

from qdo.errors import InvalidArgument
from qdo.worker.rights import repeat_until_answered
from queuey.client import Backoff, ClientError, InvalidRequest, NotAllowed, QueueExists, QueueNotFound
from queuey.client.calls.claim_calls import check_queue_names
from queuey.client.calls.queue_calls import check_options
from queuey.client.lookup import find_queues

if TYPE_CHECKING:
    from queuey.client import AsyncClient, Client
    from queuey.client.results import Queue

logger = logging.getLogger("qdo.worker")

T = TypeVar("T")


class JobQueueOptions(TypedDict, total=False):
    """Options of the queues of :class:`~qdo.Jobs`. None leaves an option unchanged.

    Example:
        >>> from datetime import timedelta
        >>> from qdo import Jobs
        >>> jobs = Jobs({"urgent": {"max_deliveries": 3}, "bulk": {}}, ttl=timedelta(days=7))
        >>> [(queue.name, queue.max_deliveries, queue.ttl) for queue in jobs.create_queues()]
        [('urgent', 3, 604800), ('bulk', 10, 604800)]
        >>> jobs.close()

    Attributes:
        partitions: Number of partitions, 1 to 200. It can only grow.
        ttl: How long unfinished calls are kept; a number is seconds. New queues: 30 days.
        max_deliveries: Max deliveries of a call before it becomes a dead letter; 0 for no limit. New queues: 10.
        backoff: Delays of retries. New queues: 1 s, then three times as long at each retry, up to an hour.
        dead_letter: The queue for dead letters. By default the queue's name with ``.dead`` appended.
        on_ack: ``keep`` messages of finished calls for readers, or ``delete`` them. New queues: ``delete``.
        on_expiry: ``drop`` calls whose TTL ends, or make them dead letters with ``dead-letter``. New queues:
            ``dead-letter``, or ``drop`` if ``on_ack`` is ``keep``.
        kind: ``plain``, ``dedup`` or ``ordered``. It can never be changed.
        max_claimed: Max calls that run at the same time; 0 for no limit.
        max_claimed_per_key: Max calls with the same message key that run at the same time; 0 for no limit, which cannot
            be changed later.
        result_ttl: How long results are kept, up to 7 days; a number is seconds, and 0 keeps no results. New queues: an
            hour.
        description: The purpose of the queue, for operators.
    """

    partitions: int | None
    ttl: timedelta | int | None
    max_deliveries: int | None
    backoff: Backoff | None
    dead_letter: str | None
    on_ack: Literal["keep", "delete"] | None
    on_expiry: Literal["drop", "dead-letter"] | None
    kind: Literal["plain", "dedup", "ordered"] | None
    max_claimed: int | None
    max_claimed_per_key: int | None
    result_ttl: timedelta | int | None
    description: str | None


DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "ttl": 30 * 86_400,
        "max_deliveries": 10,
        "backoff": Backoff(first=1, factor=3, most=3600),
        "result_ttl": 3600,
        "on_ack": "delete",
        "on_expiry": "dead-letter",
    }
)
"""Default options of new queues. Ten deliveries take about two hours with these delays. That is longer than a restart
of a service that a task needs, but a task that always fails ends on the same day."""
_NOT_CREATED = "queue %s does not exist, and the credential may not create it (admin). An administrator can: %s"
_HIDDEN = (
    "the credential may neither see nor create queue %s (read, admin), so its options are not checked. If it does not "
    "exist, an administrator can: %s"
)
_NOT_CHANGED = "queue %s has %s, but this program names %s, and the credential may not change it (admin). %s"
_DIFFERS = "queue %s has %s, but this program names %s: the queue is not changed. %s"
_REFUSED = "queue %s has no %s, and the service refuses %s: %s"
_CHANGE = "To change it, call jobs.create_queues() with admin, or: %s"
_FIXED = "The kind never changes, and partitions only grow: name those that the queue has, or use another queue."


class TaskQueue(NamedTuple):
    """A queue of tasks.

    Attributes:
        name: The name of the queue.
        options: The options in the code.
        at_creation: The options of a new queue: those in the code, else the defaults. ``on_expiry`` is ``drop`` by
            default if ``on_ack`` is ``keep``.
    """

    name: str
    options: Mapping[str, Any]

    @property
    def at_creation(self) -> dict[str, Any]:
        keeps = self.options.get("on_ack") == "keep"
        return {**DEFAULTS, **({"on_expiry": "drop"} if keeps else {}), **self.options}

    def find_differences(self, row: object) -> dict[str, Any]:
        current = {name: getattr(row, name) for name in self.options}
        return {name: value for name, value in current.items() if value != self.options[name]}

    def make_command(self, verb: Literal["create", "update"], values: Mapping[str, Any]) -> str:
        shown = (f"--{name.replace('_', '-')} {shlex.quote(_format_value(value))}" for name, value in values.items())
        return " ".join(["queuey queue", verb, shlex.quote(self.name), *shown])


def _format_value(value: object) -> str:
    if isinstance(value, Backoff):
        return ",".join(f"{name}={number:g}" for name, number in asdict(value).items())
    return str(value)


def _format_values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_format_value(value)}" for name, value in values.items())


def make_job_queues(
    queues: str | Iterable[str] | Mapping[str, JobQueueOptions], shared: JobQueueOptions
) -> dict[str, TaskQueue]:
    own = queues if isinstance(queues, Mapping) else {}
    for name, chosen in own.items():
        if not isinstance(chosen, Mapping):
            raise InvalidArgument(f"queue {name}: options {chosen!r} are not a mapping such as {{'ttl': 3600}}")
    return {
        name: TaskQueue(name, _check_options(name, {**shared, **own.get(name, {})}))
        for name in check_queue_names(queues)
    }


def _check_options(queue: str, values: Mapping[str, Any]) -> dict[str, Any]:
    accepted = JobQueueOptions.__annotations__
    if unknown := sorted(values.keys() - accepted):
        raise InvalidArgument(f"queue {queue} has no option {', '.join(unknown)}. Options are {', '.join(accepted)}")
    try:
        return check_options(values)
    except ClientError as error:
        raise InvalidArgument(f"queue {queue}: {error}") from error


# Used by programs


def create_queue(client: Client, queue: TaskQueue) -> Queue:
    while True:
        with suppress(QueueExists):
            return client.create_queue(queue.name, **queue.at_creation)
        with suppress(QueueNotFound):  # The queue was deleted meanwhile.
            return client.update_queue(queue.name, **queue.options)


async def create_queue_async(client: AsyncClient, queue: TaskQueue) -> Queue:
    while True:
        with suppress(QueueExists):
            return await client.create_queue(queue.name, **queue.at_creation)
        with suppress(QueueNotFound):
            return await client.update_queue(queue.name, **queue.options)


def send_or_create_queue(client: Client, queue: TaskQueue | None, send: Callable[[], T]) -> T:
    """Calls ``send``. If the queue does not exist, creates it and calls ``send`` again.

    Raises:
        QueueNotFound: The credential may not create the queue, or ``queue`` is None because another program owns it,
            or a part of the messages was sent before.
    """
    try:
        return send()
    except QueueNotFound as error:
        if queue is None or error.receipts:
            raise
        try:
            with suppress(QueueExists):
                client.create_queue(queue.name, **queue.at_creation)
        except NotAllowed:
            error.add_note(_NOT_CREATED % (queue.name, queue.make_command("create", queue.at_creation)))
            raise error from None
    return send()


async def send_or_create_queue_async(
    client: AsyncClient, queue: TaskQueue | None, send: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    try:
        return await send()
    except QueueNotFound as error:
        if queue is None or error.receipts:
            raise
        try:
            with suppress(QueueExists):
                await client.create_queue(queue.name, **queue.at_creation)
        except NotAllowed:
            error.add_note(_NOT_CREATED % (queue.name, queue.make_command("create", queue.at_creation)))
            raise error from None
    return await send()


# Used by workers


async def keep_queues(client: AsyncClient, queues: Iterable[TaskQueue]) -> None:
    """Creates and updates the queues of a worker's tasks as soon as the service responds. Logs refusals."""
    for queue in queues:
        try:
            await repeat_until_answered(client, partial(_keep_queue, queue=queue))
        except ClientError as error:
            text = "queue %s could not be created or updated with this program's options (%s): %s"
            logger.error(text, queue.name, _format_values(queue.options), error)  # noqa: TRY400 - says it all


async def _keep_queue(client: AsyncClient, queue: TaskQueue) -> None:
    lookup = await find_queues(client, [queue.name])
    row = lookup.found.get(queue.name)
    if row is not None:
        await _update_unset_options(client, queue, queue.find_differences(row))
        return
    refusal = _HIDDEN if queue.name in lookup.hidden else _NOT_CREATED
    if not await _create_missing_queue(client, queue, refusal) and queue.name in lookup.absent:
        await _keep_queue(client, queue)  # Another program has just created the queue.


async def _create_missing_queue(client: AsyncClient, queue: TaskQueue, refusal: str) -> bool:
    try:
        await client.create_queue(queue.name, **queue.at_creation)
        logger.info("queue %s was created with %s", queue.name, _format_values(queue.at_creation))
    except NotAllowed:
        logger.warning(refusal, queue.name, queue.make_command("create", queue.at_creation))
    except QueueExists:
        return False
    return True


async def _update_unset_options(client: AsyncClient, queue: TaskQueue, differing: Mapping[str, Any]) -> None:
    """Sets the options that are unset in the queue, and logs the others that differ.

    Sets each option in a request of its own, so that a refused option does not affect the others.
    """
    for name in [name for name, value in differing.items() if not value]:
        text = _format_values({name: queue.options[name]})
        try:
            await client.update_queue(queue.name, **{name: queue.options[name]})
        except NotAllowed:
            _warn_of_difference(_NOT_CHANGED, queue, differing)
            return
        except InvalidRequest as error:
            logger.error(_REFUSED, queue.name, name, text, error)  # noqa: TRY400 - says it all
        else:
            logger.info("queue %s now has %s", queue.name, text)
    if unlike := {name: value for name, value in differing.items() if value}:
        _warn_of_difference(_DIFFERS, queue, unlike)


def _warn_of_difference(text: str, queue: TaskQueue, differing: Mapping[str, Any]) -> None:
    """Logs differing options: which ones can never be changed, and the command that changes the others.

    Args:
        text: Format of the message.
        queue: The queue with its wanted options.
        differing: The queue's present options.
    """
    named = {name: queue.options[name] for name in differing}
    fixed = {name for name in named if name == "kind" or (name == "partitions" and named[name] < differing[name])}
    changing = {name: value for name, value in named.items() if name not in fixed}
    steps = [_FIXED] if fixed else []
    steps += [_CHANGE % queue.make_command("update", changing)] if changing else []
    logger.warning(text, queue.name, _format_values(differing), _format_values(named), " ".join(steps))
