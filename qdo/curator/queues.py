"""The four queues whose nodes hold envelopes: their common base class, their subclasses, and their builder."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, NamedTuple, Self, TypeVar

from qdo.curator.backlog import NodeBacklog
from qdo.curator.bridge import await_within, count_children, create_missing_nodes, open_borrowed_link, run
from qdo.curator.consumption import Consumption
from qdo.curator.lifecycle import Lifecycle, State
from qdo.curator.nodes import DELAY, IDS, PRIORITY, QUEUE, Child, RecipeNodes, max_node_bytes
from qdo.curator.options import CuratorOptions
from qdo.curator.puts import Puts
from qdo.errors import CuratorError, InvalidArgument, QdoError
from qdo.group.zookeeper.link import BorrowedLink
from qdo.group.zookeeper.tree import Applied, Change, Create, Delete
from qdo.group.zookeeper.tree import State as LinkState
from qdo.loops import start_task

T = TypeVar("T")

log = logging.getLogger("qdo.curator")


class StartedQueue(NamedTuple):
    """The parts of a started queue; a put-only queue has no consumption."""

    link: BorrowedLink
    puts: Puts
    consumption: Consumption | None


class CuratorQueue(Generic[T]):
    """The base class of the four queues. A queue object can be started and closed once.

    Args:
        options: The options of the queue; see :class:`~qdo.curator.options.CuratorOptions`.
        refresh: See :class:`~qdo.curator.backlog.NodeBacklog`.
    """

    names: ClassVar[RecipeNodes]

    def __init__(self, options: CuratorOptions[T], refresh: int | None = None) -> None:
        self._options = options
        self._refresh = refresh
        self._lifecycle = Lifecycle(options.path, options.on_state)
        self._token = f"consumer-{uuid.uuid4().hex}"
        self._transition_lock = asyncio.Lock()
        self._running: StartedQueue | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def path(self) -> str:
        """Path of the queue's node."""
        return self._options.path

    @property
    def state(self) -> State:
        """``latent``, ``started``, ``suspended``, ``lost`` or ``closed``; see :class:`DistributedQueue`."""
        return self._lifecycle.state

    def start(self) -> None:
        """Creates the queue's nodes if they are missing, and begins to take messages if there is a consumer.

        Raises:
            InvalidArgument: The queue was started before, or the client is not connected.
            CoordinationError: ZooKeeper did not answer or refused. The queue can be started again.
        """
        run(self._start())

    def flush_puts(self, timeout: float | None = None) -> bool:
        """Waits until all background puts are stored.

        Args:
            timeout: Seconds to wait; waits without limit if None.

        Returns:
            False if some puts are not stored after the timeout.

        Raises:
            PutFailed: Some puts have failed since the last call. Its ``messages`` can be put again. Messages whose
                answer was lost may be stored nevertheless.
        """
        return self._running is None or self._running.puts.flush(timeout)

    def message_count(self) -> int:
        """Returns the number of the queue's nodes. A node may hold several messages.

        Raises:
            CoordinationError: ZooKeeper did not answer or refused.
        """
        return run(await_within(self._options.answer_timeout, self._count()))

    def close(self, timeout: float = 30.0) -> bool:
        """Closes the queue: flushes background puts, takes no further message, and finishes messages in hand.

        A consumer may close its own queue; its message is finished afterwards. A second call waits once more for
        unfinished messages.

        Args:
            timeout: Seconds to wait for messages in hand.

        Returns:
            False if some messages are not finished, or some puts were not stored in ``final_flush`` seconds.

        Raises:
            PutFailed: As in :meth:`flush_puts`. The queue is closed nevertheless.
        """
        run(self._close())
        flushed = True
        try:
            if self._options.final_flush:
                flushed = self.flush_puts(self._options.final_flush)
        finally:
            consumption = self._running and self._running.consumption
            finished = consumption is None or run(consumption.join(threading.current_thread(), timeout))
        return flushed and finished

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _start(self) -> None:
        options = self._options
        async with self._transition_lock:
            if self.state != "latent":
                raise InvalidArgument(f"queue {self.path} was started before; build another one")
            if not options.client.connected:
                raise InvalidArgument("the client of ZooKeeper is not connected; call client.start() first")
            link = BorrowedLink(options.client)
            puts, consumption = Puts(self._lifecycle, link, options, self._report), None
            if options.consumer is not None:
                backlog = NodeBacklog(self.names, self._refresh)
                consumption = Consumption(self._lifecycle, link, options, backlog, self._token, self._report)
            running = StartedQueue(link, puts, consumption)
            try:
                await await_within(options.answer_timeout, self._open_link_and_create_nodes(running))
            except BaseException:
                await link.close()
                raise
            self._running = running
            link.on_state = partial(self._on_link_state, running)
            self._lifecycle.handle("start")
            self._lifecycle.on_link_state(link.state)
            if running.consumption is not None:
                link.on_watch = running.consumption.handle_changes
                running.consumption.start()
                if options.election is not None:
                    options.election.listen(running.consumption.wake)

    async def _open_link_and_create_nodes(self, running: StartedQueue) -> None:
        await running.link.open()
        await create_missing_nodes(running.link, filter(None, (self.path, self._options.lock_path)))
        if running.consumption is not None:
            await running.consumption.begin()

    async def _count(self) -> int:
        async with open_borrowed_link(self._options.client) as link:
            return await count_children(link, self.path)

    async def _close(self) -> None:
        async with self._transition_lock:
            if self._lifecycle.handle("close") and self._running is not None:
                self._running.puts.wake()
                start_task(self._retire(self._running), self._tasks)

    async def _retire(self, running: StartedQueue) -> None:
        if running.consumption is not None:
            await running.consumption.end()
            if self._options.election is not None:
                self._options.election.unlisten(running.consumption.wake)
        await running.puts.wait_until_answered()
        await running.link.close()

    def _on_link_state(self, running: StartedQueue, state: LinkState) -> None:
        if running.consumption is not None:
            running.consumption.on_link_state(state)
        self._lifecycle.on_link_state(state)
        running.puts.wake()
        running.puts.send()

    def _put(self, prefix: str, messages: Iterable[T], timeout: float | None) -> bool:
        self._lifecycle.require_usable()
        kept: list[T] = []
        data = self._options.serializer.write(
            _record_consumed(messages, kept), max_node_bytes(self._options.node_limit, self.path, prefix)
        )
        assert self._running is not None  # noqa: S101 - it was started
        return self._running.puts.put(prefix, kept, data, timeout)

    def _report(self, error: QdoError) -> None:
        log.warning("%s", error, exc_info=error.__cause__ if isinstance(error, CuratorError) else None)
        if self._options.on_error is not None:
            try:
                self._options.on_error(error)
            except Exception:
                log.exception("the function on_error failed")


