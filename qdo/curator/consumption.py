"""Takes messages from a queue, in the event loop, and hands them to the consumer, in threads of the queue."""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from qdo.curator.backlog import NodeBacklog, now_ms
from qdo.curator.bridge import RETRY_INTERVAL, call_soon, create_missing_nodes, run
from qdo.curator.lifecycle import Lifecycle
from qdo.curator.nodes import Child
from qdo.curator.options import CuratorOptions
from qdo.curator.taking import LockingTaker, Taker, Untaken
from qdo.errors import BadItem, ConsumerFailed, CoordinationLost, QdoError, SessionLost
from qdo.group.zookeeper.tree import Link, State
from qdo.loops import wait_for_event

T = TypeVar("T")

MAX_PARKED = 1000
"""Max failed messages waiting to be put back; at the limit no further message is taken."""
MAX_COUNTED_FAILURES = 10_000
"""Max messages put back whose failures are counted."""
MAX_CLOCK_INTERVAL = 60.0
"""Max time until the clock is read again, in seconds: it may have been set."""

log = logging.getLogger("qdo.curator")


class Parked(NamedTuple):
    """A failed message that stays locked until it is put back; ``until`` is a monotonic time in seconds."""

    until: float
    child: Child
    failures: int


class TakenNode(NamedTuple):
    """A node that this consumer holds."""

    child: Child
    data: bytes


class Handled(NamedTuple):
    """A node whose messages were handled, and the error of the message to handle again."""

    child: Child
    failure: BaseException | None


