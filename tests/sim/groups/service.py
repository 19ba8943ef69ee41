"""A service in simulated time: queues with partitions and messages, keys with different rights, and its client."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import NamedTuple, Self, TypeVar, cast

from queuey.client import (
    ApiError,
    ConnectionLost,
    Hello,
    Message,
    NotAllowed,
    Page,
    Query,
    Queue,
    QueueNotFound,
    QueuePage,
    QueueRead,
    RetryPolicy,
    id_after,
    order_of,
)
from queuey.client.errors import ErrorAnswer
from queuey.model import ids
from tests.sim.world import World

T = TypeVar("T")
APPLICATION, STORE = "queuey", "5" * 32
LATENCY = 0.005
"""Mean seconds of one trip."""
FAR = 0.3
"""Fraction of answers that take time to arrive."""
SILENCE = 1.0
"""Mean seconds until a caller without an answer gives up."""
KEYS = 3
"""Number of different message keys."""
ALL = 0
"""Stands for all partitions."""


class Key(NamedTuple):
    """The rights of a credential.

    Attributes:
        patterns: Patterns of the queues that it may read.
        lists: Whether it may list them.
    """

    patterns: tuple[str, ...]
    lists: bool = True

    def reads(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)


class Log:
    """The messages of a partition.

    Attributes:
        messages: The messages, in order.
        orders: The sort keys of their ids.
        handled: Number of messages before the first unhandled one.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.orders: list[tuple[int, int]] = []
        self.handled = 0
        self._handled_behind: set[int] = set()

    def handle(self, index: int) -> None:
        """Marks a message as handled. ``handled`` counts only up to the first message that is not."""
        if index >= self.handled:
            self._handled_behind.add(index)
        while self.handled in self._handled_behind:
            self._handled_behind.remove(self.handled)
            self.handled += 1

    def after(self, identifier: str | None) -> int:
        """Returns the index of the first message after an id; 0 for None."""
        return 0 if identifier is None else bisect_right(self.orders, order_of(identifier))