def _record_consumed(messages: Iterable[T], into: list[T]) -> Iterator[T]:
    """Yields messages, of which there may be infinitely many, and appends those consumed to ``into``."""
    for message in messages:
        into.append(message)
        yield message


class DistributedQueue(CuratorQueue[T]):
    """A queue that delivers messages in the order in which they were put.

    One consumer with one thread handles messages in order, except for messages that failed and were put back. With
    several consumers, one of them at a time holds each message.

    ::

        from kazoo.client import KazooClient
        from qdo.curator import TEXT, QueueBuilder

        client = KazooClient("127.0.0.1:2181")
        client.start()
        builder = QueueBuilder(client, print, TEXT, "/queues/orders", lock_path="/queues/orders-locks")
        with builder.build_queue() as queue:
            queue.put("an apple")
            queue.put_multi(["two eggs", "bread"])
            queue.flush_puts()
        client.stop()
        client.close()

    Its states, which ``state`` returns and ``on_state`` receives:

    ==========  =====================================================  ============================================
    state       begins when                                            a message in hand
    ==========  =====================================================  ============================================
    latent      the object is created                                  does not exist
    started     ``start()`` is called; or ``reconnected``: the         is removed when the consumer has returned, or
                connection is back within the session                  put back after a pause when it raised an error
    suspended   the connection breaks; no message is begun             is removed once the connection is back
    lost        the session has ended; final                           stays in the queue, and somebody else takes
                                                                       it: it may be handled twice
    closed      ``close()`` is called; final                           as in started
    ==========  =====================================================  ============================================
    """

    names = QUEUE

    def put(self, item: T, *, timeout: float | None = None) -> bool:
        """Puts a message at the end.

        Args:
            item: The message.
            timeout: Seconds to wait for room in a queue with ``max_items``, or for room among background puts, of
                which 10,000 or 32 MiB may be pending. Waits without limit if None.

        Returns:
            False if there was no room in time; nothing was put.

        Raises:
            InvalidArgument: The message cannot be serialized, or is too large for a node. Nothing was put.
            QueueStopped: The queue was not started, is closed, or has lost its session. Nothing was put.
            CoordinationLost: Only without ``put_in_background``: the message may have been stored or not.
            CoordinationError: Only without ``put_in_background``: the message was not stored.
        """
        return self._put(QUEUE.prefix(), [item], timeout)

    def put_multi(self, items: Iterable[T], *, timeout: float | None = None) -> bool:
        """Puts messages in one node. A consumer takes, removes and puts back the node as a whole.

        Arguments, result and errors are those of :meth:`put`.
        """
        return self._put(QUEUE.prefix(), items, timeout)


