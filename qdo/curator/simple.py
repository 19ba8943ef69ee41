"""The queue without envelopes, which is also among ZooKeeper's own recipes."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from qdo.curator.bridge import create_missing_nodes, create_sequential_node, run
from qdo.curator.nodes import SIMPLE, check_path, max_node_bytes
from qdo.curator.options import MIN_NODE_LIMIT, NODE_LIMIT
from qdo.errors import InvalidArgument
from qdo.group.zookeeper.link import BorrowedLink
from qdo.group.zookeeper.tree import Delete, Link, Rejection
from qdo.loops import Signal, wait_for_event

RELIST_INTERVAL = 60.0
"""Interval after which a queue is listed again without a change reported by the watch, in seconds."""


class SimpleDistributedQueue:
    """A queue of bytes, one message in each node, from which programs take messages by calls.

    A message is removed before it is returned, so it is lost if the program dies then. An object may be used by
    several threads.

    ::

        from kazoo.client import KazooClient
        from qdo.curator import SimpleDistributedQueue

        client = KazooClient("127.0.0.1:2181")
        client.start()
        queue = SimpleDistributedQueue(client, "/queues/simple")
        queue.offer(b"an apple")
        assert queue.peek() == b"an apple"
        assert queue.take() == b"an apple"
        assert queue.poll() is None
        client.stop()
        client.close()

    Args:
        client: A started ``kazoo.client.KazooClient``.
        path: Path of the queue's node. It is created if it is missing.
        node_limit: Max bytes of a request at the servers, ``jute.maxbuffer``.

    Raises:
        InvalidArgument: The path or the limit is not valid.
    """

    def __init__(self, client: Any, path: str, *, node_limit: int = NODE_LIMIT) -> None:  # noqa: ANN401 - kazoo has no types
        check_path("path", path)
        if node_limit < MIN_NODE_LIMIT:
            raise InvalidArgument(f"node_limit is a number of bytes from {MIN_NODE_LIMIT} up, not {node_limit}")
        self._client = client
        self._path = path
        self._max_bytes = max_node_bytes(node_limit, path, SIMPLE.prefix())
        self._link: Link | None = None
        self._names: deque[str] = deque()
        self._changes = Signal()

    def offer(self, data: bytes) -> None:
        """Puts a message at the end and waits until it is stored.

        Raises:
            InvalidArgument: The message is too large for a node.
            CoordinationLost: The message may have been stored or not.
            CoordinationError: The message was not stored.
        """
        if len(data) > self._max_bytes:
            raise InvalidArgument(
                f"a message of {len(data):,} bytes is too large for ZooKeeper, {self._max_bytes:,} fit. Send a smaller "
                "one, or raise jute.maxbuffer on the servers and node_limit here"
            )
        run(self._offer(data))

    def peek(self) -> bytes | None:
        """Returns the first message without removing it, or None if the queue is empty. Raises CoordinationError."""
        return run(self._read_first(remove=False))

    def element(self) -> bytes:
        """Returns the first message without removing it.

        Raises:
            LookupError: The queue is empty.
            CoordinationError: ZooKeeper did not answer or refused.
        """
        return self._require_message(self.peek())

    def remove(self) -> bytes:
        """Removes and returns the first message.

        Raises:
            LookupError: The queue is empty.
            CoordinationLost: A message may have been removed.
            CoordinationError: No message was removed.
        """
        return self._require_message(self.poll())

    def poll(self, timeout: float = 0.0) -> bytes | None:
        """Removes and returns the first message.

        Args:
            timeout: Seconds to wait for a message.

        Returns:
            The message, or None if the queue was empty until the timeout.

        Raises:
            CoordinationLost: A message may have been removed.
            CoordinationError: No message was removed.
        """
        if timeout <= 0:
            return run(self._read_first(remove=True))
        return run(self._poll(timeout))

    def take(self) -> bytes:
        """Removes and returns the first message; waits for one without limit. Raises as :meth:`poll` does."""
        while (data := run(self._poll(RELIST_INTERVAL))) is None:
            pass
        return data

    def _require_message(self, data: bytes | None) -> bytes:
        if data is None:
            raise LookupError(f"queue {self._path} is empty")
        return data

    async def _offer(self, data: bytes) -> None:
        await create_sequential_node(await self._open_link(), self._path, SIMPLE.prefix(), data)

    async def _open_link(self) -> Link:
        if self._link is None or self._link.state == "lost":
            self._link = BorrowedLink(self._client)
            self._link.on_watch = lambda _: self._changes.notify()
            self._link.on_state = lambda _: self._changes.notify()
        await self._link.open()
        return self._link

    async def _poll(self, seconds: float) -> bytes | None:
        until = time.monotonic() + seconds
        while True:
            change = self._changes.next
            data = await self._read_first(remove=True, watch=True)
            remaining_seconds = until - time.monotonic()
            if data is not None or remaining_seconds <= 0:
                return data
            await wait_for_event(change, remaining_seconds)

    async def _read_first(self, *, remove: bool, watch: bool = False) -> bytes | None:
        """Returns the first message, or None if the queue is empty. Creates the queue's node if it is missing.

        Lists the queue only when the last list is used up: new messages come after all listed ones.
        """
        link = await self._open_link()
        while True:
            while self._names:
                name = self._names[0]
                data = await self._read_node(link, name, remove=remove)
                if (data is None or remove) and name in self._names:  # unless another call has removed it
                    self._names.remove(name)
                if data is not None:
                    return data
            (names,) = await link.children([self._path], watch=watch)
            if names is None:
                await create_missing_nodes(link, [self._path])
                continue
            self._names = deque(child.name for child in SIMPLE.in_order(names))
            if not self._names:
                return None

    async def _read_node(self, link: Link, name: str, *, remove: bool) -> bytes | None:
        path = f"{self._path}/{name}"
        (node,) = await link.read([path])
        if node is None or (remove and isinstance((await link.apply([(Delete(path),)]))[0], Rejection)):
            return None
        return node.data
