"""Putting messages into a queue: at once or in the background, within bounds."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from qdo.coordination.tree import MOST_BYTES, MOST_OPERATIONS, Create, Link, Rejection, size
from qdo.curator.bridge import append, count, not_created, run, soon, within
from qdo.curator.lifecycle import Lifecycle
from qdo.curator.nodes import AROUND
from qdo.curator.options import QueueOptions
from qdo.errors import CoordinationLost, PutFailed, QdoError, SessionLost
from qdo.tasks import start

MOST_PENDING = 10_000
"""Max background puts that are not answered yet."""
MOST_PENDING_BYTES = 32 * 1024 * 1024
"""Max bytes of those."""
AT_ONCE = 2
"""Max transactions under way. Later puts wait, and then go together in the next one."""
MOST_FAILURES = 100
"""Max failed background puts whose messages are kept until they are asked for; further ones are counted."""
TRUST = 10
"""Ratio of the room in a queue to the puts after which its nodes are counted again."""
LOOK_AGAIN = 0.1
"""Interval between two counts of a full queue, in seconds."""


class Put(NamedTuple):
    """A put in the background that is not answered yet.

    Attributes:
        number: In the order of the puts; failures come in any order, and are told in that one.
    """

    number: int
    create: Create
    messages: Sequence[Any]


class Puts:
    """Sends puts, in the foreground or in the background.

    Between the program and the event loop lies a bounded buffer: any thread adds puts in the background, without a turn
    of the loop for each, and the loop sends them.

    Args:
        lifecycle: Of the queue.
        link: To its session.
        options: Of the queue.
        report: Called with every put in the background that failed, in the event loop.
    """

    def __init__(
        self, lifecycle: Lifecycle, link: Link, options: QueueOptions[Any], report: Callable[[QdoError], None]
    ) -> None:
        self._lifecycle = lifecycle
        self._link = link
        self._path = options.path
        self._options = options
        self._at_once = min(MOST_BYTES, options.node_limit - AROUND)
        self._report = report
        self._changed = threading.Condition()
        """Guards what follows, but for the last two."""
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
        """Creates a node; returns False if there was no room in ``timeout`` seconds (None: waits for ever).

        Raises:
            QueueStopped: The queue was not started, or has ended.
            CoordinationLost: It may have been stored or not. Only in the foreground.
            SessionLost, CoordinationRefused: It was not stored. Only in the foreground.
        """
        self._lifecycle.require()
        until = None if timeout is None else time.monotonic() + timeout
        most = self._options.max_items
        if most is not None and not run(self._found_room(most, until)):
            return False
        if not self._options.in_background:
            run(within(self._options.answer_timeout, append(self._link, self._path, prefix, data)))
            return True
        with self._changed:
            while self._full(len(data)):
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(left)
                self._lifecycle.require()
            self._pending += 1
            self._pending_bytes += len(data)
            create = Create(f"{self._path}/{prefix}", data, sequence=True)
            self._waiting.append(Put(next(self._numbers), create, messages))
            scheduled, self._sending = self._sending, True
        if not scheduled:
            soon(self.send)
        return True

    def flush(self, timeout: float | None) -> bool:
        """Waits until all puts in the background are answered; returns False after ``timeout`` seconds.

        Raises:
            PutFailed: Some have failed since the last call. The error has their messages, in the order of the puts.
        """
        with self._changed:
            done = self._changed.wait_for(lambda: not self._pending, timeout)
            failures, self._failures = [failure for _, failure in sorted(self._failures)], []
            failed, self._failed = self._failed, 0
        if failed:
            messages = [message for failure in failures for message in failure.messages]
            first = failures[0]
            raise PutFailed(f"{failed} puts failed, the first one so: {first}", messages, failed) from first
        return done

    def send(self) -> None:
        """Sends waiting puts, in order, as far as they may go now; in the event loop, also when that has changed."""
        self._sending = False
        while len(self._tasks) < AT_ONCE and self._link.state != "suspended" and (batch := self._next()):
            start(self._store(batch), self._tasks).add_done_callback(lambda _: self.send())

    async def stored(self) -> None:
        """Waits until no put is under way."""
        while self._pending:
            await self._lifecycle.changed.next.wait()

    def wake(self) -> None:
        """Has puts that wait for room look at the state of the queue."""
        with self._changed:
            self._changed.notify_all()

    def _full(self, size: int) -> bool:
        return self._pending >= MOST_PENDING or (self._pending > 0 and self._pending_bytes + size > MOST_PENDING_BYTES)

    async def _found_room(self, most: int, until: float | None) -> bool:
        """Waits until the queue has fewer nodes than ``most``; returns False if it has more in time."""
        while self._room <= 0:
            nodes = await within(self._options.answer_timeout, count(self._link, self._path))
            self._room = -(-(most - nodes - self._pending) // TRUST)
            if self._room <= 0:
                left = LOOK_AGAIN if until is None else min(LOOK_AGAIN, until - time.monotonic())
                if left <= 0:
                    return False
                await asyncio.sleep(left)
                self._lifecycle.require()
        self._room -= 1
        return True

    def _next(self) -> list[Put]:
        """Returns the puts of the next transaction, empty if no put waits."""
        batch: list[Put] = []
        with self._changed:
            room = self._at_once
            while self._waiting and len(batch) < MOST_OPERATIONS:
                room -= size((self._waiting[0].create,))
                if batch and room < 0:
                    break
                batch.append(self._waiting.popleft())
        return batch

    async def _store(self, batch: list[Put]) -> None:
        error: QdoError | None = None
        try:
            if self._link.state == "lost":
                raise SessionLost("the session has ended; it was not stored")
            (outcome,) = await self._link.apply([tuple(put.create for put in batch)])
            if isinstance(outcome, Rejection):
                raise not_created(self._path, outcome)
        except QdoError as failed:
            error = failed
        self._settle(batch, error)

    def _settle(self, batch: list[Put], error: QdoError | None) -> None:
        failures: list[tuple[int, PutFailed]] = []
        with self._changed:
            self._pending -= len(batch)
            self._pending_bytes -= sum(len(put.create.data) for put in batch)
            if error is not None:
                lost = " It may have been stored all the same." if isinstance(error, CoordinationLost) else ""
                for put in batch:
                    failure = PutFailed(f"a put into {self._path} failed: {error}.{lost}", list(put.messages))
                    failure.__cause__ = error
                    failures.append((put.number, failure))
                self._failed += len(failures)
                self._failures += failures[: MOST_FAILURES - len(self._failures)]
            self._changed.notify_all()
        self._lifecycle.changed.notify()
        for _, failure in failures:
            self._report(failure)
