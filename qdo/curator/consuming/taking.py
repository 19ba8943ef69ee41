"""The protocol by which one message is taken from a queue and its node removed, put back or left."""

from __future__ import annotations

import abc
import enum
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from qdo.coordination.tree import Check, Create, Delete, Operation, Rejection, RejectionReason
from qdo.curator.items import largest
from qdo.curator.names import Child
from qdo.curator.znodes import Changed, Znodes
from qdo.errors import CoordinationLost, SessionLost

Read: TypeAlias = Callable[[bytes], "list[Any]"]
"""Makes messages of a node's bytes, or raises BadItem."""

TRY_AGAIN = 0.1
"""Interval between two tries of a request whose end is not known, in seconds."""


class Untaken(enum.Enum):
    """Why a node was not taken."""

    GONE = "it is not there any more"
    BLOCKED = "it is in the hands of another consumer"


class Taker(abc.ABC):
    """The way in which nodes are taken; threads may use it for different nodes at a time."""

    recoverable: bool
    """A message that was taken can be put back."""

    def __init__(self, znodes: Znodes, path: str, read: Read) -> None:
        self._znodes = znodes
        self._path = path
        self._read = read

    @abc.abstractmethod
    def begin(self) -> None:
        """Prepares; called before messages are taken, again if it failed.

        Raises:
            CoordinationError: ZooKeeper did not answer or refused.
        """

    @abc.abstractmethod
    def leave(self) -> None:
        """Nothing will be taken or finished any more; does not wait."""

    @abc.abstractmethod
    def take(self, child: Child) -> list[Any] | Untaken:
        """Makes a node this consumer's; returns its messages.

        Raises:
            BadItem: It is left as it was.
            CoordinationLost: It was taken or not; that shows when it is tried again.
            SessionLost
        """

    @abc.abstractmethod
    def finish(self, child: Child) -> None:
        """Removes a node that was taken and handled.

        Raises:
            SessionLost: It was not removed: another consumer will take it again.
        """

    def _item(self, child: Child) -> str:
        return f"{self._path}/{child.name}"


class DeletingTaker(Taker):
    """Deletes a node before its messages are handled: each is handled at most once, and lost if that fails.

    The consumer whose deletion succeeds takes the node. After CoordinationLost it may be deleted, and its messages
    lost.
    """

    recoverable = False

    def begin(self) -> None: ...

    def leave(self) -> None: ...

    def take(self, child: Child) -> list[Any] | Untaken:
        node = self._znodes.read(self._item(child)).get()
        if node is None:
            return Untaken.GONE
        messages = self._read(node.data)
        if isinstance(self._znodes.apply(Delete(self._item(child))).get(), Rejection):
            return Untaken.GONE
        return messages

    def finish(self, child: Child) -> None: ...


