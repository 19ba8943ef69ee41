"""Queues and messages for the contract suite, and helpers to read them."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, ParamSpec, TypeVar

from msgspec import structs

from queuey.access.queue_access import QueueAccess
from queuey.app.service import Service
from queuey.claims.claims import ClaimUseCases
from queuey.model import ids
from queuey.model.deadletters import queue_for
from queuey.model.errors import Outcome, QueueNotFound, StoreUnavailable
from queuey.model.ids import Position
from queuey.model.messages import (
    LogEntry,
    Message,
    Meta,
    NewMessage,
    Page,
    PostKey,
    PostResult,
    Queue,
    QueueSpec,
    Slice,
)
from queuey.storage import Store, bridge
from queuey.storage.deadlines import GivenUp
from tests.backends import APP
from tests.interposed_store import CONTRACTS
from tests.waiting import PATIENCE_SECONDS

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")
_numbers = itertools.count(1)


def fresh_name() -> str:
    return f"queue-{next(_numbers)}"


def make_queue(store: Store, name: str | None = None, *, application: str = APP, **fields: Any) -> Queue:  # noqa: ANN401
    """Creates a queue, which must be new.

    Its read delay is 0 unless given, so that a store with a clock's horizon shows its messages.
    """
    spec = QueueSpec(**{"read_delay": 0.0} | fields)
    queue, created = bridge.run(store.catalogue.create_queue(application, name or fresh_name(), spec))
    assert created
    return queue


def run_call(call: Callable[P, Coroutine[Any, Any, T]], *arguments: P.args, **named: P.kwargs) -> T:
    return bridge.run(call(*arguments, **named))


def method_of(store: Store, method: Callable[..., Any]) -> Callable[..., Any]:
    owner, _, name = method.__qualname__.partition(".")
    bound_method: Callable[..., Any] = getattr(getattr(store, CONTRACTS[owner]), name)
    return bound_method


def new_message(
    body: str | bytes = "x",
    *,
    partition: int = 1,
    ttl: int = 3600,
    delay: float = 0.0,
    meta: Meta | None = None,
    kept: bool = False,
) -> NewMessage:
    return NewMessage(body, partition, ttl, meta, delay, kept)


def append_bodies(
    store: Store, queue: Queue, *bodies: str | bytes, partition: int = 1, ttl: int = 3600
) -> list[Position]:
    return bridge.run(
        store.messages.append(queue, [new_message(body, partition=partition, ttl=ttl) for body in bodies])
    )


def fill_queue(store: Store, *bodies: str | bytes, partitions: int = 1, read_delay: float | None = 0.0) -> Queue:
    """Creates a queue with messages in its first partition."""
    queue = make_queue(store, partitions=partitions, read_delay=read_delay)
    append_bodies(store, queue, *bodies)
    return queue


class BegunCall(Future[T]):
    """The result of a call that was begun.

    Attributes:
        task: Awaits the result.
    """

    task: asyncio.Task[None]

    def give_up(self) -> Outcome | None:
        """Cancels the call; returns whether it may have changed something, or None if it had a result before."""
        _background().call_soon_threadsafe(self.task.cancel)
        error = self.exception(PATIENCE_SECONDS)
        assert error is None or isinstance(error, GivenUp), error
        return None if error is None else error.outcome


def begin(call: Coroutine[Any, Any, T]) -> BegunCall[T]:
    """Begins a call on a loop in another thread, and returns when it waits or has ended."""
    begun: BegunCall[T] = BegunCall()
    waits = threading.Event()

    async def run() -> None:
        try:
            begun.set_result(await call)
        except Exception as error:  # noqa: BLE001 - the test gets it
            begun.set_exception(error)

    def start() -> None:
        begun.task = _background().create_task(run())
        _background().call_soon(waits.set)

    _background().call_soon_threadsafe(start)
    assert waits.wait(PATIENCE_SECONDS)
    return begun


@cache
def _background() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="begun-calls", daemon=True).start()
    return loop


def start_append(
    store: Store, queue: Queue, items: Sequence[NewMessage], *, after: Position | None = None
) -> BegunCall[list[Position]]:
    return begin(store.messages.append(queue, items, after=after))


def begin_entry(
    store: Store, queue: Queue, entry: LogEntry, partition: int = 1, **named: int | None
) -> BegunCall[bool]:
    return begin(store.claim_logs.append_entry(queue, partition, entry, **named))


def begin_post(store: Store, queue: Queue, items: Sequence[NewMessage], key: PostKey) -> BegunCall[PostResult]:
    return begin(store.keyed_posts.append_once(queue, items, key))


def append_log_entry(store: Store, queue: Queue, entry: LogEntry, partition: int = 1, **named: int | None) -> bool:
    """Appends to a claim log, and repeats the entry while it is in doubt. Returns whether it was applied.

    Raises StoreUnavailable if no attempt was in doubt.
    """
    doubted = False
    while True:
        try:
            return bridge.run(store.claim_logs.append_entry(queue, partition, entry, **named))
        except StoreUnavailable as error:
            doubted = doubted or error.outcome == "unknown"
            if not doubted:
                raise


def count_outbox(claims: ClaimUseCases, access: QueueAccess) -> dict[int, int]:
    """Returns how many messages of each partition are about to become dead letters."""
    looking = access.apply(lambda queue: claims.logs.query_states(queue, lambda state, _limit: len(state.outbox)))
    return claims.core.run(looking)


def whole_partition(partition: int = 1) -> Slice:
    return Slice(partition=partition, limit=1_000_000, max_bytes=1 << 40)


def read_one(store: Store, queue: Queue, part: Slice) -> Page:
    (page,) = bridge.run(store.messages.read(queue, [part]))
    return page


def messages_in_partition(store: Store, queue: Queue, partition: int = 1) -> list[Message]:
    return read_one(store, queue, whole_partition(partition)).messages


def bodies_in_partition(store: Store, queue: Queue, partition: int = 1) -> list[str | bytes]:
    return [message.body for message in messages_in_partition(store, queue, partition)]


def pages(store: Store, queue: Queue, part: Slice, sizes: Iterator[int] | None = None) -> Iterator[Page]:
    """Follows a chain of pages from a slice until a page says that there are no more messages.

    Args:
        store: The store to read.
        queue: The queue to read.
        part: The first slice.
        sizes: The limit of each further page; by default that of the first slice.
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


