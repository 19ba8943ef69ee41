"""A queue's row together with the check that authorizes the caller for it.

Rows come from a cache and may be out of date. The store detects that and raises ``QueueChanged``. Then the row is read
again, the caller is checked against the new row, and the call is repeated. So a call is always authorized by the row
that it uses, although most requests do not read a row. Refusals are also decided on a fresh row: a permission or
partition that another process has just added is never reported as missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from queuey.model.errors import (
    ApplicationNotFound,
    InvalidRequest,
    Malformed,
    NotAllowed,
    QueueChanged,
    QueueNotFound,
    StoreBusy,
)
from queuey.model.messages import Queue
from queuey.storage import Store

T = TypeVar("T")
Check = Callable[[Queue], Awaitable[None]]
"""Raises :class:`~queuey.model.errors.NotAllowed` if the row does not allow the caller's request, and
:class:`~queuey.model.errors.NotAuthenticated` if its credential has expired meanwhile."""


MAX_ATTEMPTS = 5


async def allow(_queue: Queue) -> None:
    """The check of the service itself, which may do everything."""


async def find_queue(store: Store, application: str, name: str, *, fresh: bool = False) -> Queue:
    """Returns a queue's row; raises ``ApplicationNotFound`` or ``QueueNotFound``, whichever is missing."""
    try:
        return await store.catalogue.queue(application, name, fresh=fresh)
    except QueueNotFound:
        await require_application(store, application)
        raise


async def require_application(store: Store, application: str) -> None:
    if not await store.applications.has_application(application):
        raise ApplicationNotFound(application)


async def find_same_queue(store: Store, application: str, name: str, qid: int) -> Queue | None:
    """Returns a queue's present row, or None if it was purged or deleted since it had this ``qid``."""
    try:
        queue = await store.catalogue.queue(application, name, fresh=True)
    except QueueNotFound:
        return None
    return queue if queue.qid == qid else None


class QueueAccess:
    """A caller's access to one queue. Used by one call at a time.

    Args:
        queue: The row to begin with; as an attribute, the row that was read last.
        check: Authorizes the caller; by default it is the service itself, which may do everything.
    """

    __slots__ = ("_check", "_store", "queue")

    def __init__(self, store: Store, queue: Queue, check: Check = allow) -> None:
        self.queue = queue
        self._check = check
        self._store = store

    async def refresh(self) -> None:
        queue = await find_queue(self._store, self.queue.application, self.queue.name, fresh=True)
        await self._check(queue)
        self.queue = queue

    async def require(self) -> None:
        """Checks the caller; reads a fresh row if the check refuses the present one.

        Raises:
            NotAllowed: The check also refuses the fresh row.
        """
        try:
            await self._check(self.queue)
        except NotAllowed:
            await self.refresh()

    async def _renew(self) -> bool:
        """Refreshes the row; returns whether more than its version has changed."""
        old = self.queue
        await self.refresh()
        return msgspec.structs.replace(old, version=self.queue.version) != self.queue

    async def apply(self, call: Callable[[Queue], Awaitable[T]]) -> T:
        """Makes a call with the row. If the row is out of date, repeats the call with a fresh one.

        Raises:
            InvalidRequest: ``call`` raised it with an up-to-date row. ``Malformed`` is raised with any row.
            QueueNotFound: The queue is gone.
            NotAllowed: The caller is no longer allowed to do this.
            StoreBusy: The row changes too fast.
        """
        for _ in range(MAX_ATTEMPTS):
            try:
                return await call(self.queue)
            except Malformed:
                raise
            except (QueueChanged, InvalidRequest) as error:
                # Keep the error in no variable after this block: a cycle with this frame would keep the body in memory.
                if not await self._renew() and isinstance(error, InvalidRequest):
                    raise
        raise self._make_busy_error()

    def _make_busy_error(self) -> StoreBusy:
        return StoreBusy(f"Queue {self.queue.name!r} changed {MAX_ATTEMPTS} times while this request ran. Try again.")
