"""Queues and messages for the contract suite, and the ways it looks at them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from msgspec import structs

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.ids import Position
from queuey.messages import LogEntry, Message, Meta, NewMessage, Page, PostKey, PostResult, Queue, QueueSpec, Slice
from queuey.service import ClaimUseCases, QueueAccess
from queuey.storage import Store
from tests.backends import APP
from tests.waiting import PATIENCE_SECONDS

A = TypeVar("A")
T = TypeVar("T")
_numbers = itertools.count(1)


def fresh_name() -> str:
    """A queue name that no other test of this run uses."""
    return f"queue-{next(_numbers)}"


def make_queue(
    store: Store,
    name: str | None = None,
    *,
    application: str = APP,
    partitions: int = 1,
    ttl: int | None = None,
    read_delay: float | None = 0.0,
    consistency: str | None = None,
) -> Queue:
    """Creates a queue. Its read delay is 0 unless given, so that a store with a clock's horizon shows its messages."""
    spec = QueueSpec(partitions=partitions, ttl=ttl, read_delay=read_delay, consistency=consistency)
    queue, created = store.create_queue(application, name or fresh_name(), spec)
    assert created
    return queue


def new(
    body: str | bytes = "x",
    *,
    partition: int = 1,
    ttl: int = 3600,
    delay: float = 0.0,
    meta: Meta | None = None,
    kept: bool = False,
) -> NewMessage:
    """A message to be stored."""
    return NewMessage(body, partition, ttl, meta, delay, kept)


def say(store: Store, queue: Queue, *bodies: str | bytes, partition: int = 1, ttl: int = 3600) -> list[Position]:
    """Appends messages in one call."""
    return store.append(queue, [new(body, partition=partition, ttl=ttl) for body in bodies])


def begun(
    store: Store, queue: Queue, items: Sequence[NewMessage], *, after: Position | None = None
) -> Future[list[Position]]:
    """Starts an append without waiting for it; the future fails if it is answered twice."""
    future: Future[list[Position]] = Future()

    def done(found: list[Position] | None, error: BaseException | None) -> None:
        if error is not None:
            future.set_exception(error)
        elif found is not None:
            future.set_result(found)

    store.begin_append(queue, items, done, after=after)
    return future


def begun_entry(
    store: Store, queue: Queue, entry: LogEntry, partition: int = 1, **named: int | None
) -> Future[bool | None]:
    """Starts an append to a claim log; the future fails if it is answered twice."""
    return _future(lambda done: store.begin_append_entry(queue, partition, entry, done, **named))


def begun_once(store: Store, queue: Queue, items: Sequence[NewMessage], key: PostKey) -> Future[PostResult | None]:
    """Starts a post without waiting for it; the future fails if it is answered twice."""
    return _future(lambda done: store.begin_append_once(queue, items, key, done))


def _future(begin: Callable[[Callable[[Any, Exception | None], None]], object]) -> Future[Any]:
    future: Future[Any] = Future()

    def done(result: object, error: Exception | None) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    begin(done)
    return future


def enter(store: Store, queue: Queue, entry: LogEntry, partition: int = 1, **named: int | None) -> bool | None:
    """Appends to a claim log, and sends the same entry again while it is in doubt."""
    doubted = False
    while True:
        try:
            return begun_entry(store, queue, entry, partition, **named).result(60)
        except StoreUnavailable as error:
            doubted = doubted or error.outcome == "unknown"
            if not doubted:
                raise


def outbox(claims: ClaimUseCases, access: QueueAccess) -> dict[int, int]:
    """Messages of each partition that are about to become dead letters."""
    looking = access.apply(lambda queue: claims.look_at(queue, lambda state, _expired: len(state.outbox)))
    return claims.core.run(looking)


def whole(partition: int = 1) -> Slice:
    """A slice that holds everything a test writes into a partition."""
    return Slice(partition=partition, limit=1_000_000, max_bytes=1 << 40)


def read_one(store: Store, queue: Queue, part: Slice) -> Page:
    """Reads one slice."""
    (page,) = store.read(queue, [part])
    return page


def shown(store: Store, queue: Queue, partition: int = 1) -> list[Message]:
    """What a range read of a whole partition shows."""
    return read_one(store, queue, whole(partition)).messages


def shown_bodies(store: Store, queue: Queue, partition: int = 1) -> list[str | bytes]:
    """The bodies that a range read of a whole partition shows."""
    return [message.body for message in shown(store, queue, partition)]


def pages(store: Store, queue: Queue, part: Slice, sizes: Iterator[int] | None = None) -> Iterator[Page]:
    """Follows the chain of pages that begins with a slice until a page says that there is no more.

    Args:
        store: Where to read.
        queue: What to read.
        part: The first slice.
        sizes: The limit of each further page; the first slice's own if not given.
    """
    while True:
        page = read_one(store, queue, part)
        yield page
        if not page.more or page.next is None:
            return
        limit = next(sizes) if sizes is not None else part.limit
        if part.descending:
            part = structs.replace(part, upper=ids.following(page.next), limit=limit)
        else:
            part = structs.replace(part, lower=page.next, limit=limit)


def positions(messages: Sequence[Message]) -> list[Position]:
    """The positions of messages."""
    return [message.position for message in messages]


def bodies(messages: Sequence[Message]) -> list[str | bytes]:
    """The bodies of messages."""
    return [message.body for message in messages]


def eventually(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Asks again and again until something holds that a store promises for a little later."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def becomes_healthy(store: Store) -> bool:
    """Waits until a ping is good: on a busy machine the first comparisons of the clock are inexact."""

    def healthy() -> bool:
        try:
            store.ping()
        except StoreUnavailable:
            return False
        return True

    return eventually(healthy)


def at_once(call: Callable[[A], T], arguments: Iterable[A]) -> list[T]:
    """Calls a function with each argument on a thread of its own, all at once; returns the results in order."""
    given = list(arguments)
    barrier = threading.Barrier(len(given))

    def run(argument: A) -> T:
        barrier.wait(PATIENCE_SECONDS)
        return call(argument)

    with ThreadPoolExecutor(len(given)) as pool:
        return list(pool.map(run, given))