class Service:
    """The service.

    Attributes:
        queues: The messages by queue and partition.
        places: The log and index of each message, by its body.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.queues: dict[str, dict[int, Log]] = {}
        self.places: dict[int, tuple[Log, int]] = {}
        self._posted = 0
        self._waiting: dict[asyncio.Future[None], frozenset[tuple[str, int]]] = {}

    def post(self, name: str, number: int) -> Message:
        self._posted += 1
        log = self.queues[name][number]
        headers = {"key": str(self._posted % KEYS)}
        message = Message(self._make_id(0), "", number, self._posted, headers=headers)
        self.places[self._posted] = log, len(log.messages)
        log.messages.append(message)
        log.orders.append(order_of(message.id))
        self.wake(name, number)
        return message

    def wake(self, name: str, number: int = ALL) -> None:
        """Ends the waits for a partition, by default for all changes of a queue."""
        for future in [future for future, places in self._waiting.items() if (name, number) in places]:
            del self._waiting[future]
            if not future.done():
                future.set_result(None)

    def wait(self, future: asyncio.Future[None], queries: Iterable[Query]) -> None:
        places = (
            (query.queue, number) for query in queries for number in (ALL, *cast("Iterable[int]", query.partitions))
        )
        self._waiting[future] = frozenset(places)

    def read(self, query: Query, key: Key) -> QueueRead:
        """Returns the messages after a query's positions, or an error if the key may not read or no queue exists.

        Leaves out partitions that the queue lacks. The limit is that of each partition.
        """
        if not key.reads(query.queue):
            return QueueRead(query.queue, None, NotAllowed(ErrorAnswer(status=403)))
        if query.queue not in self.queues:
            return QueueRead(query.queue, None, _no_queue())
        horizon = self._make_id(1)
        messages: list[Message] = []
        following: dict[int, str | None] = {}
        more = False
        since = cast("dict[int, str]", query.since)
        for number in sorted(cast("Iterable[int]", query.partitions)):
            if (log := self.queues[query.queue].get(number)) is None:
                continue
            begin = bisect_left(log.orders, order_of(since[number]))
            batch = log.messages[begin : begin + (query.limit or 0)]
            messages += batch
            rest = len(log.messages) - begin - len(batch)
            more = more or rest > 0
            following[number] = id_after(batch[-1].id) if rest > 0 else horizon
        return QueueRead(query.queue, Page(tuple(messages), horizon, following, "", more))

    def describe(self, name: str) -> Queue:
        return Queue(name=name, partitions=len(self.queues[name]), type="message", consistency="strong")

    def _make_id(self, ahead: int) -> str:
        low = ids.LOW_MIN if ahead else 0
        return ids.to_hex((ids.EPOCH_TICKS + self._posted + ahead, low))


class ServiceClient:
    """The client of one member.

    Args:
        service: The service.
        key: Returns the present rights.
        reachable: Returns whether packets arrive.
        groups: Its groups, if the service coordinates.
    """

    application = APPLICATION
    servers = (SimpleNamespace(root="simulated"),)

    def __init__(
        self, service: Service, key: Callable[[], Key], reachable: Callable[[], bool], groups: object = None
    ) -> None:
        self._service = service
        self.consumer_groups = groups
        self._key = key
        self._reachable = reachable

    def with_retry(self, _: RetryPolicy) -> Self:
        """Returns itself: it sends every request once."""
        return self

    async def hello(self) -> Hello:
        return await self._ask(lambda: Hello("0", "sqlite", STORE))

    async def queue_page(self, *, start: str | None = None, limit: int = 100) -> QueuePage:
        def answer() -> QueuePage:
            key = self._key()
            if not key.lists:
                raise NotAllowed(ErrorAnswer(status=403))
            names = sorted(name for name in self._service.queues if name >= (start or "") and key.reads(name))
            after = names[limit] if len(names) > limit else None
            return QueuePage(tuple(map(self._service.describe, names[:limit])), after, key.patterns)

        return await self._ask(answer)

    async def info(self, name: str) -> Queue:
        def answer() -> Queue:
            if not self._key().reads(name):
                raise NotAllowed(ErrorAnswer(status=403))
            if name not in self._service.queues:
                raise _no_queue()
            return self._service.describe(name)

        return await self._ask(answer)

    async def rights(self, names: Sequence[str]) -> dict[str, frozenset[str]]:
        def answer() -> dict[str, frozenset[str]]:
            return {name: frozenset({"read", "claim"} if self._key().reads(name) else ()) for name in names}

        return await self._ask(answer)

    async def read_queues(self, queries: Sequence[Query], *, wait: float = 0.0) -> tuple[QueueRead, ...]:
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        while True:
            reads = await self._ask(lambda: tuple(self._service.read(query, self._key()) for query in queries))
            if loop.time() >= end or any(read.page is None or read.page.messages for read in reads):
                return reads
            woken = loop.create_future()
            self._service.wait(woken, queries)
            await asyncio.wait([woken], timeout=end - loop.time())

    async def _ask(self, answer: Callable[[], T]) -> T:
        """Asks the service after a delay.

        Raises ConnectionLost, after a while, if the member is cut off before or after the work. The work may have been
        done.
        """
        world = self._service.world
        await asyncio.sleep(world.random_time(LATENCY))
        await self._lost_unless_reachable()
        result: T | ApiError
        try:
            result = answer()
        except ApiError as error:
            result = error
        if world.rng.random() < FAR:
            await asyncio.sleep(world.random_time(LATENCY))
        await self._lost_unless_reachable()
        if isinstance(result, ApiError):
            raise result
        return result

    async def _lost_unless_reachable(self) -> None:
        if not self._reachable():
            await asyncio.sleep(self._service.world.random_time(SILENCE))
            raise ConnectionLost("there is no answer")


def _no_queue() -> QueueNotFound:
    return QueueNotFound(ErrorAnswer(status=404))
