"""Nodes of ZooKeeper through a client of kazoo that the program made: requests, and answers with errors of our own.

Requests of one client are answered in the order in which they were sent, so several can be on their way at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from qdo.coordination.tree import Create, Operation, Rejection, RejectionReason
from qdo.coordination.zookeeper.driver.translation import judge, send, translate
from qdo.errors import CoordinationError, CoordinationLost, InvalidArgument

T = TypeVar("T")
Changed: TypeAlias = Callable[[object], None]
"""Called in kazoo's thread when a watched node changed, and when the connection broke."""


class Node(NamedTuple):
    """A node that was read; ``owner`` is the session whose end removes it, 0: none."""

    data: bytes
    owner: int
    children: int


class Answer(Generic[T]):
    """The answer to one request.

    Args:
        pending: Kazoo's.
        shape: Converts kazoo's answer; is given None where there was no such node.
    """

    def __init__(self, pending: Any, shape: Callable[[Any], T] = lambda answer: answer) -> None:  # noqa: ANN401 - kazoo has no types
        self._pending = pending
        self._shape = shape

    def get(self, timeout: float | None = None) -> T:
        """Waits for it.

        Args:
            timeout: Seconds; None: until kazoo has an answer, the connection breaks or the session ends.

        Raises:
            CoordinationLost: It was done or not.
            SessionLost: It was not done.
            CoordinationRefused: The credentials do not allow it.
        """
        if not self._pending.wait(timeout):
            raise CoordinationLost(f"ZooKeeper has not answered for {timeout:g} s; what was asked for may be done yet")
        error = self._pending.exception
        judged = judge(self._pending.value if error is None else error)
        if isinstance(judged, Exception):
            raise translate([judged], 0) from judged
        return self._shape(judged)

    def then(self, call: Callable[[Answer[T]], None]) -> None:
        """Calls back in kazoo's thread; the callback must not wait."""
        self._pending.rawlink(lambda _: call(self))


class Znodes:
    """The nodes that a started ``KazooClient`` reaches, which has kazoo's own handler with threads."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401 - kazoo has no types
        self._client = client

    def require_connection(self) -> None:
        """Raises InvalidArgument if the client was not started, or is not connected now."""
        if not self._client.connected:
            raise InvalidArgument("the client of ZooKeeper is not connected; call client.start() first")

    def listen(self, hear: Callable[[str], None]) -> None:
        """Calls back with ``CONNECTED``, ``SUSPENDED`` and ``LOST``, in kazoo's thread, until :meth:`unlisten`."""
        self._client.add_listener(hear)

    def unlisten(self, hear: Callable[[str], None]) -> None:
        self._client.remove_listener(hear)

    def read(self, path: str, changed: Changed | None = None) -> Answer[Node | None]:
        """Asks for a node; None: it is not there, and is not watched."""
        return Answer(self._client.get_async(path, watch=changed), _node)

    def look(self, path: str) -> Answer[Node | None]:
        """Asks for a node without its data."""
        return Answer(self._client.exists_async(path), _stat)

    def children(self, path: str, changed: Changed | None = None) -> Answer[list[str] | None]:
        """Asks for the names of a node's children; None: the node is not there, and is not watched."""
        return Answer(self._client.get_children_async(path, watch=changed))

    def apply(self, *change: Operation) -> Answer[list[str] | Rejection]:
        """Asks for operations, all or none. The answer has the path of each node that was made, else an empty text."""
        return Answer(send(self._client, change), _made)

    def append(self, path: str, prefix: str, data: bytes, timeout: float | None = None) -> None:
        """Creates a node with the next sequence, and its parent if that is missing; waits until it is stored.

        Raises:
            CoordinationLost: It was stored or not.
            CoordinationError: It was not stored.
        """
        create = Create(f"{path}/{prefix}", data, sequence=True)
        answer = self.apply(create).get(timeout)
        if isinstance(answer, Rejection) and answer.why is RejectionReason.NO_NODE:
            self.ensure(path).get(timeout)
            answer = self.apply(create).get(timeout)
        if isinstance(answer, Rejection):
            raise not_created(path, answer)

    def ensure(self, path: str) -> Answer[object]:
        """Asks for a persistent node, with all above it, unless it exists."""
        return Answer(self._client.ensure_path_async(path))


def not_created(path: str, rejection: Rejection) -> CoordinationError:
    if rejection.why is RejectionReason.NODE_EXISTS:
        return CoordinationError(
            f"ZooKeeper has no further number for the nodes of {path}: 2147483647 were created in it. Use another path"
        )
    return CoordinationError(f"the node {path} of the queue is not there; somebody has removed it")


def _node(answer: Any) -> Node | None:  # noqa: ANN401 - kazoo's
    return answer and Node(answer[0], answer[1].ephemeralOwner, answer[1].numChildren)


def _stat(answer: Any) -> Node | None:  # noqa: ANN401 - kazoo's
    return answer and Node(b"", answer.ephemeralOwner, answer.numChildren)


def _made(answer: Any) -> list[str] | Rejection:  # noqa: ANN401 - kazoo's
    if isinstance(answer, Rejection):
        return answer
    return [each if isinstance(each, str) else "" for each in cast("Sequence[object]", answer)]