class DistributedPriorityQueue(CuratorQueue[T]):
    """A queue that delivers messages by priority, the smallest number first; within a priority in the order of puts.

    Up to ``min_items_before_refresh`` waiting messages may be delivered before a newer one with a smaller number, see
    :meth:`~qdo.curator.QueueBuilder.build_priority_queue`. A failed message keeps its priority.

    ::

        from kazoo.client import KazooClient
        from qdo.curator import TEXT, QueueBuilder

        client = KazooClient("127.0.0.1:2181")
        client.start()
        builder = QueueBuilder(client, print, TEXT, "/queues/urgent", lock_path="/queues/urgent-locks")
        with builder.build_priority_queue() as queue:
            queue.put("an apple", 5)
            queue.put("fire", -1)
        client.stop()
        client.close()
    """

    names = PRIORITY

    def put(self, item: T, priority: int, *, timeout: float | None = None) -> bool:
        """Puts a message.

        Args:
            item: The message.
            priority: From -2147483648 to 2147483647; the smallest comes first.
            timeout: See :meth:`DistributedQueue.put`, also for result and errors.

        Raises:
            InvalidArgument: Also if the priority is out of range.
        """
        return self._put(PRIORITY.prefix(priority), [item], timeout)

    def put_multi(self, items: Iterable[T], priority: int, *, timeout: float | None = None) -> bool:
        """Puts messages of one priority in one node; see :meth:`DistributedQueue.put_multi`."""
        return self._put(PRIORITY.prefix(priority), items, timeout)


class DistributedDelayQueue(CuratorQueue[T]):
    """A queue that delivers each message at its time or later, the earliest first.

    The consumer's clock decides. A failed message keeps its time.

    ::

        import time
        from kazoo.client import KazooClient
        from qdo.curator import TEXT, QueueBuilder

        client = KazooClient("127.0.0.1:2181")
        client.start()
        builder = QueueBuilder(client, print, TEXT, "/queues/later", lock_path="/queues/later-locks")
        with builder.build_delay_queue() as queue:
            queue.put("in a minute", int((time.time() + 60) * 1000))
        client.stop()
        client.close()
    """

    names = DELAY

    def put(self, item: T, delay_until_epoch: int, *, timeout: float | None = None) -> bool:
        """Puts a message.

        Args:
            item: The message.
            delay_until_epoch: The earliest time of delivery, in ms since 1970.
            timeout: See :meth:`DistributedQueue.put`, also for result and errors.

        Raises:
            InvalidArgument: Also if the time is below 1 or above 2**63 - 1.
        """
        return self._put(DELAY.prefix(delay_until_epoch), [item], timeout)

    def put_multi(self, items: Iterable[T], delay_until_epoch: int, *, timeout: float | None = None) -> bool:
        """Puts messages with the same time in one node; see :meth:`DistributedQueue.put_multi`."""
        return self._put(DELAY.prefix(delay_until_epoch), items, timeout)


