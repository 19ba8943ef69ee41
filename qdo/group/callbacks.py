"""The callbacks of a member in the life of an owned partition.

For each partition ``on_assign`` is called first and ends before any message is read. Then ``on_revoke`` follows, which
may still commit, or ``on_lost``, or both if the session ends or the timeout expires during the revocation.
:class:`CallbackListener` calls them one at a time. An exception in a callback is logged and does not change who owns
the partitions.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from qdo.errors import CoordinationRefused
from qdo.group.offsets import PartitionOwnership
from qdo.loops import start_task
from qdo.partitions import Partition

log = logging.getLogger("qdo.consumer")

Callback = Callable[[frozenset[Partition]], Awaitable[None] | None]
CallbackKind = Literal["assign", "revoke", "lost"]

WARNING_SECONDS = 60
"""Seconds after which a callback that is still running is logged."""


class PartitionListener:
    """Receives events about the partitions that a member owns. This base class does nothing.

    All methods are called in the event loop of the group. For each row, ``assigned`` is called first, then ``revoke``
    or ``lost``, or both if revoking was not finished in time. Each call ends before the next call for its row begins,
    unless it takes longer than ``revoke_timeout``: then it is cancelled, and the next call may begin while it still
    hangs. A partition may come back as another row meanwhile. Exceptions are logged; if ``revoke`` fails, ``lost``
    follows.
    """

    async def assigned(self, rows: Collection[PartitionOwnership]) -> None:
        """This member owns the rows now; commits for them are accepted while this runs."""

    def stop(self, rows: Collection[PartitionOwnership]) -> None:
        """No message of the rows may be handed out from now on. Called as soon as they are no longer ``owned``."""

    async def revoke(self, row: PartitionOwnership) -> None:
        """Finishes the work on a row; the row is released when this returns.

        Called once per row, so that a slow one does not delay the others; the calls run concurrently. Cancelled after
        ``revoke_timeout``.
        """

    async def lost(self, rows: Collection[PartitionOwnership]) -> None:
        """Other members own the rows now: abandon all work on them. Commits are refused."""

    def suspended(self) -> None:
        """The service does not answer: hand out no new messages."""

    def resumed(self) -> None:
        """The service answers again: hand out messages of the rows that are still held."""

    def refused(self, error: CoordinationRefused) -> None:
        """The service refuses an operation that the member needs. The operation is retried."""

    def recorded(self, offsets: Mapping[Partition, tuple[str, bool]]) -> None:
        """These offsets were recorded. The flag says whether they may go back."""

    def not_recorded(self, error: Exception) -> None:
        """A write of offsets failed. It is retried after CoordinationLost."""


class CallbackListener(PartitionListener):
    """Calls the callbacks of a consumer's user, coroutine functions or plain ones, one at a time.

    ::

        on_assign {1, 2}    ├──────┤
        on_revoke {1}              ├────────────── (cancelled, goes on) ──┤
        on_revoke {2, 3}           ·    2, 3 wait and share one call      ├───┤
        on_lost {1}                ·                                      ·   ├──┤
        on_assign {1}              ·                                      ·      ├──┤

    * **One at a time**: a callback waits until the one before has ended, even if that was cancelled and goes on.
    * **A call for all**: partitions that wait for ``on_revoke`` share one call, so that each waits for at most one
      other. The call is cancelled when no partition waits for it any more.
    * **Only what began ends**: ``on_revoke`` and ``on_lost`` get only partitions with which ``on_assign`` was called.
    """

    def __init__(
        self, on_assign: Callback | None = None, on_revoke: Callback | None = None, on_lost: Callback | None = None
    ) -> None:
        self._callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        self._turn = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()
        self._begun: set[PartitionOwnership] = set()
        """The rows with which ``on_assign`` was called, until they are revoked or lost."""
        self._next_revoke: _CallbackCall | None = None
        """The call of ``on_revoke`` that waits for its turn."""

    async def assigned(self, rows: Collection[PartitionOwnership]) -> None:
        await self._wait_for(self._start("assign"), rows)

    async def revoke(self, row: PartitionOwnership) -> None:
        if self._next_revoke is None:
            self._next_revoke = self._start("revoke")
        await self._wait_for(self._next_revoke, [row])

    async def lost(self, rows: Collection[PartitionOwnership]) -> None:
        await self._wait_for(self._start("lost"), rows)

    def _start(self, kind: CallbackKind) -> _CallbackCall:
        call = _CallbackCall(kind)
        call.task = start_task(self._run(call), self._running)
        return call

    async def _wait_for(self, call: _CallbackCall, rows: Collection[PartitionOwnership]) -> None:
        call.rows.update(rows)
        try:
            await asyncio.shield(call.task)
        except asyncio.CancelledError:
            call.rows.difference_update(rows)
            if not call.rows:
                call.task.cancel()
                self._take_from_queue(call)
            raise

    async def _run(self, call: _CallbackCall) -> None:
        async with self._turn:
            self._take_from_queue(call)
            if call.kind == "assign":
                self._begun |= call.rows
            partitions = frozenset(row.partition for row in call.rows & self._begun)
            callback = self._callbacks[call.kind]
            if callback is not None and partitions:
                warning = asyncio.get_running_loop().call_later(WARNING_SECONDS, _warn_of_slow, callback)
                try:
                    with log_callback_errors(callback, partitions):
                        result = callback(partitions)
                        if inspect.isawaitable(result):
                            await result
                finally:
                    warning.cancel()
            if call.kind != "assign":
                self._begun -= call.rows

    def _take_from_queue(self, call: _CallbackCall) -> None:
        if self._next_revoke is call:
            self._next_revoke = None


class _CallbackCall:
    """A call of a callback.

    Attributes:
        kind: The callback.
        rows: The rows that wait for it.
        task: Waits for its turn and runs it.
    """

    task: asyncio.Task[None]

    def __init__(self, kind: CallbackKind) -> None:
        self.kind: CallbackKind = kind
        self.rows: set[PartitionOwnership] = set()


def _warn_of_slow(callback: Callback) -> None:
    name = getattr(callback, "__name__", callback)
    log.warning("callback %s has been running for %s s. All other callbacks wait for it", name, WARNING_SECONDS)


@contextmanager
def log_callback_errors(callback: Callable[..., object], partitions: frozenset[Partition]) -> Iterator[None]:
    """Logs an exception of a callback instead of raising it: it cannot change which member owns the partitions.

    A cancellation counts as the callback's own error, unless the task that awaits the callback was cancelled.
    """
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            raise
        log.exception("callback %s failed for %s partitions", getattr(callback, "__name__", callback), len(partitions))


def _is_cancelled() -> bool:
    """Returns whether the current task was cancelled; False in a thread without a loop."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return False
    return task is not None and task.cancelling() > 0
