"""Queues of tasks: the options that the code names, and the queues of the service that are made and changed by them.

A worker creates what is missing, and sets an option where the queue has nothing yet: 0, a blank or none. It never
overrides a value: two programs that name different ones would take turns.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, TypeVar

from msgspec.structs import asdict

from qdo.errors import InvalidArgument
from qdo.worker.rights import until_answered
from queuey.client import Backoff, ClientError, InvalidRequest, NotAllowed, QueueExists, QueueNotFound
from queuey.client.calls.claim_calls import names_of
from queuey.client.calls.queue_calls import checked_options
from queuey.client.lookup import look_up

if TYPE_CHECKING:
    from queuey.client import AsyncClient, Client
    from queuey.client.results import Queue

logger = logging.getLogger("qdo.worker")

T = TypeVar("T")


class JobQueueOptions(TypedDict, total=False):
    """Options of the queues of :class:`~qdo.Jobs`. One that is None is left as it is.

    Example:
        >>> from datetime import timedelta
        >>> from qdo import Jobs
        >>> jobs = Jobs({"urgent": {"max_deliveries": 3}, "bulk": {}}, ttl=timedelta(days=7))
        >>> [(queue.name, queue.max_deliveries, queue.ttl) for queue in jobs.create_queues()]
        [('urgent', 3, 604800), ('bulk', 10, 604800)]
        >>> jobs.close()

    Attributes:
        partitions: 1 to 200; they can only grow.
        ttl: How long an unfinished call lives; a number is seconds. New queues have 30 days.
        max_deliveries: How often a call is delivered, before it becomes a dead letter; 0: endlessly. New queues have
            10.
        backoff: When a failed call is tried again. New queues wait 1 s, then each time three times as long, up to an
            hour.
        dead_letter: The queue of dead letters; not named: the queue's name and ``.dead``.
        on_ack: ``keep`` messages of finished calls for readers, or ``delete`` them, as in new queues.
        on_expiry: ``drop`` calls whose TTL ends, or ``dead-letter``: they become dead letters, as in new queues whose
            ``on_ack`` is ``delete``.
        kind: ``plain``, ``dedup`` or ``ordered``; it never changes.
        max_claimed: How many calls run at once; 0: no limit.
        max_claimed_per_key: How many of one message key run at once; 0: no limit, which stays so.
        result_ttl: How long results are kept, up to 7 days; a number is seconds, 0: none is kept. New queues keep them
            for an hour.
        description: The purpose of the queue, for people.
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
"""Options of queues that are created. Ten deliveries take about two hours with these delays: that outlasts a restart of
what a task needs, and a task that always fails ends on the same day."""
_NOT_CREATED = "queue %s does not exist, and the credential may not create it (admin). An administrator can: %s"
_NOT_CHANGED = "queue %s has %s, but this program names %s, and the credential may not change it (admin). %s"
_DIFFERS = "queue %s has %s, but this program names %s: it stays. %s"
_REFUSED = "queue %s has no %s, and cannot be given %s: %s"
_CHANGE = "To change it, call jobs.create_queues() with admin, or: %s"
_FIXED = "The kind never changes, and partitions only grow: name those that the queue has, or use another queue."


class JobQueue(NamedTuple):
    """A queue of tasks.

    Attributes:
        name: Its name.
        options: What the code names.
    """

    name: str
    options: Mapping[str, Any]

    @property
    def at_creation(self) -> dict[str, Any]:
        keeps = self.options.get("on_ack") == "keep"
        return {**DEFAULTS, **({"on_expiry": "drop"} if keeps else {}), **self.options}

    def differing(self, row: object) -> dict[str, Any]:
        """Returns the present values of the options that the code names otherwise."""
        present = {name: getattr(row, name) for name in self.options}
        return {name: value for name, value in present.items() if value != self.options[name]}

    def command(self, verb: Literal["create", "update"], values: Mapping[str, Any]) -> str:
        shown = (f"--{name.replace('_', '-')} {shlex.quote(_text(value))}" for name, value in values.items())
        return " ".join(["queuey queue", verb, shlex.quote(self.name), *shown])


def _text(value: object) -> str:
    if isinstance(value, Backoff):
        return ",".join(f"{name}={number:g}" for name, number in asdict(value).items())
    return str(value)


def _texts(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in values.items())


def job_queues(
    queues: str | Iterable[str] | Mapping[str, JobQueueOptions], shared: JobQueueOptions
) -> dict[str, JobQueue]:
    """Returns the queues by name, each with the options of all and its own; raises InvalidArgument."""
    own = queues if isinstance(queues, Mapping) else {}
    for name, chosen in own.items():
        if not isinstance(chosen, Mapping):
            raise InvalidArgument(f"queue {name}: its options are {chosen!r}, not a mapping such as {{'ttl': 3600}}")
    return {name: JobQueue(name, _checked(name, {**shared, **own.get(name, {})})) for name in names_of(queues)}


