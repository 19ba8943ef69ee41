"""The four queues whose nodes are envelopes: what they have in common, what their names add, and their builder."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, NamedTuple, Self, TypeVar

from qdo.coordination.tree import Applied, Change, Create, Delete
from qdo.coordination.tree import State as LinkState
from qdo.coordination.zookeeper.driver.link import BorrowedLink
from qdo.curator.backlog import Backlog
from qdo.curator.bridge import count, ensure, lent, run, within
from qdo.curator.consumption import Consumption
from qdo.curator.lifecycle import Lifecycle, State
from qdo.curator.nodes import DELAY, IDS, PRIORITY, QUEUE, Child, Names, largest
from qdo.curator.options import QueueOptions
from qdo.curator.puts import Puts
from qdo.errors import CuratorError, InvalidArgument, QdoError
from qdo.tasks import start

T = TypeVar("T")

log = logging.getLogger("qdo.curator")


class Running(NamedTuple):
    """What a queue has from its start on; a put-only one has no consumption."""

    link: BorrowedLink
    puts: Puts
    consumption: Consumption | None


class CuratorQueue(Generic[T]):
    """The common part of the four queues. A queue object is used once: started, and closed.

    Args:
        options: See there.
        refresh: See :class:`~qdo.curator.backlog.Backlog`.
    """

    names: ClassVar[Names]

    def __init__(self, options: QueueOptions[T], refresh: int | None = None) -> None:
        self._options = options
        self._refresh = refresh
        self._lifecycle = Lifecycle(options.path, options.on_state)
        self._token = f"consumer-{uuid.uuid4().hex}"
        self._turning = asyncio.Lock()
        self._running: Running | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def path(self) -> str:
        """The queue's node."""
        return self._options.path

    @property
    def state(self) -> State:
        """``latent``, ``started``, ``suspended``, ``lost`` or ``closed``; see :class:`DistributedQueue`."""
        return self._lifecycle.state

    def start(self) -> None:
        """Makes the queue's nodes if they are missing, and begins to take messages if there is a consumer.

        Raises:
            InvalidArgument: It was started before, or the client is not connected.
            CoordinationError: ZooKeeper did not answer or refused; it can be started again.
        """
        run(self._start())

    def flush_puts(self, timeout: float | None = None) -> bool:
        """Waits until all puts in the background are stored.

        Args:
            timeout: Seconds; None: as long as it takes.

        Returns:
            False: they are not yet.

        Raises:
            PutFailed: Some have failed since the last call. Its ``messages`` can be put again; those whose answer was
                lost may be stored all the same.
        """
        return self._running is None or self._running.puts.flush(timeout)

    def message_count(self) -> int:
        """Returns how many nodes the queue has now. A node may hold several messages.

        Raises:
            CoordinationError: ZooKeeper did not answer or refused.
        """
        return run(within(self._options.answer_timeout, self._count()))

    def close(self, timeout: float = 30.0) -> bool:
        """Ends it: puts in the background are flushed, no further message is taken, those in hand are finished.

        A consumer may close its own queue; its message is finished afterwards. A queue may be closed again, to wait
        once more for unfinished messages.

        Args:
            timeout: Seconds to wait for messages in hand.

        Returns:
            False: there are still some, or puts that were not stored in ``final_flush`` seconds.

        Raises:
            PutFailed: As :meth:`flush_puts`; the queue is closed all the same.
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
        async with self._turning:
            if self.state != "latent":
                raise InvalidArgument(f"queue {self.path} was started before; build another one")
            if not options.client.connected:
                raise InvalidArgument("the client of ZooKeeper is not connected; call client.start() first")
            link = BorrowedLink(options.client)
            puts, consumption = Puts(self._lifecycle, link, options, self._report), None
            if options.consumer is not None:
                backlog = Backlog(self.names, self._refresh)
                consumption = Consumption(self._lifecycle, link, options, backlog, self._token, self._report)
            running = Running(link, puts, consumption)
            try:
                await within(options.answer_timeout, self._prepare(running))
            except BaseException:
                await link.close()
                raise
            self._running = running
            link.on_state = partial(self._turn, running)
            self._lifecycle.happened("start")
            self._lifecycle.hear(link.state)
            if running.consumption is not None:
                link.on_watch = running.consumption.changed
                running.consumption.start()
                if options.election is not None:
                    options.election.listen(running.consumption.look_again)

    async def _prepare(self, running: Running) -> None:
        await running.link.open()
        await ensure(running.link, filter(None, (self.path, self._options.lock_path)))
        if running.consumption is not None:
            await running.consumption.begin()

    async def _count(self) -> int:
        async with lent(self._options.client) as link:
            return await count(link, self.path)

    async def _close(self) -> None:
        async with self._turning:
            if self._lifecycle.happened("close") and self._running is not None:
                self._running.puts.wake()
                start(self._retire(self._running), self._tasks)

    async def _retire(self, running: Running) -> None:
        """Gives the link back when nothing of a closed queue is under way."""
        if running.consumption is not None:
            await running.consumption.end()
            if self._options.election is not None:
                self._options.election.unlisten(running.consumption.look_again)
        await running.puts.stored()
        await running.link.close()

    def _turn(self, running: Running, state: LinkState) -> None:
        if running.consumption is not None:
            running.consumption.heard(state)
        self._lifecycle.hear(state)
        running.puts.wake()
        running.puts.send()

    def _put(self, prefix: str, messages: Iterable[T], timeout: float | None) -> bool:
        self._lifecycle.require()
        given: list[T] = []
        data = self._options.serializer.write(
            _kept(messages, given), largest(self._options.node_limit, self.path, prefix)
        )
        assert self._running is not None  # noqa: S101 - it was started
        return self._running.puts.put(prefix, given, data, timeout)

    def _report(self, error: QdoError) -> None:
        log.warning("%s", error, exc_info=error.__cause__ if isinstance(error, CuratorError) else None)
        if self._options.on_error is not None:
            try:
                self._options.on_error(error)
            except Exception:
                log.exception("the function that was to hear of an error failed")


def _kept(messages: Iterable[T], into: list[T]) -> Iterator[T]:
    """Yields messages, which may have no end, and keeps those that were asked for."""
    for message in messages:
        into.append(message)
        yield message


class DistributedQueue(CuratorQueue[T]):
    """A queue in the order in which messages were put.

    One consumer with one thread handles messages in order, except for those that failed and were put back. With
    several consumers each message is in the hands of one of them at a time.

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

    Its states, which ``state`` tells and ``on_state`` hears of:

    ==========  =====================================================  ============================================
    state       begins when                                            a message in hand then
    ==========  =====================================================  ============================================
    latent      the object is made                                     there is none
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
            timeout: Seconds to wait for room in a queue with ``max_items``, or for room among the puts in the
                background, of which 10,000 or 32 MiB may be under way; None: as long as it takes.

        Returns:
            False: there was no room in time; nothing was put.

        Raises:
            InvalidArgument: It cannot be serialized, or is too large for a node. Nothing was put.
            QueueStopped: The queue was not started, is closed, or has lost its session. Nothing was put.
            CoordinationLost: Without ``put_in_background`` only: whether it was stored is not known.
            CoordinationError: Without ``put_in_background`` only: it was not stored.
        """
        return self._put(QUEUE.prefix(), [item], timeout)

    def put_multi(self, items: Iterable[T], *, timeout: float | None = None) -> bool:
        """Puts messages in one node, which one consumer takes, removes and puts back as a whole.

        Arguments, result and errors are those of :meth:`put`.
        """
        return self._put(QUEUE.prefix(), items, timeout)


class DistributedPriorityQueue(CuratorQueue[T]):
    """A queue whose messages with the smallest number come first; of one number, in the order in which they were put.

    A message that is put while others wait may be preceded by as many as ``min_items_before_refresh`` says, see
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
            InvalidArgument: Also for another priority.
        """
        return self._put(PRIORITY.prefix(priority), [item], timeout)

    def put_multi(self, items: Iterable[T], priority: int, *, timeout: float | None = None) -> bool:
        """Puts messages of one priority in one node; see :meth:`DistributedQueue.put_multi`."""
        return self._put(PRIORITY.prefix(priority), items, timeout)


class DistributedDelayQueue(CuratorQueue[T]):
    """A queue whose messages can be taken from an instant on, the earliest first.

    The consumer's clock decides. A failed message keeps its instant.

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
            delay_until_epoch: The instant from which it can be taken, in ms since 1970.
            timeout: See :meth:`DistributedQueue.put`, also for result and errors.

        Raises:
            InvalidArgument: Also for an instant below 1 or above 2**63 - 1.
        """
        return self._put(DELAY.prefix(delay_until_epoch), [item], timeout)

    def put_multi(self, items: Iterable[T], delay_until_epoch: int, *, timeout: float | None = None) -> bool:
        """Puts messages of one instant in one node; see :meth:`DistributedQueue.put_multi`."""
        return self._put(DELAY.prefix(delay_until_epoch), items, timeout)


class DistributedIdQueue(CuratorQueue[T]):
    """A queue in the order in which messages were put, whose messages have ids and can be removed by them.

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
            item_id: 1 to 1024 characters. Several messages may have the same. ``/`` and ``|`` count as ``_``.
            timeout: See :meth:`DistributedQueue.put`, also for result and errors.

        Raises:
            InvalidArgument: Also for an id that cannot be part of a node's name.
        """
        return self._put(IDS.prefix(item_id), [item], timeout)

    def remove(self, item_id: str) -> int:
        """Removes the messages with an id that are in nobody's hands. Needs the lock path if the queue has one.

        Returns:
            How many were removed.

        Raises:
            InvalidArgument: No message can have this id.
            QueueStopped: The queue was not started, is closed, or has lost its session.
            CoordinationError: ZooKeeper did not answer or refused; some may have been removed.
        """
        self._lifecycle.require()
        return run(within(self._options.answer_timeout, self._remove(IDS.fixed(item_id))))

    async def _remove(self, name: str) -> int:
        assert self._running is not None  # noqa: S101 - it was started
        link = self._running.link
        await link.open()
        (names,) = await link.children([self.path])
        found = [child for child in IDS.in_order(names or ()) if child.id == name]
        return sum(isinstance(outcome, Applied) for outcome in await link.apply(map(self._removal, found)))

    def _removal(self, child: Child) -> Change:
        """Returns what removes a node unless it is locked: the lock can be made and removed then."""
        removal = Delete(f"{self.path}/{child.name}")
        if self._options.lock_path is None:
            return (removal,)
        lock = f"{self._options.lock_path}/{child.name}"
        return (Create(lock, self._token.encode(), ephemeral=True), removal, Delete(lock))


@dataclass(frozen=True)
class QueueBuilder(QueueOptions[T]):
    """Builds queues; the attributes are those of :class:`qdo.curator.options.QueueOptions`.

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
        """Returns a queue in the order of puts, not started."""
        return DistributedQueue(self)

    def build_id_queue(self) -> DistributedIdQueue[T]:
        """Returns a queue whose messages can be removed by an id, not started."""
        return DistributedIdQueue(self)

    def build_priority_queue(self, min_items_before_refresh: int = 0) -> DistributedPriorityQueue[T]:
        """Returns a queue whose messages have priorities, not started.

        Args:
            min_items_before_refresh: How many nodes are taken from one list of the queue before it is listed again for
                nodes of a smaller number; it is listed only if something has changed. 0: a hundredth of the nodes that
                were listed, at least 1.

        Raises:
            InvalidArgument: It is negative.
        """
        if min_items_before_refresh < 0:
            raise InvalidArgument(f"min_items_before_refresh is 0 or more, not {min_items_before_refresh}")
        return DistributedPriorityQueue(self, min_items_before_refresh)

    def build_delay_queue(self) -> DistributedDelayQueue[T]:
        """Returns a queue whose messages can be taken from an instant on, not started."""
        return DistributedDelayQueue(self)