class Consumption:
    """Takes and handles messages, one at a time in each thread.

    The threads only run the program's functions. Everything else runs in the event loop, from which each thread
    requests its next node.

    Args:
        lifecycle: The queue's lifecycle.
        link: A link to the queue's session.
        options: The queue's options, with a consumer.
        backlog: An empty backlog for the queue's recipe.
        token: A name that no other consumer has.
        report: Called with every error, in one of the threads.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        link: Link,
        options: CuratorOptions[Any],
        backlog: NodeBacklog,
        token: str,
        report: Callable[[QdoError], None],
    ) -> None:
        self._lifecycle = lifecycle
        self._link = link
        self._path = options.path
        self._options = options
        self._backlog = backlog
        self._taker = (
            Taker(link, options.path)
            if options.lock_path is None
            else LockingTaker(link, options.path, options.lock_path, token, options.node_limit)
        )
        self._report = report
        assert options.consumer is not None  # noqa: S101 - asked by the caller
        self._consume = options.consumer
        self._parked: list[Parked] = []
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._listing = False
        self._running = {
            threading.Thread(target=self._run_thread, name=f"qdo-curator-{number}", daemon=True)
            for number in range(options.threads)
        }
        self._closers: set[threading.Thread] = set()

    def start(self) -> None:
        for thread in self._running:
            thread.start()

    def wake(self, _: object = None) -> None:
        call_soon(self._lifecycle.changed.notify)

    def handle_changes(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path == self._path:
                self._backlog.mark_stale()
            else:
                self._backlog.unblock(path.rpartition("/")[2])
        self._lifecycle.changed.notify()

    def on_link_state(self, state: State) -> None:
        if state == "suspended":
            self._backlog.forget_watches()

    async def join(self, caller: threading.Thread, seconds: float) -> bool:
        """Waits for messages in hand after the queue was closed; returns False if some are not finished.

        Consumers that call this in a thread of the queue do not wait for each other.
        """
        own = caller in self._running
        if own:
            self._closers.add(caller)
            self._lifecycle.changed.notify()
        return await self._wait_for_threads(self._closers if own else set(), seconds)

    async def begin(self) -> None:
        await self._taker.begin()

    async def end(self) -> None:
        """Waits, without a limit, for all threads to end; then removes this consumer's nodes."""
        await self._wait_for_threads(set(), None)
        await self._taker.leave()

    async def _wait_for_threads(self, ignored: set[threading.Thread], seconds: float | None) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while not self._running <= ignored:
                    await self._lifecycle.changed.next.wait()
        except TimeoutError:
            return False
        return True

    # Run in the threads.

    def _run_thread(self) -> None:
        """Handles nodes until the queue has ended; reports each error and goes on after a pause.

        A lost session is passed to the lifecycle, and retried without a pause.
        """
        handled: Handled | None = None
        try:
            while True:
                try:
                    concluding, handled = handled, None
                    taken = run(self._conclude_and_take(concluding))
                    if taken is None:
                        return
                    handled = self._handle_node(taken)
                except SessionLost as error:
                    call_soon(partial(self._lifecycle.handle, "lost"))
                    self._report(error)
                except QdoError as error:
                    self._report(error)
                    time.sleep(RETRY_INTERVAL)
        finally:
            call_soon(partial(self._on_thread_end, threading.current_thread()))

    def _handle_node(self, taken: TakenNode) -> Handled | None:
        """Passes the messages of a node to the consumer; returns None if another consumer has removed the node.

        If it cannot be read, leaves it in the queue and raises BadItem.
        """
        child = taken.child
        try:
            messages = self._options.serializer.read(taken.data)
        except BadItem as error:
            run(self._leave_unreadable(child))
            raise BadItem(f"{self._path}/{child.name} is left where it is: {error}", error.data) from error
        if not self._taker.recoverable and run(self._attempt(child, self._taker.delete_to_take(child))) is Untaken.GONE:
            return None
        return Handled(child, self._call_consumer(child, messages))

    def _call_consumer(self, child: Child, messages: list[Any]) -> BaseException | None:
        failure: BaseException | None = None
        for message in messages:
            try:
                self._consume(message)
            except BaseException as error:  # noqa: BLE001 - a thread that ends would keep the lock
                failed = ConsumerFailed(
                    f"a message of {self._path}/{child.name} failed: {type(error).__name__}: {error}"
                )
                failed.__cause__ = error
                self._report(failed)
                if self._taker.recoverable and self._options.error_mode == "requeue":
                    failure = error
                    break
        return failure

    # Run in the event loop.

    def _on_thread_end(self, thread: threading.Thread) -> None:
        self._running.discard(thread)
        self._lifecycle.changed.notify()

    async def _conclude_and_take(self, handled: Handled | None) -> TakenNode | None:
        """Concludes a node, then waits for another and takes it; returns None when the queue has ended.

        Meanwhile puts parked nodes back and lists the queue, whenever that is due.
        """
        if handled is not None:
            await self._finish_or_park(handled.child, handled.failure)
        while True:
            change = self._lifecycle.changed.next
            state = self._lifecycle.state
            now, epoch = time.monotonic(), now_ms()
            if self._parked and (state == "closed" or (state == "started" and self._parked[0].until <= now)):
                await self._put_back(heapq.heappop(self._parked))
            elif state not in {"started", "suspended"}:
                return None
            elif state == "suspended" or self._link.state == "suspended":
                await wait_for_event(change, MAX_CLOCK_INTERVAL)
            elif self._may_take() and self._seconds_until_listing(now, epoch) <= 0:
                await self._list()
            elif (child := self._take_next(epoch)) is not None:
                if (data := await self._take(child)) is not None:
                    return TakenNode(child, data)
            else:
                await wait_for_event(change, self._seconds_until_due(now, epoch))

    def _may_take(self) -> bool:
        return self._options.election is None or self._options.election.leading

    def _take_next(self, epoch: int) -> Child | None:
        return self._backlog.take(epoch) if self._may_take() and len(self._parked) < MAX_PARKED else None

    def _seconds_until_listing(self, now: float, epoch: int) -> float:
        due = None if self._listing else self._backlog.seconds_until_listing(now, epoch)
        return math.inf if due is None else due

    def _seconds_until_due(self, now: float, epoch: int) -> float:
        due = [MAX_CLOCK_INTERVAL]
        if self._parked:
            due.append(self._parked[0].until - now)
        if self._may_take():
            due.append(self._seconds_until_listing(now, epoch))
            if len(self._parked) < MAX_PARKED and (first := self._backlog.seconds_until_due(epoch)) is not None:
                due.append(first)
        return max(0.0, min(due))

    async def _list(self) -> None:
        """Lists and watches the queue.

        Creates its node if it is missing, and warns once of nodes that are not messages.
        """
        began = time.monotonic()
        self._listing = True
        self._backlog.begin_listing()
        names: list[str] | None = None
        try:
            (names,) = await self._link.children([self._path], watch=True)
            if names is None:
                await create_missing_nodes(self._link, [self._path])
        finally:
            self._listing = False
            if names is None:
                self._backlog.mark_stale()
            self._lifecycle.changed.notify()
        if names is not None and (foreign := self._backlog.replace_list(names, began, time.monotonic())):
            log.warning(
                "%d nodes in %s are not messages and stay there, such as %r", len(foreign), self._path, min(foreign)
            )

    async def _take(self, child: Child) -> bytes | None:
        data = await self._attempt(child, self._taker.take(child))
        if data is Untaken.BLOCKED:
            data = await self._attempt(child, self._watch_blocked(child))
        return None if isinstance(data, Untaken) else data

    async def _attempt(self, child: Child, step: Awaitable[T]) -> T | Untaken:
        """Returns the result of a step, and updates the backlog if it fails or the node is gone.

        After CoordinationLost the node is tried again. After other errors it is set aside.
        """
        try:
            data = await step
        except CoordinationLost:
            self._backlog.put_back(child)
            raise
        except QdoError:
            self._backlog.set_aside(child)
            raise
        if data is Untaken.GONE:
            self._backlog.drop(child)
        return data

    async def _watch_blocked(self, child: Child) -> bytes | Untaken:
        assert isinstance(self._taker, LockingTaker)  # noqa: S101 - no other blocks
        if not self._backlog.block(child, time.monotonic()):
            return Untaken.BLOCKED
        own = await self._taker.is_holder(child)
        if own is None:
            self._backlog.unblock(child.name)
            self._lifecycle.changed.notify()
        if not own or not self._backlog.hold(child):
            return Untaken.BLOCKED
        return await self._taker.resume(child)

    async def _leave_unreadable(self, child: Child) -> None:
        try:
            await self._taker.release(child)
        finally:
            self._backlog.set_aside(child)

    async def _finish_or_park(self, child: Child, failure: BaseException | None) -> None:
        failures = self._failures.pop(child.name, 0) + (failure is not None)
        if failure is not None:
            kinds = {kind.__name__ for kind in type(failure).__mro__}
            pause = self._options.retry.after(failures, kinds, random.random())  # noqa: S311 - no secret
            if pause is not None:
                heapq.heappush(self._parked, Parked(time.monotonic() + pause, child, failures))
                self._lifecycle.changed.notify()
                return
        try:
            await self._taker.finish(child)
        finally:
            self._backlog.drop(child)

    async def _put_back(self, parked: Parked) -> None:
        """Moves a failed node behind the others; its count of failures goes on under the new name."""
        assert isinstance(self._taker, LockingTaker)  # noqa: S101 - messages of others are not parked
        try:
            name = await self._taker.put_back(parked.child)
        finally:
            self._backlog.drop(parked.child)
        self._failures[name or parked.child.name] = parked.failures
        while len(self._failures) > MAX_COUNTED_FAILURES:
            self._failures.popitem(last=False)
        if name is None:
            self._backlog.mark_stale()
