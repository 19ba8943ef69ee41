"""A queue on a server, clients behind a proxy, and a consumer that records its messages."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from qdo.curator import TEXT, QueueBuilder
from qdo.errors import CoordinationLost
from qdo.settings import Retry
from tests import waiting
from tests.harness.proxy import Proxy
from tests.qdo.contract.zookeeper import socket_of

until = waiting.until
Kazoo: TypeAlias = Any
"""A client of kazoo, which has no types."""
PATIENCE = 60.0
"""Timeout in seconds for waits; a busy machine may be ten times slower than others."""
SESSION = 30.0
"""Session timeout in seconds that outlasts a paused machine."""
CLOSE_SESSION = -11
"""The type number of the request."""
AT_ONCE = Retry(attempts=0, base=0.0, cap=0.0)
"""Puts failed messages back without a pause."""


class RecordedCalls(list[Any]):
    """Records the calls of a function before they are held up or fail.

    Attributes:
        released: An event that calls wait for.
        fails: Returns the error with which a call fails, or None.
    """

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.released.set()
        self.fails: Callable[[Any], Exception | None] = lambda _: None

    def __call__(self, item: Any) -> None:  # noqa: ANN401 - any item
        self.append(item)
        assert self.released.wait(PATIENCE)
        if (error := self.fails(item)) is not None:
            raise error

    def wait(self, count: int) -> list[Any]:
        until(lambda: len(self) >= count)
        return list(self)


class Nodes:
    """The nodes of one test: its queue and its locks, and clients that reach them.

    Args:
        hosts: The addresses of the servers.
        root: A path used only by the test.
    """

    def __init__(self, hosts: str, root: str) -> None:
        self.hosts = hosts
        self.path = f"{root}/queue"
        self.lock_path = f"{root}/locks"
        self._closing = contextlib.ExitStack()

    def client(self, hosts: str | None = None, session: float = SESSION) -> Kazoo:
        often = KazooRetry(max_tries=-1, delay=0.05, backoff=1, max_delay=0.2)
        client = KazooClient(hosts or self.hosts, timeout=session, connection_retry=often)
        client.start(PATIENCE)
        self._closing.callback(client.close)
        self._closing.callback(client.stop)
        return client

    def proxy(self) -> Proxy:
        """Returns a proxy; it is closed after the clients that are created later."""
        proxy = Proxy.to(self.hosts)
        self._closing.callback(proxy.close)
        return proxy

    def builder(self, client: Kazoo, consumer: RecordedCalls | None = None, **options: object) -> QueueBuilder[str]:
        chosen: dict[str, Any] = {"lock_path": self.lock_path} | options
        return QueueBuilder(client, consumer, TEXT, self.path, **chosen)

    @contextlib.contextmanager
    def opened(self, queue: Any) -> Iterator[Any]:  # noqa: ANN401 - any kind of queue
        queue.start()
        try:
            yield queue
        finally:
            queue.close(PATIENCE)

    def close(self) -> None:
        self._closing.close()


def start(queue: Any) -> None:  # noqa: ANN401 - any kind of queue
    """Starts a queue, and tries again after CoordinationLost, for at most PATIENCE seconds."""

    def started() -> bool:
        try:
            queue.start()
        except CoordinationLost:
            return False
        return True

    until(started)


def expire(client: Kazoo) -> None:
    """Ends a client's session at the servers; returns once the client has noticed."""
    ended = threading.Event()
    client.add_listener(lambda state: ended.set() if state == "LOST" else None)
    host, port = socket_of(client).getpeername()[:2]
    end_session(f"{host}:{port}", client.client_id)
    assert ended.wait(PATIENCE)


def end_session(server: str, identity: tuple[int, bytes]) -> None:
    """Ends a session from another client with its number and password, whatever else connects in it meanwhile.

    Two requests are sent in one piece: to resume the session, and to close it. They go to the server of the session's
    own client, because kazoo does not understand a server's answer after the session has moved.
    """
    host, _, port = server.rpartition(":")
    session, password = identity
    connect = struct.pack(">iqiqi", 0, 0, int(SESSION * 1000), session, len(password)) + password + b"\0"
    close = struct.pack(">ii", 1, CLOSE_SESSION)
    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        connection.sendall(b"".join(struct.pack(">i", len(part)) + part for part in (connect, close)))
        while connection.recv(4096):
            """Until the server, which has closed the session, closes the connection."""