class LockingTaker(Taker):
    """Holds a lock on a node until its messages are handled, as Curator does: each is handled at least once.

    The lock of ``<path>/<name>`` is the ephemeral node ``<lock path>/<name>``. Beside the locks lies one further
    ephemeral node of each consumer, its fence. Every transaction of the consumer checks that it exists, so nothing is
    done on the strength of a lock that ended with an earlier session of the same client.

    Args:
        znodes: Of the client.
        path: Of the queue.
        read: Decodes a node's bytes.
        lock_path: The parent of the locks.
        token: Name of the fence and data of the locks, different for each consumer.
        about: Data of the fence, for people.
        limit: Max bytes of a request at the servers.
    """

    recoverable = True

    def __init__(
        self, znodes: Znodes, path: str, read: Read, *, lock_path: str, token: str, about: str, limit: int
    ) -> None:
        super().__init__(znodes, path, read)
        self._lock_path = lock_path
        self._token = token.encode()
        self._about = about.encode()
        self._fence = Check(f"{lock_path}/{token}")
        self._limit = limit

    def begin(self) -> None:
        self._znodes.ensure(self._lock_path).get()
        answer = self._znodes.apply(Create(self._fence.path, self._about, ephemeral=True)).get()
        if isinstance(answer, Rejection) and answer.why is RejectionReason.NO_NODE:
            raise CoordinationLost(f"the node {self._lock_path} of the locks was removed just now; start it again")

    def leave(self) -> None:
        self._znodes.apply(Delete(self._fence.path))

    def take(self, child: Child) -> list[Any] | Untaken:
        locking = self._znodes.apply(
            self._fence, Check(self._item(child)), Create(self._lock(child), self._token, ephemeral=True)
        )
        reading = self._znodes.read(self._item(child))
        answer = locking.get()
        if isinstance(answer, Rejection):
            return self._refused(answer)
        node = reading.get()
        if node is None:
            self.release(child)
            return Untaken.GONE
        return self._messages(child, node.data)

    def holder(self, child: Child, changed: Changed) -> bool | None:
        """Watches a node's lock; returns True if it is this consumer's own, None if it is gone.

        It is the consumer's own if the answer to the request for it was lost.
        """
        node = self._znodes.read(self._lock(child), changed).get()
        return None if node is None else node.data == self._token

    def resume(self, child: Child) -> list[Any] | Untaken:
        """Returns the messages of a node whose lock is this consumer's already; raises the errors of :meth:`take`."""
        node = self._reread(child)
        if node is None:
            self.release(child)
            return Untaken.GONE
        return self._messages(child, node)

    def finish(self, child: Child) -> None:
        self._end(child, Delete(self._item(child)))

    def release(self, child: Child) -> None:
        """Leaves a node to the next consumer; raises SessionLost."""
        self._end(child)

    def put_back(self, child: Child) -> str | None:
        """Moves a node to the end of those with the same prefix: of the queue, or of its priority, epoch or id.

        Returns:
            Its new name. None: it is where it was, because it is too large to be sent again, or it is gone.

        Raises:
            SessionLost: It was not moved: another consumer will take it again.
        """
        data = self._reread(child)
        if data is None or len(data) > largest(self._limit, self._path, child.prefix):
            self.release(child)
            return None
        again = Create(f"{self._path}/{child.prefix}", data, sequence=True)
        made = self._end(child, Delete(self._item(child)), again)
        return made[2].rpartition("/")[2] if len(made) > 2 else None  # noqa: PLR2004 - fence, deletion, creation

    def _lock(self, child: Child) -> str:
        return f"{self._lock_path}/{child.name}"

    def _messages(self, child: Child, data: bytes) -> list[Any]:
        try:
            return self._read(data)
        except BaseException:
            self.release(child)
            raise

    def _refused(self, refusal: Rejection) -> Untaken:
        if refusal.at == 0:
            raise SessionLost("the consumer's session has ended")
        if refusal.at == 1:
            return Untaken.GONE
        if refusal.why is RejectionReason.NODE_EXISTS:
            return Untaken.BLOCKED
        self._znodes.ensure(self._lock_path).get()
        raise CoordinationLost(f"the node {self._lock_path} of the locks was not there; it was made again")

    def _reread(self, child: Child) -> bytes | None:
        while True:
            try:
                node = self._znodes.read(self._item(child)).get()
            except CoordinationLost:
                time.sleep(TRY_AGAIN)
            else:
                return None if node is None else node.data

    def _end(self, child: Child, *wanted: Operation) -> Sequence[str]:
        """Applies operations to a locked node and removes its lock, in one transaction; waits until that is certain.

        A request may have been done although its answer was lost. Then the node is not there at the next try, and only
        the lock has to be removed, if it exists.
        """
        lock = Delete(self._lock(child))
        rest: tuple[Operation, ...] = (*wanted, lock)
        while rest:
            try:
                answer = self._znodes.apply(self._fence, *rest).get()
            except CoordinationLost:
                time.sleep(TRY_AGAIN)
                continue
            if not isinstance(answer, Rejection):
                return answer
            if answer.at == 0:
                raise SessionLost("the consumer's session has ended")
            if rest[answer.at - 1] is not lock:
                rest = (lock,)
            elif len(wanted) == 1:
                rest = rest[:-1]  # somebody removed the lock by hand; the message was handled all the same
            else:
                rest = ()
        return ()
