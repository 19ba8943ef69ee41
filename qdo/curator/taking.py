"""The protocol that takes one message from a queue, and removes its node, puts it back or leaves it."""

from __future__ import annotations

import asyncio
import enum
import os
import socket
from contextlib import suppress
from functools import partial

from qdo.curator.bridge import create_missing_nodes, retry_until_answered
from qdo.curator.nodes import Child, max_node_bytes
from qdo.errors import CoordinationError, CoordinationLost, SessionLost
from qdo.group.zookeeper.tree import Applied, Check, Create, Delete, Link, Operation, Rejection, RejectionReason


class Untaken(enum.Enum):
    """The reason why a node was not taken."""

    GONE = "it does not exist any more"
    BLOCKED = "another consumer holds it"


class Taker:
    """Deletes a node before its messages are handled: at most once, and lost if handling fails.

    The consumer whose delete succeeds takes the node. After CoordinationLost the node may be deleted, and its messages
    lost.

    Attributes:
        recoverable: True if a message that was taken can be put back.
    """

    recoverable = False

    def __init__(self, link: Link, path: str) -> None:
        self._link = link
        self._path = path

    async def begin(self) -> None:
        """Prepares to take messages; raises CoordinationError."""

    async def leave(self) -> None:
        """Ends taking: no method is called afterwards."""

    async def take(self, child: Child) -> bytes | Untaken:
        """Returns the data of a node; a recoverable taker locks the node for this consumer.

        Raises:
            CoordinationLost: The node may have been taken or not. Another call shows which.
            SessionLost: The session has ended.
        """
        (node,) = await self._link.read([self._item_path(child)])
        return Untaken.GONE if node is None else node.data

    async def delete_to_take(self, child: Child) -> Untaken | None:
        """Deletes a node that was read; returns why it was not taken, or None.

        Never call it on a recoverable taker: it would delete a locked node whose messages are not handled yet.
        """
        (outcome,) = await self._link.apply([(Delete(self._item_path(child)),)])
        return Untaken.GONE if isinstance(outcome, Rejection) else None

    async def release(self, child: Child) -> None:
        """Unlocks a node for other consumers; raises SessionLost."""

    async def finish(self, child: Child) -> None:
        """Removes a node that was taken and handled.

        Raises:
            SessionLost: The node was not removed. Another consumer will take it again.
        """

    def _item_path(self, child: Child) -> str:
        return f"{self._path}/{child.name}"


class LockingTaker(Taker):
    """Locks a node until its messages are handled, as Curator does: at least once.

    The lock of ``<path>/<name>`` is the ephemeral node ``<lock path>/<name>``. Beside the locks each consumer has one
    more ephemeral node, its fence. Every transaction of the consumer checks that the fence exists, so a lock that ended
    with an earlier session of the same client has no effect.

    ``begin`` creates the fence, but not the lock path: it raises CoordinationLost if that is missing.

    Args:
        link: A link to the consumer's session.
        path: Path of the queue.
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
            raise CoordinationLost(f"the lock node {self._lock_path} was removed just now; start the queue again")

    async def leave(self) -> None:
        with suppress(CoordinationError):  # else it ends with the session
            await retry_until_answered(self._link, lambda: self._link.apply([(Delete(self._fence.path),)]))

    async def take(self, child: Child) -> bytes | Untaken:
        lock = Create(self._path_of_lock(child), self._token, ephemeral=True)
        (outcome,), data = await asyncio.gather(
            self._link.apply([(self._fence, Check(self._item_path(child)), lock)]), super().take(child)
        )
        if isinstance(outcome, Rejection):
            return await self._explain_rejection(outcome)
        if data is Untaken.GONE:
            await self.release(child)
        return data

    async def is_holder(self, child: Child) -> bool | None:
        """Watches a node's lock; returns whether this consumer holds it, or None if it is gone.

        This consumer holds it if the answer to its request was lost.
        """
        (node,) = await self._link.read([self._path_of_lock(child)], watch=True)
        return None if node is None else node.data == self._token

    async def resume(self, child: Child) -> bytes | Untaken:
        data = await retry_until_answered(self._link, partial(super().take, child))
        if data is Untaken.GONE:
            await self.release(child)
        return data

    async def finish(self, child: Child) -> None:
        await self._apply_and_unlock(child, Delete(self._item_path(child)))

    async def release(self, child: Child) -> None:
        await self._apply_and_unlock(child)

    async def put_back(self, child: Child) -> str | None:
        """Moves a node behind all nodes with the same prefix: of the queue, or of its priority, epoch or id.

        Returns:
            The new name, or None if the node was not moved: it is too large to be sent again, or gone, or its lock is
            gone. Its lock is released then.

        Raises:
            SessionLost: The node was not moved. Another consumer will take it again.
        """
        data = await retry_until_answered(self._link, partial(super().take, child))
        if isinstance(data, Untaken) or len(data) > max_node_bytes(self._limit, self._path, child.prefix):
            await self.release(child)
            return None
        again = Create(f"{self._path}/{child.prefix}", data, sequence=True)
        created = await self._apply_and_unlock(child, Delete(self._item_path(child)), again)
        return created[0].rpartition("/")[2] if created else None

    def _path_of_lock(self, child: Child) -> str:
        return f"{self._lock_path}/{child.name}"

    async def _explain_rejection(self, refusal: Rejection) -> Untaken:
        """Returns why a node was not taken; raises SessionLost if the fence is gone.

        Creates a missing lock path again and raises CoordinationLost.
        """
        if refusal.at == 0:
            raise SessionLost("the consumer's session has ended")
        if refusal.at == 1:
            return Untaken.GONE
        if refusal.why is RejectionReason.NODE_EXISTS:
            return Untaken.BLOCKED
        await create_missing_nodes(self._link, [self._lock_path])
        raise CoordinationLost(f"the lock node {self._lock_path} was missing; it was created again")

    async def _apply_and_unlock(self, child: Child, *operations: Operation) -> tuple[str, ...]:
        """Applies operations to a locked node and removes its lock, in one transaction. Repeats it until answered.

        A request may have been applied although its answer was lost. Then the node is gone at the next attempt, and
        only the lock has to be removed, if it exists. If the lock is already gone, a finish continues without it, and a
        put-back gives up.

        Returns:
            The paths of created nodes.
        """
        lock = Delete(self._path_of_lock(child))
        rest: tuple[Operation, ...] = (*operations, lock)
        while rest:
            (outcome,) = await retry_until_answered(self._link, partial(self._link.apply, [(self._fence, *rest)]))
            if isinstance(outcome, Applied):
                return outcome.created
            if outcome.at == 0:
                raise SessionLost("the consumer's session has ended")
            if rest[outcome.at - 1] is not lock:
                rest = (lock,)
            elif len(operations) == 1:
                rest = rest[:-1]  # the lock was removed by hand; the message was handled nevertheless
            else:
                rest = ()
        return ()