def dead_letters(store: Store, queue: Queue) -> list[Message]:
    try:
        letters = bridge.run(store.catalogue.queue(APP, queue_for(queue.name), fresh=True))
    except QueueNotFound:
        return []
    return read_one(store, letters, structs.replace(whole_partition(), keeps_read_delay=False)).messages


def idle_service(store: Store) -> Service:
    """Returns a service that takes no steps of records by itself."""
    stopping = threading.Event()
    stopping.set()
    return Service(store, stopping=stopping)


def positions(messages: Sequence[Message]) -> list[Position]:
    return [message.position for message in messages]


def bodies(messages: Sequence[Message]) -> list[str | bytes]:
    return [message.body for message in messages]


def eventually(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def becomes_healthy(store: Store) -> bool:
    def healthy() -> bool:
        try:
            bridge.run(store.ping())
        except StoreUnavailable:
            return False
        return True

    return eventually(healthy)


def call_concurrently(call: Callable[[A], T], arguments: Iterable[A]) -> list[T]:
    """Calls with all arguments at the same time, each in a thread; returns the results in their order."""
    values = list(arguments)
    barrier = threading.Barrier(len(values))

    def run(argument: A) -> T:
        barrier.wait(PATIENCE_SECONDS)
        return call(argument)

    with ThreadPoolExecutor(len(values)) as pool:
        return list(pool.map(run, values))
