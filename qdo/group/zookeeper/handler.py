"""The handler of a kazoo client: one thread, one session in its life, and timeouts for unresponsive servers.

Kazoo lets programs replace its handler. This one differs from kazoo's as follows:

* **No second session.** After a session ends, kazoo starts another under the same client and may send requests of the
  first session in it. This handler makes no connection after the session has ended.
* **Unresponsive servers are detected.** Kazoo counts its own requests as signs of life: while it sends requests, it
  never notices that no answers arrive. Here a connection counts as broken after two thirds of the session timeout
  without an answer.
* **The session's end is known in time.** Servers report it only once they can be reached again. Here a lease shows how
  long the session is certainly alive.
* **Short connect timeouts.** A server that accepts a connection without answering is abandoned early enough to try
  other servers.
* **One thread instead of three.** Callbacks run in the thread that reads the connection. They only enqueue messages.
* **Its own TLS**, which trusts only the configured authorities, checks the host's name and reads files once.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from kazoo.handlers.threading import KazooTimeoutError

from qdo.group.vitals import Vitals, now
from qdo.group.zookeeper.relay import PacketExchange

BROKEN_RATIO = 2 / 3
"""Ratio to the session timeout: without an answer for this long, a connection is broken. The rest is for a new one."""


class SessionLease:
    """The granted session timeout, counted from the latest request that the servers answered.

    The thread that reads the connection writes the lease, and the event loop reads it. Each attribute is set in one
    step. A process that was stopped for longer than the timeout finds its lease lapsed, whichever thread runs first.

    Args:
        timeout: The requested timeout in seconds.
        clock: Returns seconds.
        vitals: The memory in which a helper process records the servers' answers, or None if this process talks to the
            servers itself.

    Attributes:
        remaining: Seconds until the session may end; 0 if it has lapsed.
        broken: Whether the servers have not answered for ``BROKEN_RATIO`` of the timeout.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = now, vitals: Vitals | None = None) -> None:
        self.timeout = timeout
        self.now = clock
        self._vitals = vitals
        self._last: float | None = None
        self._late = False

    def grant(self, timeout: float, requested_at: float) -> None:
        """Stores the granted timeout; the first call starts the lease.

        Args:
            timeout: The granted timeout in seconds.
            requested_at: When the session was requested.
        """
        self.timeout = timeout
        if self._last is None:
            self._last = requested_at

    def renew(self, requested_at: float) -> None:
        """Renews the lease after an answer, unless a helper process does.

        Args:
            requested_at: When the answered request was sent: the server may not have received anything later.
        """
        if self._last is None or self._vitals is not None:
            return
        if self.silence > self.timeout:
            self._late = True
        self._last = max(self._last, requested_at)

    @property
    def silence(self) -> float:
        """Seconds since the latest answered request was sent; 0 before the session began."""
        last_answered = self._last if self._vitals is None else self._vitals.last_heard
        return 0.0 if last_answered is None else self.now() - last_answered

    @property
    def remaining(self) -> float:
        return 0.0 if self.lapsed else self.timeout - self.silence

    @property
    def lapsed(self) -> bool:
        """Whether the servers may have ended the session; final once true."""
        if self.silence > self.timeout or (self._vitals is not None and self._vitals.lapsed):
            self._late = True
        return self._late

    @property
    def broken(self) -> bool:
        return self.silence > self.timeout * BROKEN_RATIO