class DistributedIdQueue(CuratorQueue[T]):
    """A queue that delivers messages in the order of puts, and can remove waiting messages by id.

    ::

        from kazoo.client import KazooClient
        from qdo.curator import TEXT, QueueBuilder

        client = KazooClient("127.0.0.1:2181")
        client.start()
        queue = QueueBuilder(client, None, TEXT, "/queues/jobs", lock_path="/queues/jobs-locks").build_id_queue()
        queue.start()
        queue.put("an apple", "order/17")
        queue.flush_puts()
        assert queue.remove("order/17") == 1
        queue.close()
        client.stop()
        client.close()
    """

    names = IDS

    def put(self, item: T, item_id: str, *, timeout: float | None = None) -> bool:
        """Puts a message.

        Args:
            item: The message.
            item_id: 1 to 1024 characters. Several messages may have the same id. ``/`` and ``|`` count as ``_``.
            timeout: See :meth:`DistributedQueue.put`, also for result and errors.

        Raises:
            InvalidArgument: Also if the id cannot be part of a node's name.
        """
        return self._put(IDS.prefix(item_id), [item], timeout)

    def remove(self, item_id: str) -> int:
        """Removes the messages with an id that no consumer holds. Needs the lock path if the queue has one.

        Returns:
            The number of removed nodes.

        Raises:
            InvalidArgument: The id is not valid.
            QueueStopped: The queue was not started, is closed, or has lost its session.
            CoordinationError: ZooKeeper did not answer or refused. Some messages may have been removed.
        """
        self._lifecycle.require_usable()
        return run(await_within(self._options.answer_timeout, self._remove(IDS.replace_separators(item_id))))

    async def _remove(self, name: str) -> int:
        assert self._running is not None  # noqa: S101 - it was started
        link = self._running.link
        await link.open()
        (names,) = await link.children([self.path])
        children = [child for child in IDS.in_order(names or ()) if child.id == name]
        return sum(isinstance(outcome, Applied) for outcome in await link.apply(map(self._make_removal, children)))

    def _make_removal(self, child: Child) -> Change:
        """Returns the transaction that removes a node. With a lock path it fails if a consumer holds the node."""
        removal = Delete(f"{self.path}/{child.name}")
        if self._options.lock_path is None:
            return (removal,)
        lock = f"{self._options.lock_path}/{child.name}"
        return (Create(lock, self._token.encode(), ephemeral=True), removal, Delete(lock))


@dataclass(frozen=True)
class QueueBuilder(CuratorOptions[T]):
    """Builds queues; the attributes are those of :class:`qdo.curator.options.CuratorOptions`.

    ::

        from kazoo.client import KazooClient
        from qdo.curator import BYTES, QueueBuilder

        client = KazooClient("127.0.0.1:2181")
        client.start()
        producer = QueueBuilder(client, None, BYTES, "/queues/orders", put_in_background=False).build_queue()
        producer.start()
        producer.put(b"an apple")
        producer.close()
        client.stop()
        client.close()

    Raises:
        InvalidArgument: A value cannot be used.
    """

    def build_queue(self) -> DistributedQueue[T]:
        """Returns a queue that delivers in the order of puts, not started."""
        return DistributedQueue(self)

    def build_id_queue(self) -> DistributedIdQueue[T]:
        """Returns a queue whose messages can be removed by an id, not started."""
        return DistributedIdQueue(self)

    def build_priority_queue(self, min_items_before_refresh: int = 0) -> DistributedPriorityQueue[T]:
        """Returns a queue whose messages have priorities, not started.

        Args:
            min_items_before_refresh: Number of nodes taken from one listing of the queue before it is listed again,
                if it has changed, to find nodes with a smaller number. 0 means a hundredth of the listed nodes, at
                least 1.

        Raises:
            InvalidArgument: The number is negative.
        """
        if min_items_before_refresh < 0:
            raise InvalidArgument(f"min_items_before_refresh is 0 or more, not {min_items_before_refresh}")
        return DistributedPriorityQueue(self, min_items_before_refresh)

    def build_delay_queue(self) -> DistributedDelayQueue[T]:
        """Returns a queue that delivers each message at its time or later, not started."""
        return DistributedDelayQueue(self)