def _checked(queue: str, values: Mapping[str, Any]) -> dict[str, Any]:
    accepted = JobQueueOptions.__annotations__
    if unknown := sorted(values.keys() - accepted):
        raise InvalidArgument(f"queue {queue} has no option {', '.join(unknown)}. There are {', '.join(accepted)}")
    try:
        return checked_options(values)
    except ClientError as error:
        raise InvalidArgument(f"queue {queue}: {error}") from error


# By a program


def create_queue(client: Client, queue: JobQueue) -> Queue:
    """Creates a queue; of one that exists it changes the options that the code names otherwise."""
    while True:
        with suppress(QueueExists):
            return client.create_queue(queue.name, **queue.at_creation)
        with suppress(QueueNotFound):  # It was deleted meanwhile.
            return client.update_queue(queue.name, **queue.options)


async def create_queue_async(client: AsyncClient, queue: JobQueue) -> Queue:
    """Async variant of :func:`create_queue`."""
    while True:
        with suppress(QueueExists):
            return await client.create_queue(queue.name, **queue.at_creation)
        with suppress(QueueNotFound):
            return await client.update_queue(queue.name, **queue.options)


def sending(client: Client, queue: JobQueue | None, send: Callable[[], T]) -> T:
    """Sends; if the queue does not exist, it is created and then sent to.

    Raises:
        QueueNotFound: The credential may not create it; or it is None, because it is another program's.
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
            error.add_note(_NOT_CREATED % (queue.name, queue.command("create", queue.at_creation)))
            raise error from None
    return send()


async def sending_async(client: AsyncClient, queue: JobQueue | None, send: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Async variant of :func:`sending`."""
    try:
        return await send()
    except QueueNotFound as error:
        if queue is None or error.receipts:
            raise
        try:
            with suppress(QueueExists):
                await client.create_queue(queue.name, **queue.at_creation)
        except NotAllowed:
            error.add_note(_NOT_CREATED % (queue.name, queue.command("create", queue.at_creation)))
            raise error from None
    return await send()


# By a worker


async def keep_queues(client: AsyncClient, queues: Iterable[JobQueue]) -> None:
    """Creates and updates the queues of a worker's tasks as soon as the service answers, and as far as it may."""
    for queue in queues:
        try:
            await until_answered(lambda queue=queue: _keep(client, queue))  # type: ignore[misc]
        except ClientError as error:
            text = "queue %s is not as this program names it (%s): %s"
            logger.error(text, queue.name, _texts(queue.options), error)  # noqa: TRY400 - says it all


async def _keep(client: AsyncClient, queue: JobQueue) -> None:
    lookup = await look_up(client, [queue.name])
    row = lookup.found.get(queue.name)
    if row is not None:
        await _update(client, queue, queue.differing(row))
    elif not await _create(client, queue) and queue.name in lookup.absent:
        await _keep(client, queue)  # Another program has just created it.


async def _create(client: AsyncClient, queue: JobQueue) -> bool:
    """Creates a queue if it may; returns False if it exists."""
    try:
        await client.create_queue(queue.name, **queue.at_creation)
        logger.info("queue %s is created with %s", queue.name, _texts(queue.at_creation))
    except NotAllowed:
        logger.warning(_NOT_CREATED, queue.name, queue.command("create", queue.at_creation))
    except QueueExists:
        return False
    return True


async def _update(client: AsyncClient, queue: JobQueue, differing: Mapping[str, Any]) -> None:
    """Sets the options for which the queue has nothing; logs the other ones that differ.

    Each is set by itself: one that is refused keeps no other one back.
    """
    for name in [name for name, value in differing.items() if not value]:
        text = _texts({name: queue.options[name]})
        try:
            await client.update_queue(queue.name, **{name: queue.options[name]})
        except NotAllowed:
            _warn(_NOT_CHANGED, queue, differing)
            return
        except InvalidRequest as error:
            logger.error(_REFUSED, queue.name, name, text, error)  # noqa: TRY400 - says it all
        else:
            logger.info("queue %s has now %s", queue.name, text)
    if unlike := {name: value for name, value in differing.items() if value}:
        _warn(_DIFFERS, queue, unlike)


def _warn(text: str, queue: JobQueue, differing: Mapping[str, Any]) -> None:
    named = {name: queue.options[name] for name in differing}
    fixed = {name for name in named if name == "kind" or (name == "partitions" and named[name] < differing[name])}
    changing = {name: value for name, value in named.items() if name not in fixed}
    steps = [_FIXED] if fixed else []
    steps += [_CHANGE % queue.command("update", changing)] if changing else []
    logger.warning(text, queue.name, _texts(differing), _texts(named), " ".join(steps))
