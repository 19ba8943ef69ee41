"""Links on a kazoo client: they send requests, deliver the answers in the event loop, and translate kazoo's errors.

Nothing above the driver sees kazoo's errors.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from kazoo import exceptions
from kazoo.protocol.states import WatchedEvent

from qdo.errors import CoordinationError, CoordinationLost, CoordinationRefused, SessionLost
from qdo.group.zookeeper.handler import PendingAnswer
from qdo.group.zookeeper.tree import (
    Applied,
    Change,
    Create,
    Delete,
    Link,
    NodeData,
    Outcome,
    Rejection,
    RejectionReason,
    SetData,
    State,
)


class Inbox:
    """A queue that any thread fills and the creating event loop empties.

    Args:
        handle: Called in the loop with all items that have arrived.
    """

    def __init__(self, handle: Callable[[list[Callable[[], None]]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._handle = handle
        self._items: deque[Callable[[], None]] = deque()
        self._called = False

    def put(self, item: Callable[[], None]) -> None:
        """Never blocks. After the loop has ended, the item is dropped: nothing needs it."""
        self._items.append(item)
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._handle_items)

    def _handle_items(self) -> None:
        # Reset before the items are taken: a thread that adds one after the last was taken must schedule a new call.
        self._called = False
        items = []
        while self._items:
            items.append(self._items.popleft())
        if items:
            self._handle(items)


Call: TypeAlias = Callable[[], PendingAnswer]

MAX_IN_FLIGHT = 100
"""Max requests in flight. Kazoo sends its thread a byte for each, and the socket blocks after about 270."""


class RequestBatch:
    """Requests of one caller. The caller waits for all answers."""

    def __init__(self, calls: Sequence[Call], future: asyncio.Future[None]) -> None:
        self.answers: list[Any] = [None] * len(calls)
        self.remaining = len(calls)
        self.waiting = enumerate(calls)
        self.future = future

    def fail(self, error: CoordinationError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class ClientLink(Link):
    """The common part of links on a kazoo client. Kazoo's threads report, and the loop decides."""

    ENDED = "the session has ended: others may own its nodes now"

    _client: Any

    def __init__(self, max_blocked_seconds: float) -> None:
        super().__init__(max_blocked_seconds)
        self._process = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._state: State = "new"
        self._error: CoordinationError | None = None
        self._inbox = Inbox(self._handle_reports)
        self._changed: list[str] = []
        self._batches: set[RequestBatch] = set()
        self._waiting: deque[RequestBatch] = deque()
        self._in_flight = 0

    @abc.abstractmethod
    def _refresh_state(self) -> None:
        """Reads the client's state and reports a change."""

    def _set_state(self, state: State) -> None:
        if state == "suspended":
            self._fail_all_requests(CoordinationLost("the connection to ZooKeeper broke"))
            self._settled.clear()
        else:
            self._settled.set()
        if state != self._state:
            self._state = state
            self.on_state(state)

    def _end_as_lost(self, why: CoordinationError) -> None:
        """Makes the link lost without reporting it: fails all requests, and ``why`` is raised by later ones."""
        self._state = "lost"
        self._settled.set()
        self._error = why
        self._fail_all_requests(
            why if isinstance(why, CoordinationRefused) else CoordinationLost("the session has ended")
        )

    async def read(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        watcher = self._enqueue_watch_event if watch else None
        answers = await self._request_all([partial(self._client.get_async, path, watch=watcher) for path in paths])
        return [answer and NodeData(answer[0], *_read_stat(answer[1])) for answer in answers]

    async def stat(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        watcher = self._enqueue_watch_event if watch else None
        answers = await self._request_all([partial(self._client.exists_async, path, watch=watcher) for path in paths])
        return [answer and NodeData(b"", *_read_stat(answer)) for answer in answers]

    async def children(self, paths: Iterable[str], *, watch: bool = False) -> list[list[str] | None]:
        watcher = self._enqueue_watch_event if watch else None
        return await self._request_all(
            [partial(self._client.get_children_async, path, watch=watcher) for path in paths]
        )

    async def count(self, paths: Iterable[str]) -> list[int | None]:
        answers = await self._request_all([partial(self._client.exists_async, path) for path in paths])
        return [answer and answer.numChildren for answer in answers]

    async def apply(self, changes: Iterable[Change]) -> list[Outcome]:
        every = list(changes)
        answers = await self._request_all([partial(send_transaction, self._client, change) for change in every])
        return [_make_outcome(self._client, change, answer) for change, answer in zip(every, answers, strict=True)]

    async def sync(self, path: str) -> None:
        await self._request_all([partial(self._client.sync_async, path)])

    async def _request_all(self, calls: Sequence[Call]) -> list[Any]:
        self._require_usable()
        if not calls:
            return []
        batch = RequestBatch(calls, self._loop.create_future())
        self._batches.add(batch)
        try:
            self._waiting.append(batch)
            self._send_queued()
            await batch.future
        finally:
            self._batches.discard(batch)
        return _interpret_answers(batch.answers)

    def _require_usable(self) -> None:
        if os.getpid() != self._process:
            raise CoordinationError("a connection cannot be used in a process forked after it was opened")
        state = self.state
        if state == "lost":
            self._loop.call_soon(self._refresh_state)
            raise self._error or SessionLost(self.ENDED)
        if state != "connected":
            raise CoordinationLost("ZooKeeper cannot be reached now")

    def _send_queued(self) -> None:
        """Sends queued requests, one of each caller in turn, so that a commit does not wait for 1,000 claims."""
        while self._in_flight < MAX_IN_FLIGHT and self._waiting:
            batch = self._waiting.popleft()
            following = None if batch.future.done() else next(batch.waiting, None)
            if following is not None:
                index, call = following
                self._waiting.append(batch)
                self._in_flight += 1
                call().rawlink(partial(self._enqueue_answer, batch, index))

    def _enqueue_answer(self, batch: RequestBatch, index: int, answer: PendingAnswer) -> None:
        # Runs in kazoo's thread.
        self._inbox.put(partial(self._record_answer, batch, index, answer))

    def _record_answer(self, batch: RequestBatch, index: int, answer: PendingAnswer) -> None:
        self._in_flight -= 1
        batch.answers[index] = answer.value if answer.exception is None else answer.exception
        batch.remaining -= 1
        if not batch.remaining and not batch.future.done():
            batch.future.set_result(None)

    def _enqueue_watch_event(self, event: WatchedEvent) -> None:
        # Runs in kazoo's thread; the path is None if the connection broke.
        if event.path:
            self._inbox.put(partial(self._changed.append, event.path))

    def _handle_reports(self, reports: list[Callable[[], None]]) -> None:
        for report in reports:
            report()
        changed, self._changed[:] = list(self._changed), []
        if changed and self._state != "lost":
            self.on_watch(changed)
        self._send_queued()

    def _fail_all_requests(self, error: CoordinationError) -> None:
        self._waiting.clear()
        for batch in self._batches:
            batch.fail(error)


def _interpret_answers(answers: Iterable[Any]) -> list[Any]:
    judged = [interpret_answer(answer) for answer in answers]
    if errors := [a for a in judged if isinstance(a, Exception)]:
        raise translate_errors(errors, len(judged) - len(errors)) from errors[0]
    return judged


def _read_stat(stat: Any) -> tuple[int, int, int]:  # noqa: ANN401 - kazoo's
    return stat.version, stat.mzxid, stat.ephemeralOwner


def _make_outcome(client: Any, change: Change, answer: Any) -> Outcome:  # noqa: ANN401 - kazoo's
    if isinstance(answer, Rejection):
        return answer
    versions = tuple([getattr(result, "version", 0) for result in answer])
    for operation in change:
        if isinstance(operation, Create) and operation.sequence:
            return Applied(versions, tuple([client.unchroot(result) for result in answer if isinstance(result, str)]))
    return Applied(versions)


REJECTION_REASONS: Mapping[type[Exception], RejectionReason] = {
    exceptions.NoNodeError: RejectionReason.NO_NODE,
    exceptions.NodeExistsError: RejectionReason.NODE_EXISTS,
    exceptions.BadVersionError: RejectionReason.BAD_VERSION,
    exceptions.NotEmptyError: RejectionReason.NOT_EMPTY,
}
"""Errors that are regular answers: the nodes are not in the required state."""
REFUSAL_ERRORS = (
    exceptions.NoAuthError,
    exceptions.AuthFailedError,
    exceptions.InvalidACLError,
    exceptions.SessionClosedRequireSaslError,
    exceptions.QuotaExceededError,
    exceptions.EphemeralOnLocalSessionError,
)
SESSION_END_ERRORS = (exceptions.SessionExpiredError,)
"""Errors of an expired session, or of a closed client. The request was not executed."""
SECONDARY_ERRORS = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
"""Errors of the other operations of a transaction, which did not make it fail."""


def send_transaction(client: Any, change: Change) -> Any:  # noqa: ANN401 - kazoo has no types
    """Sends a change as one transaction; returns kazoo's pending answer."""
    transaction = client.transaction()
    for operation in change:
        match operation:
            case Create(path, data, ephemeral, sequence):
                transaction.create(path, data, ephemeral=ephemeral, sequence=sequence)
            case SetData(path, data, version):
                transaction.set_data(path, data, version)
            case Delete(path):
                transaction.delete(path)
            case _:
                transaction.check(operation.path, operation.version)
    return transaction.commit_async()


def interpret_answer(answer: Any) -> Any:  # noqa: ANN401 - depends on the request
    """Returns the answer of a request: its value, None for a missing node, a Rejection of a transaction, or an error.

    Kazoo answers a transaction with a list. If the transaction failed, the list has an error for each operation.
    """
    if isinstance(answer, exceptions.NoNodeError):
        return None
    if isinstance(answer, list) and any(isinstance(a, Exception) for a in answer):
        return _find_refusal(answer)
    return answer


def _find_refusal(errors: Sequence[object]) -> Rejection | Exception:
    for index, error in enumerate(errors):
        if isinstance(error, Exception) and not isinstance(error, SECONDARY_ERRORS):
            why = REJECTION_REASONS.get(type(error))
            return error if why is None else Rejection(why, index)
    return CoordinationLost("a transaction failed, and the server gave no reason")


def translate_errors(errors: Sequence[Exception], answered: int) -> CoordinationError:
    """Returns the error to raise for kazoo's errors: CoordinationRefused if any is a refusal.

    Else it is SessionLost if all requests failed because the session has ended, and CoordinationLost otherwise.

    Args:
        errors: At least one error.
        answered: How many requests of the same batch were answered, so that something may have been done.
    """
    for error in errors:
        if isinstance(error, REFUSAL_ERRORS):
            return CoordinationRefused(f"ZooKeeper does not allow this: {_format_error(error)}")
    if not answered and all(isinstance(error, SESSION_END_ERRORS) for error in errors):
        return SessionLost("the session has ended: others may own its nodes now")
    if isinstance(errors[0], CoordinationError):
        return errors[0]
    return CoordinationLost(f"ZooKeeper cannot be reached, or did not answer: {_format_error(errors[0])}")


def _format_error(error: Exception) -> str:
    return f"{type(error).__name__} {error}".rstrip(" ()")
