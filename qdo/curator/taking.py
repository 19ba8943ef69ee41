"""The protocol by which one message is taken from a queue and its node removed, put back or left."""

from __future__ import annotations

import asyncio
import enum
import os
import socket
from contextlib import suppress
from functools import partial

from qdo.coordination.tree import Applied, Check, Create, Delete, Link, Operation, Rejection, RejectionReason
from qdo.curator.bridge import ensure, insist
from qdo.curator.nodes import Child, largest
from qdo.errors import CoordinationError, CoordinationLost, SessionLost


class Untaken(enum.Enum):
    """Why a node was not taken."""

    GONE = "it is not there any more"
    BLOCKED = "it is in the hands of another consumer"


class Taker:
    """Deletes a node before its messages are handled: each is handled at most once, and lost if that fails.

    The consumer whose deletion succeeds takes the node. After CoordinationLost it may be deleted, and its messages
    lost.

    Attributes:
        recoverable: A message that was taken can be put back.
    """

    recoverable = False

    def __init__(self, link: Link, path: str) -> None:
        self._link = link
        self._path = path

    async def begin(self) -> None:
        """Prepares; called before messages are taken.

        Raises:
            CoordinationError: ZooKeeper did not answer or refused.
        """

    async def leave(self) -> None:
        """Nothing will be taken or finished any more."""

    async def take(self, child: Child) -> bytes | Untaken:
        """Returns the data of a node, which is this consumer's if it is recoverable.

        Raises:
            CoordinationLost: It was taken or not; that shows when it is tried again.
            SessionLost
        """
        (node,) = await self._link.read([self._item(child)])
        return Untaken.GONE if node is None else node.data

    async def secure(self, child: Child) -> Untaken | None:
        """Makes a node this consumer's for good, which was read and is not recoverable; else returns why not."""
        (outcome,) = await self._link.apply([(Delete(self._item(child)),)])
        return Untaken.GONE if isinstance(outcome, Rejection) else None

    async def release(self, child: Child) -> None:
        """Leaves a node to the next consumer; raises SessionLost."""

    async def finish(self, child: Child) -> None:
        """Removes a node that was taken and handled.

        Raises:
            SessionLost: It was not removed: another consumer will take it again.
        """

    def _item(self, child: Child) -> str:
        return f"{self._path}/{child.name}"


class LockingTaker(Taker):
    """Holds a lock on a node until its messages are handled, as Curator does: each is handled at least once.

    The lock of ``<path>/<name>`` is the ephemeral node ``<lock path>/<name>``. Beside the locks lies one further
    ephemeral node of each consumer, its fence. Every transaction of the consumer checks that it exists, so nothing is
    done on the strength of a lock that ended with an earlier session of the same client.

    Args:
        link: To the session of the consumer.
        path: Of the queue.
        lock_path: The parent of the locks.
        token: Name of the fence and data of the locks, different for each consumer.
        limit: Max bytes of a request at the servers.
    """

    recoverable = True

    def __init__(self, link: Link, path: str, lock_path: str, token: str, limit: int) -> None:
        super().__init__(link, path)
        self._lock_path = lock_path
        self._token = token.encode()
        self._fence = Check(f"{lock_path}/{token}")
        self._limit = limit

    async def begin(self) -> None:
        about = f"{socket.gethostname()} {os.getpid()}".encode()
        (outcome,) = await self._link.apply([(Create(self._fence.path, about, ephemeral=True),)])
        if isinstance(outcome, Rejection) and outcome.why is RejectionReason.NO_NODE:
            raise CoordinationLost(f"the node {self._lock_path} of the locks was removed just now; start it again")

    async def leave(self) -> None:
        with suppress(CoordinationError):  # else it goes with the session
            await insist(self._link, lambda: self._link.apply([(Delete(self._fence.path),)]))

    async def take(self, child: Child) -> bytes | Untaken:
        lock = Create(self._lock(child), self._token, ephemeral=True)
        (outcome,), data = await asyncio.gather(
            self._link.apply([(self._fence, Check(self._item(child)), lock)]), super().take(child)
        )
        if isinstance(outcome, Rejection):
            return await self._refused(outcome)
        if data is Untaken.GONE:
            await self.release(child)
        return data

    async def holder(self, child: Child) -> bool | None:
        """Watches a node's lock; returns True if it is this consumer's own, None if it is gone.

        It is the consumer's own if the answer to the request for it was lost.
        """
        (node,) = await self._link.read([self._lock(child)], watch=True)
        return None if node is None else node.data == self._token

    async def resume(self, child: Child) -> bytes | Untaken:
        """Returns the data of a node whose lock is this consumer's already; raises SessionLost."""
        data = await insist(self._link, partial(super().take, child))
        if data is Untaken.GONE:
            await self.release(child)
        return data

    async def finish(self, child: Child) -> None:
        await self._end(child, Delete(self._item(child)))

    async def release(self, child: Child) -> None:
        await self._end(child)

    async def put_back(self, child: Child) -> str | None:
        """Moves a node to the end of those with the same prefix: of the queue, or of its priority, epoch or id.

        Returns:
            Its new name. None: it is where it was, because it is too large to be sent again, or it is gone.

        Raises:
            SessionLost: It was not moved: another consumer will take it again.
        """
        data = await insist(self._link, partial(super().take, child))
        if isinstance(data, Untaken) or len(data) > largest(self._limit, self._path, child.prefix):
            await self.release(child)
            return None
        again = Create(f"{self._path}/{child.prefix}", data, sequence=True)
        created = await self._end(child, Delete(self._item(child)), again)
        return created[0].rpartition("/")[2] if created else None

    def _lock(self, child: Child) -> str:
        return f"{self._lock_path}/{child.name}"

    async def _refused(self, refusal: Rejection) -> Untaken:
        if refusal.at == 0:
            raise SessionLost("the consumer's session has ended")
        if refusal.at == 1:
            return Untaken.GONE
        if refusal.why is RejectionReason.NODE_EXISTS:
            return Untaken.BLOCKED
        await ensure(self._link, [self._lock_path])
        raise CoordinationLost(f"the node {self._lock_path} of the locks was not there; it was made again")

    async def _end(self, child: Child, *wanted: Operation) -> tuple[str, ...]:
        """Applies operations to a locked node and removes its lock, in one transaction; waits until that is certain.

        A request may have been done although its answer was lost. Then the node is not there at the next try, and only
        the lock has to be removed, if it exists.

        Returns:
            The paths of nodes that were made.
        """
        lock = Delete(self._lock(child))
        rest: tuple[Operation, ...] = (*wanted, lock)
        while rest:
            (outcome,) = await insist(self._link, partial(self._link.apply, [(self._fence, *rest)]))
            if isinstance(outcome, Applied):
                return outcome.created
            if outcome.at == 0:
                raise SessionLost("the consumer's session has ended")
            if rest[outcome.at - 1] is not lock:
                rest = (lock,)
            elif len(wanted) == 1:
                rest = rest[:-1]  # somebody removed the lock by hand; the message was handled all the same
            else:
                rest = ()
        return ()
