"""The options of the queues."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, get_args

from qdo.curator.lifecycle import Event
from qdo.curator.nodes import MESSAGE_HEAD_BYTES, NODE_OVERHEAD_BYTES, check_path, decode, encode
from qdo.errors import BadItem, InvalidArgument, QdoError
from qdo.settings import Retry

if TYPE_CHECKING:
    from qdo.curator.leader import LeaderElection

T = TypeVar("T")
ErrorMode: TypeAlias = Literal["requeue", "delete"]

NODE_LIMIT = 0xFFFFF
"""Max bytes of a request at a ZooKeeper server, unless ``jute.maxbuffer`` is set."""
MIN_NODE_LIMIT = 16 * 1024
RETRY_FOREVER = Retry(attempts=0, base=1.0, cap=60.0)
MAX_THREADS = 64


@dataclass(frozen=True)
class Serializer(Generic[T]):
    """Converts messages to bytes and back.

    Attributes:
        serialize: Returns the bytes of a message.
        deserialize: Returns the message in bytes; raises any error if they do not hold a message.

    Example:
        >>> import json
        >>> Serializer(serialize=lambda value: json.dumps(value).encode(), deserialize=json.loads).serialize([1])
        b'[1]'
    """

    serialize: Callable[[T], bytes]
    deserialize: Callable[[bytes], T]

    def write(self, messages: Iterable[T], most: int) -> bytes:
        """Returns the data of a node with these messages.

        Raises:
            InvalidArgument: There are no messages, one cannot be serialized, or the node has more bytes than ``most``;
                then the iterable is not exhausted.
        """
        parts: list[bytes] = []
        size = NODE_OVERHEAD_BYTES
        for message in messages:
            try:
                data = self.serialize(message)
            except Exception as error:
                raise InvalidArgument(f"a message, {type(message).__name__}, cannot be serialized: {error}") from error
            if not isinstance(data, bytes):
                raise InvalidArgument(f"a message was serialized as {type(data).__name__}; a serializer returns bytes")
            parts.append(data)
            size += MESSAGE_HEAD_BYTES + len(data)
            if size > most:
                raise InvalidArgument(
                    f"a node of {size:,} bytes is too large for ZooKeeper, {most:,} fit. Put fewer or smaller messages "
                    "at a time, or raise jute.maxbuffer on the servers and node_limit here"
                )
        if not parts:
            raise InvalidArgument("no messages were given to put")
        return encode(parts)

    def read(self, data: bytes) -> list[T]:
        """Returns the messages of a node.

        Raises:
            BadItem: The data is not an envelope of messages that can be deserialized.
        """
        try:
            return [self.deserialize(message) for message in decode(data)]
        except BadItem:
            raise
        except BaseException as error:
            # Native code may raise any BaseException, and a bad message must not end a thread of the queue.
            raise BadItem(f"the serializer cannot read a message: {type(error).__name__}: {error}", data) from error


def _same(value: bytes) -> bytes:
    return value


BYTES: Serializer[bytes] = Serializer(_same, _same)
"""For messages that are bytes."""
TEXT: Serializer[str] = Serializer(str.encode, bytes.decode)
"""For messages that are texts, encoded in UTF-8."""


@dataclass(frozen=True)
class CuratorOptions(Generic[T]):
    """The options of a queue. The defaults are Curator's where it has them.

    Attributes:
        client: A started ``kazoo.client.KazooClient``. The queue neither starts nor stops it.
        consumer: Called with each message, in a thread of the queue. If None, the queue is only put into.
        serializer: Converts messages to bytes and back.
        path: Path of the queue's node, such as ``/queues/orders``. ``start()`` creates it if it is missing.
        lock_path: The node for the locks of messages in hand. All consumers of the queue have to use it, and no other
            queue. A message is removed when its consumer has returned, and delivered again if its consumer dies.
        delete_first: Remove each message before the consumer is called, without a lock path. The message is lost if the
            consumer fails. In Curator this is the default without a lock path; here it has to be set.
        max_items: Max nodes of the queue; puts wait for room. Each of several producers may exceed it by a tenth of the
            room. No limit if None.
        put_in_background: Puts return before the message is stored; :meth:`~qdo.curator.DistributedQueue.flush_puts`
            waits for them and raises their errors. If None, puts do so unless ``max_items`` is set.
        final_flush: Seconds that ``close()`` waits for background puts.
        threads: Number of threads, and so of messages in hand at a time, 1 to 64. Only one thread keeps the order.
        error_mode: What to do when the consumer raises an error: ``requeue`` puts the message's node back behind
            nodes of the same priority, epoch or id; ``delete`` removes it.
        election: Take messages only while this contender leads, which keeps the order among several consumers. It must
            have the same client. Close the queue before the election. If None, all consumers take messages.
        retry: How long a failed message stays locked before it is put back, and after how many attempts in this process
            it is removed instead; never by default.
        node_limit: Max bytes of a request at the servers, ``jute.maxbuffer``.
        answer_timeout: Seconds that a foreground put waits for its answer.
        on_state: Called with ``suspended``, ``reconnected`` and ``lost``, in the thread of the event loop, which all
            queues of the process share. So it must not block, and cannot close the queue itself.
        on_error: Called with every error that has no caller: BadItem, ConsumerFailed and coordination errors in a
            thread of the queue, PutFailed in the thread of the event loop. They are also logged as ``qdo.curator``.

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
    retry: Retry = field(default=RETRY_FOREVER, kw_only=True)
    node_limit: int = field(default=NODE_LIMIT, kw_only=True)
    answer_timeout: float = field(default=30.0, kw_only=True)
    on_state: Callable[[Event], None] | None = field(default=None, kw_only=True)
    on_error: Callable[[QdoError], None] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_path("path", self.path)
        self._check_delivery()
        if self.consumer is not None and not callable(self.consumer):
            raise InvalidArgument(f"consumer is a function of a message, or None, not {self.consumer!r}")
        if self.error_mode not in get_args(ErrorMode):
            raise InvalidArgument(f"error_mode is {' or '.join(get_args(ErrorMode))}, not {self.error_mode!r}")
        if not 1 <= self.threads <= MAX_THREADS:
            raise InvalidArgument(f"threads is a number from 1 to {MAX_THREADS}, not {self.threads}")
        if self.max_items is not None and self.max_items < 1:
            raise InvalidArgument(f"max_items is a number above 0, not {self.max_items}")
        if self.node_limit < MIN_NODE_LIMIT:
            raise InvalidArgument(f"node_limit is a number of bytes from {MIN_NODE_LIMIT} up, not {self.node_limit}")
        for name, value in (("final_flush", self.final_flush), ("answer_timeout", self.answer_timeout)):
            if not (math.isfinite(value) and value >= 0):
                raise InvalidArgument(f"{name} is a number of seconds, not {value}")

    def _check_delivery(self) -> None:
        if self.lock_path is not None:
            check_path("lock_path", self.lock_path)
            if self.lock_path == self.path:
                raise InvalidArgument(f"lock_path has to be another node than path, and both are {self.path!r}")
            if self.delete_first:
                raise InvalidArgument("lock_path and delete_first exclude each other; leave one of them out")
        if self.election is not None and self.election.client is not self.client:
            raise InvalidArgument(
                f"the election at {self.election.path} has another client than the queue {self.path}. Give both the "
                "same one, so that no message is taken after the leader's session has ended"
            )
        if self.consumer is not None and self.lock_path is None and not self.delete_first:
            raise InvalidArgument(
                f"a consumer of {self.path!r} needs a lock_path, so that a message is not lost with it. To have each "
                "message removed before the consumer is called, set delete_first=True"
            )

    @property
    def in_background(self) -> bool:
        return self.max_items is None if self.put_in_background is None else self.put_in_background
