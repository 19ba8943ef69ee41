"""Puts messages into a queue, in the foreground or in the background, with bounded memory."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from qdo.curator.bridge import await_within, call_soon, count_children, create_sequential_node, make_put_error, run
from qdo.curator.lifecycle import Lifecycle
from qdo.curator.nodes import MAX_REQUEST_OVERHEAD_BYTES
from qdo.curator.options import CuratorOptions
from qdo.errors import CoordinationLost, PutFailed, QdoError, SessionLost
from qdo.group.zookeeper.tree import MAX_BUNDLE_BYTES, MAX_OPERATIONS, Create, Link, Rejection, estimate_bytes
from qdo.loops import start_task

MAX_PENDING = 10_000
"""Max background puts that are not answered yet."""
MAX_PENDING_BYTES = 32 * 1024 * 1024
"""Max bytes of the background puts that are not answered yet."""
MAX_TRANSACTIONS = 2
"""Max concurrent transactions. Later puts wait, and are sent together in the next one."""
MAX_FAILURES = 100
"""Max failed background puts whose messages are kept for the next flush; further failures are only counted."""
RECOUNT_RATIO = 10
"""Ratio of the room in a queue to the puts after which its nodes are counted again."""
COUNT_INTERVAL = 0.1


class Put(NamedTuple):
    """A background put that is not answered yet.

    Attributes:
        number: Sequence number. Failures arrive in any order, and are reported in the order of puts.
    """

    number: int
    create: Create
    messages: Sequence[Any]


class Puts:
    """Sends puts, in the foreground or in the background.

    Background puts go through a bounded buffer: any thread adds to it without waiting for the event loop, which sends
    them in batches.

    Args:
        lifecycle: The queue's lifecycle.
        link: A link to the queue's session.
        options: The queue's options.
        report: Called with every failed background put, in the event loop.
    """

    def __init__(
        self, lifecycle: Lifecycle, link: Link, options: CuratorOptions[Any], report: Callable[[QdoError], None]
    ) -> None:
        self._lifecycle = lifecycle
        self._link = link
        self._path = options.path
        self._options = options
        self._max_batch_bytes = min(MAX_BUNDLE_BYTES, options.node_limit - MAX_REQUEST_OVERHEAD_BYTES)
        self._report = report
        self._changed = threading.Condition()
        """Guards the attributes below, except ``_tasks`` and ``_room``."""
        self._pending = 0
        self._pending_bytes = 0
        self._waiting: deque[Put] = deque()
        self._sending = False
        self._numbers = itertools.count()
        self._failures: list[tuple[int, PutFailed]] = []
        self._failed = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = 0

    def put(self, prefix: str, messages: Sequence[Any], data: bytes, timeout: float | None) -> bool:
        """Creates a node; returns False if there was no room in ``timeout`` seconds. Waits without limit if it is None.

        Raises:
            QueueStopped: The queue was not started, or has ended.
            CoordinationLost: Only in the foreground: the node may have been created or not.
            SessionLost, CoordinationRefused: Only in the foreground: the node was not created.
        """
        self._lifecycle.require_usable()
        until = None if timeout is None else time.monotonic() + timeout
        most = self._options.max_items
        if most is not None and not run(self._wait_for_room(most, until)):
            return False
        if not self._options.in_background:
            run(
                await_within(self._options.answer_timeout, create_sequential_node(self._link, self._path, prefix, data))
            )
            return True
        with self._changed:
            while self._is_full(len(data)):
                remaining_seconds = None if until is None else until - time.monotonic()
                if remaining_seconds is not None and remaining_seconds <= 0:
                    return False
                self._changed.wait(remaining_seconds)
                self._lifecycle.require_usable()
            self._pending += 1
            self._pending_bytes += len(data)
            create = Create(f"{self._path}/{prefix}", data, sequence=True)
            self._waiting.append(Put(next(self._numbers), create, messages))
            scheduled, self._sending = self._sending, True
        if not scheduled:
            call_soon(self.send)
        return True

    def flush(self, timeout: float | None) -> bool:
        """Waits until all background puts are answered; returns False after ``timeout`` seconds.

        Raises:
            PutFailed: Some puts have failed since the last call. The error has their messages, in the order of puts.
        """
        with self._changed:
            done = self._changed.wait_for(lambda: not self._pending, timeout)
            failures, self._failures = [failure for _, failure in sorted(self._failures)], []
            failed, self._failed = self._failed, 0
        if failed:
            messages = [message for failure in failures for message in failure.messages]
            first = failures[0]
            raise PutFailed(f"{failed} puts failed. The first error: {first}", messages, failed) from first
        return done

    def send(self) -> None:
        """Sends waiting puts, in order, while transactions are allowed. Call it in the event loop."""
        self._sending = False
        while len(self._tasks) < MAX_TRANSACTIONS and self._link.state != "suspended" and (batch := self._pop_batch()):
            start_task(self._send_batch(batch), self._tasks).add_done_callback(lambda _: self.send())

    async def wait_until_answered(self) -> None:
        while self._pending:
            await self._lifecycle.changed.next.wait()

    def wake(self) -> None:
        """Makes puts that wait for room check the state of the queue."""
        with self._changed:
            self._changed.notify_all()

    def _is_full(self, size: int) -> bool:
        return self._pending >= MAX_PENDING or (self._pending > 0 and self._pending_bytes + size > MAX_PENDING_BYTES)

    async def _wait_for_room(self, max_items: int, until: float | None) -> bool:
        """Waits for room in the queue and takes one place; returns False at the time ``until``.

        Counts the nodes again only when the room found by the last count is used up.
        """
        while self._room <= 0:
            nodes = await await_within(self._options.answer_timeout, count_children(self._link, self._path))
            self._room = -(-(max_items - nodes - self._pending) // RECOUNT_RATIO)
            if self._room <= 0:
                pause = COUNT_INTERVAL if until is None else min(COUNT_INTERVAL, until - time.monotonic())
                if pause <= 0:
                    return False
                await asyncio.sleep(pause)
                self._lifecycle.require_usable()
        self._room -= 1
        return True

    def _pop_batch(self) -> list[Put]:
        batch: list[Put] = []
        with self._changed:
            room = self._max_batch_bytes
            while self._waiting and len(batch) < MAX_OPERATIONS:
                room -= estimate_bytes((self._waiting[0].create,))
                if batch and room < 0:
                    break
                batch.append(self._waiting.popleft())
        return batch

    async def _send_batch(self, batch: list[Put]) -> None:
        error: QdoError | None = None
        try:
            if self._link.state == "lost":
                raise SessionLost("the session has ended; it was not stored")
            (outcome,) = await self._link.apply([tuple(put.create for put in batch)])
            if isinstance(outcome, Rejection):
                raise make_put_error(self._path, outcome)
        except QdoError as failed:
            error = failed
        self._record_outcome(batch, error)

    def _record_outcome(self, batch: list[Put], error: QdoError | None) -> None:
        failures: list[tuple[int, PutFailed]] = []
        with self._changed:
            self._pending -= len(batch)
            self._pending_bytes -= sum(len(put.create.data) for put in batch)
            if error is not None:
                lost = " The messages may have been stored nevertheless." if isinstance(error, CoordinationLost) else ""
                for put in batch:
                    failure = PutFailed(f"a put into {self._path} failed: {error}.{lost}", list(put.messages))
                    failure.__cause__ = error
                    failures.append((put.number, failure))
                self._failed += len(failures)
                self._failures += failures[: MAX_FAILURES - len(self._failures)]
            self._changed.notify_all()
        self._lifecycle.changed.notify()
        for _, failure in failures:
            self._report(failure)
