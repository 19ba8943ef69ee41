"""Putting messages into a queue: at once or in the background, within bounds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from qdo.coordination.changes import MOST_BYTES, MOST_OPERATIONS, size
from qdo.coordination.tree import Create, Rejection
from qdo.curator.items import AROUND
from qdo.curator.lifecycle import Lifecycle
from qdo.curator.znodes import Answer, Znodes, not_created
from qdo.errors import CoordinationLost, PutFailed, QdoError, SessionLost

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
    """A put in the background that is not answered yet."""

    create: Create
    messages: Sequence[Any]


class Puts:
    """Sends puts, in the foreground or in the background.

    Args:
        lifecycle: Of the queue; its condition guards everything here.
        znodes: Of the client.
        path: Of the queue.
        background: Puts return before they are stored.
        most: Max nodes of the queue; None: any number.
        limit: Max bytes of a request at the servers.
        patience: Timeout of a put in the foreground, in seconds.
        report: Called with every put in the background that failed.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        znodes: Znodes,
        path: str,
        *,
        background: bool,
        most: int | None,
        limit: int,
        patience: float,
        report: Callable[[QdoError], None],
    ) -> None:
        self._lifecycle = lifecycle
        self._znodes = znodes
        self._path = path
        self._background = background
        self._most = most
        self._at_once = min(MOST_BYTES, limit - AROUND)
        self._patience = patience
        self._report = report
        self._pending = 0
        self._pending_bytes = 0
        self._waiting: deque[Put] = deque()
        self._under_way = 0
        self._sending = False
        self._failures: list[PutFailed] = []
        self._failed = 0
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
        if self._most is not None and not self._found_room(until):
            return False
        if not self._background:
            self._znodes.append(self._path, prefix, data, self._patience)
            return True
        if not self._reserved(len(data), until):
            return False
        with self._lifecycle.changed:
            self._waiting.append(Put(Create(f"{self._path}/{prefix}", data, sequence=True), messages))
        self._send()
        return True

    def flush(self, timeout: float | None) -> bool:
        """Waits until all puts in the background are answered; returns False after ``timeout`` seconds.

        Raises:
            PutFailed: Some have failed since the last call. The error has their messages.
        """
        with self._lifecycle.changed:
            done = self._lifecycle.changed.wait_for(lambda: not self._pending, timeout)
            failures, self._failures = self._failures, []
            failed, self._failed = self._failed, 0
        if failed:
            messages = [message for failure in failures for message in failure.messages]
            first = failures[0]
            raise PutFailed(f"{failed} puts failed, the first one so: {first}", messages, failed) from first
        return done

    def _found_room(self, until: float | None) -> bool:
        """Waits until the queue has room; returns False if it has none in time."""
        assert self._most is not None  # noqa: S101 - asked by the caller
        while True:
            with self._lifecycle.changed:
                if self._room > 0:
                    self._room -= 1
                    return True
            node = self._znodes.look(self._path).get(self._patience)
            with self._lifecycle.changed:
                free = self._most - (0 if node is None else node.children) - self._pending
                self._room = -(-free // TRUST)
                if self._room > 0:
                    continue
                left = LOOK_AGAIN if until is None else min(LOOK_AGAIN, until - time.monotonic())
                if left <= 0:
                    return False
                self._lifecycle.changed.wait(left)
            self._lifecycle.require()

    def _reserved(self, size: int, until: float | None) -> bool:
        """Waits until fewer puts are under way; returns False if they are not in time."""
        with self._lifecycle.changed:
            while self._pending >= MOST_PENDING or (self._pending and self._pending_bytes + size > MOST_PENDING_BYTES):
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._lifecycle.changed.wait(left)
                self._lifecycle.require()
            self._pending += 1
            self._pending_bytes += size
        return True

    def _send(self) -> None:
        """Sends waiting puts, in order, as far as they may go now: one thread at a time does it for all."""
        with self._lifecycle.changed:
            if self._sending:
                return  # the thread that sends will see it
            self._sending = True
        while batch := self._next():
            if self._lifecycle.state == "lost":
                self._settle(batch, SessionLost("the session has ended; it was not stored"))
                continue
            try:
                answer = self._znodes.apply(*(put.create for put in batch))
            except BaseException:
                with self._lifecycle.changed:
                    self._sending = False
                self._settle(batch, CoordinationLost("the program was interrupted while it was sent"))
                raise
            answer.then(partial(self._answered, batch))

    def _next(self) -> list[Put]:
        """Returns the puts of the next transaction; none: nothing goes now, and nobody sends any more."""
        batch: list[Put] = []
        with self._lifecycle.changed:
            room = self._at_once
            while self._waiting and self._under_way < AT_ONCE and len(batch) < MOST_OPERATIONS:
                room -= size((self._waiting[0].create,))
                if batch and room < 0:
                    break
                batch.append(self._waiting.popleft())
            self._sending = bool(batch)
            self._under_way += self._sending
        return batch

    def _answered(self, batch: list[Put], answer: Answer[list[str] | Rejection]) -> None:
        """Called in kazoo's thread with the answer to a transaction."""
        error: QdoError | None = None
        try:
            got = answer.get(0)
            if isinstance(got, Rejection):
                error = not_created(self._path, got)
        except QdoError as failed:
            error = failed
        self._settle(batch, error)
        self._send()

    def _settle(self, batch: list[Put], error: QdoError | None) -> None:
        failures: list[PutFailed] = []
        with self._lifecycle.changed:
            self._under_way -= 1
            self._pending -= len(batch)
            self._pending_bytes -= sum(len(put.create.data) for put in batch)
            if error is not None:
                lost = " It may have been stored all the same." if isinstance(error, CoordinationLost) else ""
                for put in batch:
                    failure = PutFailed(f"a put into {self._path} failed: {error}.{lost}", list(put.messages))
                    failure.__cause__ = error
                    failures.append(failure)
                self._failed += len(failures)
                self._failures += failures[: MOST_FAILURES - len(self._failures)]
            self._lifecycle.changed.notify_all()
        for failure in failures:
            self._report(failure)
