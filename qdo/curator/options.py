"""The options of Curator's queues."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, get_args

from qdo.curator.lifecycle import Event
from qdo.curator.nodes import FORBIDDEN, HEAD, OVERHEAD, decode, encode
from qdo.errors import BadItem, InvalidArgument, QdoError
from qdo.settings import Retry

if TYPE_CHECKING:
    from qdo.curator.leader import LeaderElection

T = TypeVar("T")
ErrorMode: TypeAlias = Literal["requeue", "delete"]

NODE_LIMIT = 0xFFFFF
"""Max bytes of a request at a server of ZooKeeper where ``jute.maxbuffer`` is not set."""
LEAST_LIMIT = 16 * 1024
FOREVER = Retry(attempts=0, base=1.0, cap=60.0)
MOST_THREADS = 64


@dataclass(frozen=True)
class Serializer(Generic[T]):
    """How messages become bytes and back.

    Attributes:
        serialize: Returns the bytes of a message.
        deserialize: Returns the message of some bytes; raises any error for those of no message.

    Example:
        >>> import json
        >>> Serializer(serialize=lambda value: json.dumps(value).encode(), deserialize=json.loads).serialize([1])
        b'[1]'
    """

    serialize: Callable[[T], bytes]
    deserialize: Callable[[bytes], T]

    def write(self, messages: Iterable[T], most: int) -> bytes:
        """Returns the bytes of a node with these messages.

        Raises:
            InvalidArgument: There is none, one cannot be serialized, or there are more bytes than ``most``. Then the
                messages are not read to their end.
        """
        parts: list[bytes] = []
        size = OVERHEAD
        for message in messages:
            try:
                part = self.serialize(message)
            except Exception as error:
                raise InvalidArgument(f"a message, {type(message).__name__}, cannot be serialized: {error}") from error
            if not isinstance(part, bytes):
                raise InvalidArgument(f"a message was serialized as {type(part).__name__}; a serializer returns bytes")
            parts.append(part)
            size += HEAD + len(part)
            if size > most:
                raise InvalidArgument(
                    f"a node of {size:,} bytes is too large for ZooKeeper, {most:,} fit. Put fewer or smaller messages "
                    "at a time, or raise jute.maxbuffer on the servers and node_limit here"
                )
        if not parts:
            raise InvalidArgument("there is no message to put")
        return encode(parts)

    def read(self, data: bytes) -> list[T]:
        """Returns the messages of a node.

        Raises:
            BadItem: It holds something else.
        """
        try:
            return [self.deserialize(message) for message in decode(data)]
        except BadItem:
            raise
        except BaseException as error:
            # Native code raises others as well, and a thread of the queue must not end with a message.
            raise BadItem(f"the serializer cannot read a message: {type(error).__name__}: {error}", data) from error


def _same(value: bytes) -> bytes:
    return value


BYTES: Serializer[bytes] = Serializer(_same, _same)
"""Messages are bytes."""
TEXT: Serializer[str] = Serializer(str.encode, bytes.decode)
"""Messages are texts, in UTF-8."""


@dataclass(frozen=True)
class QueueOptions(Generic[T]):
    """The options of a queue. The defaults are Curator's where it has them.

    Attributes:
        client: A started ``kazoo.client.KazooClient``. The queue uses it and neither starts nor stops it.
        consumer: Is called with each message, in a thread of the queue; None: the queue is only put into.
        serializer: How messages become bytes and back.
        path: The queue's node, such as ``/queues/orders``. ``start()`` makes it if it is missing.
        lock_path: The node that holds the locks of messages in hand, which all consumers of the queue have to use, and
            no other queue. A message is removed when its consumer has returned, and is handed out again if its consumer
            dies.
        delete_first: Instead of a lock path: each message is removed before the consumer is called, and lost if that
            fails. Curator does so wherever there is no lock path; here it has to be asked for.
        max_items: Nodes that the queue may have; puts wait for room. Several producers may exceed it by a tenth of the
            room each. None: any number.
        put_in_background: Puts return before the message is stored; :meth:`~qdo.curator.DistributedQueue.flush_puts`
            waits and tells of failures. None: unless ``max_items`` is set.
        final_flush: Seconds that ``close()`` waits for puts in the background.
        threads: How many messages may be in hand at a time, 1 to 64. Only one thread keeps the order.
        error_mode: The fate of a message for which the consumer raised an error: ``requeue`` puts its node back
            behind those of the same priority, epoch or id; ``delete`` removes it.
        election: Messages are taken only while this contender leads, which keeps the order among several consumers. It
            has the same client. Close the queue before the election. None: consumers take messages side by side.
        retry: How long a failed message stays locked before it is put back, and after how many attempts in this process
            it is removed instead: by default never.
        node_limit: Bytes that the servers take in one request, ``jute.maxbuffer``.
        answer_timeout: Seconds that a put in the foreground waits for its answer.
        on_state: Is called with ``suspended``, ``reconnected`` and ``lost``, in the thread of the event loop, which all
            queues of the process share: it must not wait, and so it does not close the queue itself.
        on_error: Is called with every error that has no caller: BadItem, ConsumerFailed and errors of coordination in a
            thread of the queue, PutFailed in that of the event loop. They are logged as ``qdo.curator`` as well.

    Raises:
        InvalidArgument: A value cannot be used.
    """

    client: Any
    consumer: Callable[[T], object] | None
    serializer: Serializer[T]
    path: str
    lock_path: str | None = field(default=None, kw_only=True)
    delete_first: bool = field(default=False, kw_only=True)
    max_items: int | None = field(default=None, kw_only=True)
    put_in_background: bool | None = field(default=None, kw_only=True)
    final_flush: float = field(default=5.0, kw_only=True)
    threads: int = field(default=1, kw_only=True)
    error_mode: ErrorMode = field(default="requeue", kw_only=True)
    election: LeaderElection | None = field(default=None, kw_only=True)
    retry: Retry = field(default=FOREVER, kw_only=True)
    node_limit: int = field(default=NODE_LIMIT, kw_only=True)
    answer_timeout: float = field(default=30.0, kw_only=True)
    on_state: Callable[[Event], None] | None = field(default=None, kw_only=True)
    on_error: Callable[[QdoError], None] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_path("path", self.path)
        self._check_taking()
        if self.consumer is not None and not callable(self.consumer):
            raise InvalidArgument(f"consumer is a function of a message, or None, not {self.consumer!r}")
        if self.error_mode not in get_args(ErrorMode):
            raise InvalidArgument(f"error_mode is {' or '.join(get_args(ErrorMode))}, not {self.error_mode!r}")
        if not 1 <= self.threads <= MOST_THREADS:
            raise InvalidArgument(f"threads is a number from 1 to {MOST_THREADS}, not {self.threads}")
        if self.max_items is not None and self.max_items < 1:
            raise InvalidArgument(f"max_items is a number above 0, not {self.max_items}")
        if self.node_limit < LEAST_LIMIT:
            raise InvalidArgument(f"node_limit is a number of bytes from {LEAST_LIMIT} up, not {self.node_limit}")
        for name, value in (("final_flush", self.final_flush), ("answer_timeout", self.answer_timeout)):
            if not (math.isfinite(value) and value >= 0):
                raise InvalidArgument(f"{name} is a number of seconds, not {value}")

    def _check_taking(self) -> None:
        if self.lock_path is not None:
            check_path("lock_path", self.lock_path)
            if self.lock_path == self.path:
                raise InvalidArgument(f"lock_path is another node than path, which is {self.path!r} too")
            if self.delete_first:
                raise InvalidArgument("with a lock_path messages are not deleted first; leave one of the two out")
        if self.election is not None and self.election.client is not self.client:
            raise InvalidArgument(
                f"the election at {self.election.path} has another client than the queue {self.path}. Give both the "
                "same one, so that no message is taken when the session of the lead has ended"
            )
        if self.consumer is not None and self.lock_path is None and not self.delete_first:
            raise InvalidArgument(
                f"a consumer of {self.path!r} needs a lock_path, so that a message is not lost with it. To have each "
                "message removed before the consumer is called, say delete_first=True"
            )

    @property
    def in_background(self) -> bool:
        """Puts return before the message is stored."""
        return self.max_items is None if self.put_in_background is None else self.put_in_background


def check_path(name: str, path: str) -> None:
    """Raises InvalidArgument for an invalid path of a queue."""
    parts = path.split("/")
    usable = len(parts) > 1 and not parts[0] and not {"", ".", ".."} & set(parts[1:]) and not FORBIDDEN.search(path)
    if not usable:
        raise InvalidArgument(f"{name} is the path of a node such as /queues/orders, not {path!r}")
    if parts[1] == "zookeeper":
        raise InvalidArgument(f"{name} cannot be below /zookeeper, which belongs to the servers, as {path!r} is")
