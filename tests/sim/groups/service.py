"""A service in simulated time: queues with partitions and messages, keys that see some of them, and its client."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import NamedTuple, TypeVar, cast

from queuey import ids
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
    id_after,
    order_of,
)
from queuey.client.errors import ErrorAnswer
from tests.sim.world import World

T = TypeVar("T")
APPLICATION, STORE = "queuey", "5" * 32
LATENCY = 0.005
"""Seconds on the way, on average."""
FAR = 0.3
"""The part of answers that are on their way for some time."""
SILENCE = 1.0
"""Seconds until a caller gives up that gets no answer, on average."""
KEYS = 3
"""Number of keys that messages have."""
ALL = 0
"""In the place of a partition's number."""


class Key(NamedTuple):
    """What a credential may do.

    Attributes:
        patterns: Of the queues that it may read.
        lists: It may list these.
    """

    patterns: tuple[str, ...]
    lists: bool = True

    def reads(self, name: str) -> bool:
        """Returns whether it may read a queue."""
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)


class Log:
    """The messages of a partition.

    Attributes:
        messages: In order.
        orders: Of their ids.
        handled: Number of messages before the first one that no member has handled.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.orders: list[tuple[int, int]] = []
        self.handled = 0
        self._handled_behind: set[int] = set()

    def handle(self, index: int) -> None:
        """A member has handled a message."""
        if index >= self.handled:
            self._handled_behind.add(index)
        while self.handled in self._handled_behind:
            self._handled_behind.remove(self.handled)
            self.handled += 1

    def after(self, identifier: str | None) -> int:
        """Returns how many messages lie up to an id."""
        return 0 if identifier is None else bisect_right(self.orders, order_of(identifier))


class Service:
    """The service.

    Attributes:
        queues: By name and number the messages.
        places: By the body of a message where it lies.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.queues: dict[str, dict[int, Log]] = {}
        self.places: dict[int, tuple[Log, int]] = {}
        self._posted = 0
        self._waiting: dict[asyncio.Future[None], frozenset[tuple[str, int]]] = {}

    def post(self, name: str, number: int) -> Message:
        """Stores a message."""
        self._posted += 1
        log = self.queues[name][number]
        headers = {"key": str(self._posted % KEYS)}
        message = Message(self._at(0), "", number, self._posted, headers=headers)
        self.places[self._posted] = log, len(log.messages)
        log.messages.append(message)
        log.orders.append(order_of(message.id))
        self.wake(name, number)
        return message

    def wake(self, name: str, number: int = ALL) -> None:
        """Answers those that wait for a partition of a queue, or for any of them."""
        for future in [future for future, places in self._waiting.items() if (name, number) in places]:
            del self._waiting[future]
            if not future.done():
                future.set_result(None)

    def wait(self, future: asyncio.Future[None], queries: Iterable[Query]) -> None:
        """Wakes a caller at the next change of what it reads."""
        places = (
            (query.queue, number) for query in queries for number in (ALL, *cast("Iterable[int]", query.partitions))
        )
        self._waiting[future] = frozenset(places)

    def read(self, query: Query, key: Key) -> QueueRead:
        """Reads a queue."""
        if not key.reads(query.queue):
            return QueueRead(query.queue, None, NotAllowed(ErrorAnswer(status=403)))
        if query.queue not in self.queues:
            return QueueRead(query.queue, None, _no_queue())
        horizon = self._at(1)
        found: list[Message] = []
        following: dict[int, str | None] = {}
        more = False
        since = cast("dict[int, str]", query.since)
        for number in sorted(cast("Iterable[int]", query.partitions)):
            if (log := self.queues[query.queue].get(number)) is None:
                continue
            begin = bisect_left(log.orders, order_of(since[number]))
            given = log.messages[begin : begin + (query.limit or 0)]
            found += given
            rest = len(log.messages) - begin - len(given)
            more = more or rest > 0
            following[number] = id_after(given[-1].id) if rest > 0 else horizon
        return QueueRead(query.queue, Page(tuple(found), horizon, following, "", more))

    def describe(self, name: str) -> Queue:
        """Returns what a queue is."""
        return Queue(name=name, partitions=len(self.queues[name]), type="message", consistency="strong")

    def _at(self, ahead: int) -> str:
        low = ids.LOW_MIN if ahead else 0
        return ids.to_hex((ids.EPOCH_TICKS + self._posted + ahead, low))


class ServiceClient:
    """A client of one member.

    Args:
        service: The service.
        key: Returns the present rights.
        reachable: Returns whether packets get through.
    """

    application = APPLICATION
    servers = (SimpleNamespace(root="simulated"),)

    def __init__(self, service: Service, key: Callable[[], Key], reachable: Callable[[], bool]) -> None:
        self._service = service
        self._key = key
        self._reachable = reachable

    async def hello(self) -> Hello:
        """See the client."""
        return await self._ask(lambda: Hello("0", "sqlite", STORE))

    async def queue_page(self, *, start: str | None = None, limit: int = 100) -> QueuePage:
        """See the client."""

        def answer() -> QueuePage:
            key = self._key()
            if not key.lists:
                raise NotAllowed(ErrorAnswer(status=403))
            names = sorted(name for name in self._service.queues if name >= (start or "") and key.reads(name))
            after = names[limit] if len(names) > limit else None
            return QueuePage(tuple(map(self._service.describe, names[:limit])), after, key.patterns)

        return await self._ask(answer)

    async def info(self, name: str) -> Queue:
        """See the client."""

        def answer() -> Queue:
            if not self._key().reads(name):
                raise NotAllowed(ErrorAnswer(status=403))
            if name not in self._service.queues:
                raise _no_queue()
            return self._service.describe(name)

        return await self._ask(answer)

    async def rights(self, names: Sequence[str]) -> dict[str, frozenset[str]]:
        """See the client."""
        return await self._ask(lambda: {name: frozenset({"read"} if self._key().reads(name) else ()) for name in names})

    async def read_queues(self, queries: Sequence[Query], *, wait: float = 0.0) -> tuple[QueueRead, ...]:
        """See the client."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        while True:
            reads = await self._ask(lambda: tuple(self._service.read(query, self._key()) for query in queries))
            if loop.time() >= end or any(each.page is None or each.page.messages for each in reads):
                return reads
            woken = loop.create_future()
            self._service.wait(woken, queries)
            await asyncio.wait([woken], timeout=end - loop.time())

    async def _ask(self, answer: Callable[[], T]) -> T:
        world = self._service.world
        await asyncio.sleep(world.some(LATENCY))
        await self._lost_unless_reachable()
        found: T | ApiError
        try:
            found = answer()
        except ApiError as error:
            found = error
        if world.rng.random() < FAR:
            await asyncio.sleep(world.some(LATENCY))
        await self._lost_unless_reachable()
        if isinstance(found, ApiError):
            raise found
        return found

    async def _lost_unless_reachable(self) -> None:
        if not self._reachable():
            await asyncio.sleep(self._service.world.some(SILENCE))
            raise ConnectionLost("there is no answer")


def _no_queue() -> QueueNotFound:
    return QueueNotFound(ErrorAnswer(status=404))
