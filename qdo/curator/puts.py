"""Putting messages into a queue: at once or in the background, within bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from qdo.coordination.zookeeper.transactions import Create, Rejection, RejectionReason
from qdo.curator.lifecycle import Lifecycle
from qdo.curator.znodes import Answer, Znodes
from qdo.errors import CoordinationError, CoordinationLost, PutFailed, QdoError

MOST_PENDING = 10_000
"""Background puts that are not answered yet."""
MOST_PENDING_BYTES = 32 * 1024 * 1024
"""Of those."""
MOST_FAILURES = 100
"""Failed background puts whose messages are kept until they are asked for; further ones are counted."""
TRUST = 10
"""A tenth of the room that a full queue was found to have is filled before the queue is looked at again."""
LOOK_AGAIN = 0.1
"""Seconds between two looks at a full queue."""


class Puts:
    """What was put and is not stored yet.

    Args:
        lifecycle: Of the queue; its condition guards everything here.
        znodes: Of the client.
        path: Of the queue.
        background: Puts return before they are stored.
        most: Messages' nodes that the queue may have; None: any number.
        patience: Seconds that a put in the foreground waits for its answer.
        report: Is called with every put in the background that failed.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        znodes: Znodes,
        path: str,
        *,
        background: bool,
        most: int | None,
        patience: float,
        report: Callable[[QdoError], None],
    ) -> None:
        self._lifecycle = lifecycle
        self._znodes = znodes
        self._path = path
        self._background = background
        self._most = most
        self._patience = patience
        self._report = report
        self._pending = 0
        self._pending_bytes = 0
        self._failures: list[PutFailed] = []
        self._failed = 0
        self._room = 0

    def put(self, prefix: str, messages: Sequence[Any], data: bytes, timeout: float | None) -> bool:
        """Creates a node.

        Args:
            prefix: Of its name.
            messages: For errors.
            data: The node's.
            timeout: Seconds to wait for room; None: as long as it takes.

        Returns:
            False: there was no room in time, and nothing was put.

        Raises:
            QueueStopped: The queue was not started, or has ended.
            CoordinationLost: It may have been stored or not. Only in the foreground.
            SessionLost, CoordinationRefused: It was not stored. Only in the foreground.
        """
        self._lifecycle.require()
        path = f"{self._path}/{prefix}"
        until = None if timeout is None else time.monotonic() + timeout
        if self._most is not None and not self._found_room(until):
            return False
        if not self._background:
            self._create(path, data)
            return True
        if not self._reserved(len(data), until):
            return False
        self._send(path, messages, data)
        return True

    def flush(self, timeout: float | None) -> bool:
        """Waits until all puts in the background are answered.

        Returns:
            False: they are not, after ``timeout`` seconds.

        Raises:
            PutFailed: Some have failed since this was called last. The error has their messages.
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
        """Waits until the queue has room; returns whether it has."""
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
        """Waits until fewer puts are on their way; returns whether this one may go too."""
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

    def _create(self, path: str, data: bytes) -> None:
        create = Create(path, data, sequence=True)
        answer = self._znodes.apply(create).get(self._patience)
        if isinstance(answer, Rejection) and answer.why is RejectionReason.NO_NODE:
            self._znodes.ensure(self._path).get(self._patience)
            answer = self._znodes.apply(create).get(self._patience)
        if isinstance(answer, Rejection):
            raise _refused(self._path, answer)

    def _send(self, path: str, messages: Sequence[Any], data: bytes) -> None:
        def answered(answer: Answer[list[str] | Rejection]) -> None:
            error: QdoError | None = None
            try:
                got = answer.get(0)
                if isinstance(got, Rejection):
                    error = _refused(self._path, got)
            except QdoError as failed:
                error = failed
            self._settle(len(data), messages, error)

        try:
            self._znodes.apply(Create(path, data, sequence=True)).then(answered)
        except BaseException:
            self._settle(len(data), messages, None)
            raise

    def _settle(self, size: int, messages: Sequence[Any], error: QdoError | None) -> None:
        """Hears in kazoo's thread what became of a put."""
        failure = None
        with self._lifecycle.changed:
            self._pending -= 1
            self._pending_bytes -= size
            if error is not None:
                lost = " It may have been stored all the same." if isinstance(error, CoordinationLost) else ""
                failure = PutFailed(f"a put into {self._path} failed: {error}.{lost}", list(messages))
                failure.__cause__ = error
                self._failed += 1
                if len(self._failures) < MOST_FAILURES:
                    self._failures.append(failure)
            self._lifecycle.changed.notify_all()
        if failure is not None:
            self._report(failure)


def _refused(path: str, refusal: Rejection) -> QdoError:
    if refusal.why is RejectionReason.NODE_EXISTS:
        return CoordinationError(
            f"ZooKeeper has no further number for the nodes of {path}: 2147483647 were created in it. Use another path"
        )
    return CoordinationError(f"the node {path} of the queue is not there; somebody has removed it")