class PendingAnswer:
    """The answer to one request. One thread sets it, while another may add callbacks.

    Only the first answer counts: kazoo sets two answers for a request that is made while the client is closing.

    Attributes:
        value: The answer; None before it arrives and after an error.
        exception: The error.
    """

    __slots__ = ("_callbacks", "_ready", "exception", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.exception: BaseException | None = None
        self._ready = False
        self._callbacks: list[Callable[[PendingAnswer], object]] = []

    def set(self, value: Any = None) -> None:  # noqa: ANN401 - depends on the request
        self._set_once(value, None)

    def set_exception(self, exception: BaseException) -> None:
        self._set_once(None, exception)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ANN401, ARG002, FBT001, FBT002 - kazoo's signature
        """Returns the answer or raises its error. Never waits: raises KazooTimeoutError before the answer."""
        if not self._ready:
            raise KazooTimeoutError
        if self.exception is not None:
            raise self.exception
        return self.value

    def rawlink(self, callback: Callable[[PendingAnswer], object]) -> None:
        """Calls a function once with this object when the answer arrives, or now if it has arrived."""
        self._callbacks.append(callback)
        if self._ready:
            self._call()

    def _set_once(self, value: Any, exception: BaseException | None) -> None:  # noqa: ANN401 - depends on the request
        if self._ready:
            return
        self.value, self.exception = value, exception
        self._ready = True
        self._call()

    def _call(self) -> None:
        """Calls each callback once, even if two threads run this: popping from the list is one step."""
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            callback(self)


MAX_READ_BYTES = 65_536
"""Max bytes of one read."""


class Wire:
    """A connection to a server in the form of a socket for kazoo. It reads ahead and renews the lease from the answers.

    Kazoo reads each answer in two small reads and polls the operating system before each. This class reads everything
    that has arrived at once and returns it from memory, which makes a thousand answers several times cheaper. It also
    avoids two problems of TLS: decrypted data that the operating system's poll does not show, and records without data,
    after which kazoo would block in the middle of an answer.

    One thread uses it.

    Args:
        connection: A connected socket, encrypted if required.
        lease: Notified when the server grants a session and whenever the server answers.
    """

    def __init__(self, connection: socket.socket, lease: SessionLease) -> None:
        self._connection = connection
        self._lease = lease
        self._data = b""
        self._at = 0
        self._ended = False
        self._exchange = PacketExchange()
        self.fileno = connection.fileno
        self.setblocking = connection.setblocking
        self.getpeername = connection.getpeername
        self.close = connection.close

    def send(self, data: bytes) -> int:
        instant = self._lease.now()
        count = self._connection.send(data)
        self._exchange.record_sent(data[:count], instant)
        return count

    def is_greeted(self) -> bool:
        return self._exchange.timeout is not None

    def pending(self) -> int:
        return len(self._data) - self._at

    def fill(self) -> bool:
        """Reads everything that has arrived. Call it if nothing is pending and the socket is readable.

        Returns:
            Whether there is something to receive: data or the end.

        Raises:
            OSError: The connection is broken.
        """
        try:
            data = self._connection.recv(MAX_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except ssl.SSLEOFError:
            data = b""
        self._data, self._at = data, 0
        self._ended = not data
        if data:
            self._update_lease(data)
        return True

    def recv(self, most: int) -> bytes:
        """Returns at most ``most`` bytes; empty at the end.

        Raises:
            OSError: The connection is broken.
            ssl.SSLWantReadError: No data has arrived. Kazoo handles this error with and without TLS.
        """
        if not self.pending() and not self._ended and not self.fill():
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "nothing has arrived")
        data = self._data[self._at : self._at + most]
        self._at += len(data)
        return data

    def _update_lease(self, data: bytes) -> None:
        greeted = self.is_greeted()
        sent = self._exchange.record_received(data)
        if sent is None or not self._exchange.timeout:
            return
        if not greeted:
            self._lease.grant(self._exchange.timeout, sent)
        self._lease.renew(sent)


MIN_ANSWER_TIMEOUT = 1.0
"""Min timeout for a server's first answer, in seconds."""
ANSWER_TIMEOUT_RATIO = 9
"""Ratio of the session timeout to the timeout for a first answer.

Three servers fit in the third of the session timeout that ``BROKEN_RATIO`` leaves.
"""
CLOSE_TIMEOUT = 2.0
"""Timeout for the server's answer to the close of a session, in seconds."""

READABLE = select.POLLIN | select.POLLHUP | select.POLLERR
WRITABLE = select.POLLOUT | select.POLLHUP | select.POLLERR


class Handler:
    """A handler for a kazoo client; see the module. Kazoo calls the methods.

    Args:
        lease: The lease of the session.
        context: The TLS context, or None for connections without encryption.
        closing: Timeout for the server's answer to the close of the session, in seconds.
        keep: Starts a helper process between this program and its server, and returns the socket to use instead. None
            means no helper process.
        hangs: Returns whether the program is stuck, so that its session should end.

    Attributes:
        over: Whether the session has ended, so that no connection is made any more.
        last_error: Why the last connection attempt failed.
    """

    name = "one_session"
    timeout_exception = KazooTimeoutError
    sleep_func = staticmethod(time.sleep)

    def __init__(
        self,
        lease: SessionLease,
        context: ssl.SSLContext | None,
        closing: float = CLOSE_TIMEOUT,
        keep: Callable[[socket.socket, str], socket.socket] | None = None,
        hangs: Callable[[], bool] = lambda: False,
    ) -> None:
        self.over = False
        self.last_error: str | None = None
        self.running = False
        self._lease = lease
        self._context = context
        self._keep = keep
        self._hangs = hangs
        self._patience_at_end = closing
        self._closing: float | None = None

    def start(self) -> None:
        # Kazoo calls stop() before start().
        self.running = True
        self._closing = None

    def stop(self) -> None:
        """Limits the time for closing the session, from now on."""
        self.running = False
        self._closing = time.monotonic() + self._patience_at_end

    @property
    def patience(self) -> float:
        """Timeout for a server's first answer: a ninth of the session timeout, but at least ``MIN_ANSWER_TIMEOUT``.

        Never more than the session timeout.
        """
        return min(max(self._lease.timeout / ANSWER_TIMEOUT_RATIO, MIN_ANSWER_TIMEOUT), self._lease.timeout)

    def create_connection(
        self,
        address: tuple[str, int],
        timeout: float | None = None,  # noqa: ARG002 - kazoo passes the whole session timeout for one server
        hostname: str | None = None,
        **_: Any,  # noqa: ANN401 - kazoo's TLS options
    ) -> Wire:
        """Connects within ``patience``, through the helper process or with TLS. Fails after the end of the session."""
        if self.over:
            raise ConnectionRefusedError("the session has ended")
        try:
            connection = socket.create_connection(address, self.patience)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._keep is not None:
                    connection = self._keep(connection, hostname or address[0])
                elif self._context is not None:
                    connection = self._context.wrap_socket(connection, server_hostname=hostname)
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            self.last_error = f"{address[0]}:{address[1]}: {error}"
            raise
        return Wire(connection, self._lease)

    def select(
        self, readers: Iterable[Any], writers: Iterable[Any], _: Iterable[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Waits like ``select.select``, but raises TimeoutError as in :meth:`_check_timeouts`.

        A wire is readable if it has data in memory. Before a server's first answer the wait is at most ``patience``.
        """
        readers, writers = list(readers), list(writers)
        wire = next((r for r in (*readers, *writers) if isinstance(r, Wire)), None)
        if wire is not None and wire in readers and wire.pending():
            return [wire], [], []
        if wire is not None and not wire.is_greeted():
            timeout = self.patience if timeout is None else min(timeout, self.patience)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._check_timeouts(wire)
            descriptors = self._poll(readers, writers, until)
            readable = [r for r in readers if r.fileno() in descriptors and (r is not wire or wire.fill())]
            writable = [r for r in writers if r.fileno() in descriptors]
            if readable or writable or not descriptors:
                return readable, writable, []

    def _check_timeouts(self, wire: Wire | None) -> None:
        if self._closing is not None and time.monotonic() > self._closing:
            raise TimeoutError("the server does not answer")
        if self._closing is None and self._hangs():
            self.over = True
            raise TimeoutError("the event loop is blocked, so the session is abandoned")
        if wire is not None and wire.is_greeted() and self._lease.broken:
            raise TimeoutError("the server has not answered for too long")

    def _poll(self, readers: list[Any], writers: list[Any], until: float | None) -> frozenset[int]:
        poll = select.poll()
        for reader in readers:
            poll.register(reader, READABLE)
        for writer in writers:
            poll.register(writer, WRITABLE)
        if self._closing is not None:
            until = self._closing if until is None else min(until, self._closing)
        wait = None if until is None else max(0.0, until - time.monotonic()) * 1000 + 1
        return frozenset(number for number, _ in poll.poll(wait))

    def create_socket_pair(self) -> tuple[socket.socket, socket.socket]:
        return socket.socketpair()

    def event_object(self) -> threading.Event:
        return threading.Event()

    def async_result(self) -> PendingAnswer:
        return PendingAnswer()

    def spawn(self, function: Callable[..., Any], *args: Any, **options: Any) -> threading.Thread:  # noqa: ANN401 - the function's
        thread = threading.Thread(target=function, args=args, kwargs=options, name="qdo-zookeeper", daemon=True)
        thread.start()
        return thread

    def dispatch_callback(self, callback: Any) -> None:  # noqa: ANN401 - kazoo's
        # Runs in the calling thread.
        callback.func(*callback.args)
