"""The queue without envelopes, which ZooKeeper's own recipes have as well."""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from typing import Any

from qdo.coordination.tree import Delete, Rejection
from qdo.curator.items import largest
from qdo.curator.names import SIMPLE
from qdo.curator.options import LEAST_LIMIT, NODE_LIMIT, check_path
from qdo.curator.znodes import Changed, Znodes
from qdo.errors import InvalidArgument

WAIT = 60.0
"""Interval after which a queue is read again, in seconds, whatever the watch said."""


class SimpleDistributedQueue:
    """A queue of bytes, one message in each node, that programs take from themselves.

    A message is removed before it is returned: it is lost if the program dies then. Objects may be used by several
    threads.

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
        path: The queue's node; it is made when it is missing.
        node_limit: Bytes that the servers take in one request, ``jute.maxbuffer``.

    Raises:
        InvalidArgument: The path or the limit cannot be used.
    """

    def __init__(self, client: Any, path: str, *, node_limit: int = NODE_LIMIT) -> None:  # noqa: ANN401 - kazoo has no types
        check_path("path", path)
        if node_limit < LEAST_LIMIT:
            raise InvalidArgument(f"node_limit is a number of bytes from {LEAST_LIMIT} up, not {node_limit}")
        self._znodes = Znodes(client)
        self._path = path
        self._largest = largest(node_limit, path, SIMPLE.prefix())
        self._names: deque[str] = deque()
        self._news = threading.Condition()
        self._changes = 0

    def offer(self, data: bytes) -> None:
        """Puts a message at the end and waits until it is stored.

        Raises:
            InvalidArgument: It is too large for a node.
            CoordinationLost: Whether it was stored is not known.
            CoordinationError: It was not stored.
        """
        if len(data) > self._largest:
            raise InvalidArgument(
                f"a message of {len(data):,} bytes is too large for ZooKeeper, {self._largest:,} fit. Send a smaller "
                "one, or raise jute.maxbuffer on the servers and node_limit here"
            )
        self._znodes.append(self._path, SIMPLE.prefix(), data)

    def peek(self) -> bytes | None:
        """Returns the first message and leaves it there; None: the queue is empty. Raises CoordinationError."""
        return self._first(remove=False, changed=None)

    def element(self) -> bytes:
        """Returns the first message and leaves it there.

        Raises:
            LookupError: The queue is empty.
            CoordinationError: ZooKeeper did not answer or refused.
        """
        return self._some(self.peek())

    def remove(self) -> bytes:
        """Removes and returns the first message.

        Raises:
            LookupError: The queue is empty.
            CoordinationLost: A message may have been taken.
            CoordinationError: None was taken.
        """
        return self._some(self.poll())

    def poll(self, timeout: float = 0.0) -> bytes | None:
        """Removes and returns the first message.

        Args:
            timeout: Seconds to wait for one.

        Returns:
            None: there was none in time.

        Raises:
            CoordinationLost: A message may have been taken.
            CoordinationError: None was taken.
        """
        if timeout <= 0:
            return self._first(remove=True, changed=None)
        return self._wait(time.monotonic() + timeout)

    def take(self) -> bytes:
        """Removes and returns the first message; waits for one without a limit. Raises the errors of :meth:`poll`."""
        while (data := self._wait(time.monotonic() + WAIT)) is None:
            pass
        return data

    def _some(self, data: bytes | None) -> bytes:
        if data is None:
            raise LookupError(f"queue {self._path} is empty")
        return data

    def _wait(self, until: float) -> bytes | None:
        while True:
            seen = self._changes
            data = self._first(remove=True, changed=self._changed)
            left = until - time.monotonic()
            if data is not None or left <= 0:
                return data
            with self._news:
                self._news.wait_for(partial(self._news_since, seen), left)

    def _news_since(self, seen: int) -> bool:
        return self._changes != seen

    def _changed(self, _: object) -> None:
        """Called in kazoo's thread: the queue changed, or the connection broke."""
        with self._news:
            self._changes += 1
            self._news.notify_all()

    def _first(self, *, remove: bool, changed: Changed | None) -> bytes | None:
        """Uses the last list; makes another one only when nothing is left of it.

        New messages come behind those that were listed, so a list is good until it is used up.
        """
        while True:
            while (name := self._head()) is not None:
                data = self._get(name, remove=remove)
                if data is None or remove:
                    self._forget(name)
                if data is not None:
                    return data
            names = self._znodes.children(self._path, changed).get()
            if names is None:
                self._znodes.ensure(self._path).get()
                continue
            self._names = deque(child.name for child in SIMPLE.in_order(names))
            if not self._names:
                return None

    def _get(self, name: str, *, remove: bool) -> bytes | None:
        path = f"{self._path}/{name}"
        node = self._znodes.read(path).get()
        if node is None or (remove and isinstance(self._znodes.apply(Delete(path)).get(), Rejection)):
            return None
        return node.data

    def _head(self) -> str | None:
        try:
            return self._names[0]
        except IndexError:
            return None

    def _forget(self, name: str) -> None:
        try:
            self._names.remove(name)
        except ValueError:
            return  # another thread has
