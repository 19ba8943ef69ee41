"""A queue row in use, together with the check that let the caller in.

Rows come from a cache and may be out of date. The store notices and refuses (``QueueChanged``); then the row is read
afresh, the caller is checked against *that* row, and the call is made again. So permission is always decided on the
row that is used, although the usual request reads no row at all. A refusal is decided on a fresh row too: a permission
or partition that another process has just made is never reported as missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec

from queuey.errors import (
    ApplicationNotFound,
    InvalidRequest,
    Malformed,
    QueueChanged,
    QueueNotFound,
    StoreBusy,
)
from queuey.messages import Queue
from queuey.service.core import Core
from queuey.storage import Store, bridge

T = TypeVar("T")
Check = Callable[[Queue], None]
"""Raises :class:`~queuey.errors.NotAllowed` when the caller may not do what it asks with this row, and
:class:`~queuey.errors.NotAuthenticated` when its credential has ended meanwhile."""

ATTEMPTS = 5
"""Max reads of a row that keeps changing."""


async def find_queue(store: Store, application: str, name: str, *, fresh: bool = False) -> Queue:
    try:
        return await store.catalogue.queue(application, name, fresh=fresh)
    except QueueNotFound as error:
        if not await store.applications.has_application(application):
            raise ApplicationNotFound(application) from error
        raise


class QueueAccess:
    """A caller's way to one queue. ``queue`` is the row as last seen. Used by one call at a time.

    Args:
        core: Has the threads in which callers are checked.
        store: Has the queue.
        queue: The row, for which ``check`` was made.
        check: Authorizes the caller.
    """

    __slots__ = ("_check", "_core", "_store", "queue")

    def __init__(self, core: Core, store: Store, queue: Queue, check: Check) -> None:
        self.queue = queue
        self._core = core
        self._check = check
        self._store = store

    async def refresh(self) -> None:
        """Reads the row afresh and checks the caller against it.

        Raises:
            QueueNotFound: It is gone.
            NotAllowed: The caller may no longer do this.
        """
        queue = await find_queue(self._store, self.queue.application, self.queue.name, fresh=True)
        await self._core.in_thread(partial(self._check, queue))
        self.queue = queue

    async def _renew(self) -> bool:
        """Refreshes, and returns whether the row had been out of date."""
        old = self.queue
        await self.refresh()
        return msgspec.structs.replace(old, version=self.queue.version) != self.queue

    def use(self, call: Callable[[Queue], T]) -> T:
        """Does as :meth:`apply` with a call that blocks, as this does."""

        async def run(queue: Queue) -> T:
            return call(queue)

        return bridge.run(self.apply(run))

    async def apply(self, call: Callable[[Queue], Awaitable[T]]) -> T:
        """Makes a call with the row, again with a fresh one as long as the store says that it has changed.

        Raises:
            InvalidRequest: ``call`` raised it, with a row that is up to date; ``Malformed`` with any row.
            QueueNotFound: The queue is gone.
            NotAllowed: The caller may no longer do this.
            StoreBusy: The row changes too fast.
        """
        for _ in range(ATTEMPTS):
            try:
                return await call(self.queue)
            except Malformed:
                raise
            except (QueueChanged, InvalidRequest) as error:
                # No variable outlives this block: the error has this frame, and a cycle would keep the body.
                if not await self._renew() and isinstance(error, InvalidRequest):
                    raise
        raise self._busy()

    def _busy(self) -> StoreBusy:
        return StoreBusy(f"Queue {self.queue.name!r} changed {ATTEMPTS} times while this request ran. Try again.")
