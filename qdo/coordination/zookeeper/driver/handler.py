"""The handler of a kazoo client: one thread, one session for its life, no silent server.

Kazoo lets programs replace its handler, and this one differs from kazoo's in what matters here:

* **No second session.** After the end of a session kazoo begins another under the same client and may send under it
  what was asked for under the first. Here no connection is made any more once the session has ended.
* **No silent server.** Kazoo counts what it sends as a sign of life: while requests go out, it never notices that
  nothing comes back. Here a connection counts as broken after two thirds of the session's timeout without an answer.
* **An end in time.** Servers report the end of a session only once they can be reached again. Here a lease says for how
  long it is certainly alive.
* **No long waits.** A server that accepts a connection and says nothing is given up soon enough to try other servers.
* **One thread instead of three.** Callbacks run in the thread that reads the connection: ours only leave a message.
* **Its own TLS**, which trusts the named authorities alone, checks the host's name and reads files once.
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

from qdo.keepalive.relay import Exchange
from qdo.keepalive.vitals import Vitals, now

BROKEN = 2 / 3
"""Ratio of the timeout: a connection without an answer for so long is broken, which leaves a third for another."""


class SessionLease:
    """The timeout that the servers granted, counted from the latest request that they answered.

    The thread that reads the connection writes it, the event loop reads it; every attribute is set in one step. A
    process that was stopped for longer than the timeout finds its lease lapsed, whichever thread runs first.

    Args:
        timeout: Seconds that were asked for.
        clock: Returns the time in seconds.
        vitals: Another process talks to the servers, and writes there when they answered; None: this one does.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = now, vitals: Vitals | None = None) -> None:
        self.timeout = timeout
        self.now = clock
        self._vitals = vitals
        self._last: float | None = None
        self._late = False

    def grant(self, timeout: float, asked: float) -> None:
        """Stores the granted timeout; the first call starts the lease.

        Args:
            timeout: Seconds.
            asked: When the session was asked for.
        """
        self.timeout = timeout
        if self._last is None:
            self._last = asked

    def hear(self, asked: float) -> None:
        """Renews the lease for an answer, unless another process does.

        Args:
            asked: When the request was sent: the servers may have heard nothing later.
        """
        if self._last is None or self._vitals is not None:
            return
        if self.silence > self.timeout:
            self._late = True
        self._last = max(self._last, asked)

    @property
    def silence(self) -> float:
        """Seconds since a request that the servers answered; 0 before the session began."""
        heard = self._last if self._vitals is None else self._vitals.last_heard
        return 0.0 if heard is None else self.now() - heard

    @property
    def left(self) -> float:
        """Seconds that the session has left if the servers answer nothing more."""
        return 0.0 if self.lapsed else self.timeout - self.silence

    @property
    def lapsed(self) -> bool:
        """The servers may have ended the session. Once found it stays so."""
        if self.silence > self.timeout or (self._vitals is not None and self._vitals.lapsed):
            self._late = True
        return self._late

    @property
    def broken(self) -> bool:
        """Nothing was answered for so long that there must be something wrong with the connection."""
        return self.silence > self.timeout * BROKEN


class PendingAnswer:
    """The answer to one request. One thread sets it, another may add callbacks at the same time.

    Only the first answer counts: kazoo gives two to a request that comes while it is being closed.

    Attributes:
        value: The answer; None as well while there is none or an error.
        exception: The error.
    """

    __slots__ = ("_callbacks", "_ready", "exception", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.exception: BaseException | None = None
        self._ready = False
        self._callbacks: list[Callable[[PendingAnswer], object]] = []

    def set(self, value: Any = None) -> None:  # noqa: ANN401 - of any request
        self._finish(value, None)

    def set_exception(self, exception: BaseException) -> None:
        self._finish(None, exception)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ANN401, ARG002, FBT001, FBT002 - kazoo's signature
        """Returns the answer, or raises the error; waiting for it is not allowed."""
        if not self._ready:
            raise KazooTimeoutError
        if self.exception is not None:
            raise self.exception
        return self.value

    def rawlink(self, callback: Callable[[PendingAnswer], object]) -> None:
        """Calls back once there is an answer, or at once."""
        self._callbacks.append(callback)
        if self._ready:
            self._call()

    def _finish(self, value: Any, exception: BaseException | None) -> None:  # noqa: ANN401 - of any request
        if self._ready:
            return
        self.value, self.exception = value, exception
        self._ready = True
        self._call()

    def _call(self) -> None:
        """Calls each callback once, though both threads may be here: taking one from the list is one step."""
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            callback(self)


PIECE = 65_536
"""Max bytes that are read at once."""


class Wire:
    """A connection to a server as kazoo wants a socket, read in large pieces and overheard for signs of life.

    Kazoo reads an answer in two small pieces and asks the operating system before each whether there is something. Here
    whatever has arrived is taken at once and handed out from memory, which makes a thousand answers several times
    cheaper. It also does away with two traps of TLS: records that the encryption has read ahead, of which the operating
    system knows nothing, and records without data, after which kazoo would wait inside of an answer that is not there.

    It is used by one thread.

    Args:
        connection: Connected, and encrypted if it shall be.
        lease: Notified when the server grants a session and whenever the server answers.
    """

    def __init__(self, connection: socket.socket, lease: SessionLease) -> None:
        self._connection = connection
        self._lease = lease
        self._data = b""
        self._at = 0
        self._ended = False
        self._exchange = Exchange()
        self.fileno = connection.fileno
        self.setblocking = connection.setblocking
        self.getpeername = connection.getpeername
        self.close = connection.close

    def send(self, data: bytes) -> int:
        instant = self._lease.now()
        count = self._connection.send(data)
        self._exchange.sent(data[:count], instant)
        return count

    def greeted(self) -> bool:
        return self._exchange.timeout is not None

    def pending(self) -> int:
        """Returns how many bytes can be read without asking the operating system."""
        return len(self._data) - self._at

    def fill(self) -> bool:
        """Reads whatever has arrived, when nothing is pending and the operating system has something.

        Returns:
            There is something to receive: data or the end.

        Raises:
            OSError: The connection is broken.
        """
        try:
            data = self._connection.recv(PIECE)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except ssl.SSLEOFError:
            data = b""
        self._data, self._at = data, 0
        self._ended = not data
        if data:
            self._overhear(data)
        return True

    def recv(self, most: int) -> bytes:
        """Returns at most so many bytes, none at the end.

        Raises:
            OSError: The connection is broken.
            ssl.SSLWantReadError: There is nothing yet; what kazoo understands, with and without TLS.
        """
        if not self.pending() and not self._ended and not self.fill():
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "nothing has arrived")
        data = self._data[self._at : self._at + most]
        self._at += len(data)
        return data

    def _overhear(self, data: bytes) -> None:
        greeted = self.greeted()
        answered = self._exchange.received(data)
        if answered is None or not self._exchange.timeout:
            return
        if not greeted:
            self._lease.grant(self._exchange.timeout, answered)
        self._lease.hear(answered)


SHORTEST_TRY = 1.0
"""Min seconds that a server has for its first answer."""
TRIES = 9
"""Ratio of the session's timeout to the time of a server for its first answer: a third is left, for three servers."""
CLOSING = 2.0
"""Timeout in seconds for the answer that the session was closed."""

READABLE = select.POLLIN | select.POLLHUP | select.POLLERR
WRITABLE = select.POLLOUT | select.POLLHUP | select.POLLERR


class Handler:
    """See the module; kazoo calls the methods.

    Args:
        lease: Of the session.
        context: For encrypted connections; None: they are not.
        closing: Seconds that a server has to answer that the session was closed.
        keep: Starts a helper process between this program and its server, and returns the socket to use instead; None:
            there is no such process.
        hangs: Returns whether the program does nothing any more, so that its session is to end.

    Attributes:
        over: The session has ended: no connection is made any more.
        trouble: Why the last connection could not be made.
    """

    name = "one_session"
    timeout_exception = KazooTimeoutError
    sleep_func = staticmethod(time.sleep)

    def __init__(
        self,
        lease: SessionLease,
        context: ssl.SSLContext | None,
        closing: float = CLOSING,
        keep: Callable[[socket.socket, str], socket.socket] | None = None,
        hangs: Callable[[], bool] = lambda: False,
    ) -> None:
        self.over = False
        self.trouble: str | None = None
        self.running = False
        self._lease = lease
        self._context = context
        self._keep = keep
        self._hangs = hangs
        self._patience_at_end = closing
        self._closing: float | None = None

    def start(self) -> None:
        # Kazoo stops before it begins.
        self.running = True
        self._closing = None

    def stop(self) -> None:
        self.running = False
        self._closing = time.monotonic() + self._patience_at_end

    @property
    def patience(self) -> float:
        """Seconds that a server has for its first answer."""
        return min(max(self._lease.timeout / TRIES, SHORTEST_TRY), self._lease.timeout)

    def create_connection(
        self,
        address: tuple[str, int],
        timeout: float | None = None,  # noqa: ARG002 - kazoo's is the whole session, for one server
        hostname: str | None = None,
        **_: Any,  # noqa: ANN401 - kazoo's way to encrypt
    ) -> Wire:
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
            self.trouble = f"{address[0]}:{address[1]}: {error}"
            raise
        return Wire(connection, self._lease)

    def select(
        self,
        readers: Iterable[Any],
        writers: Iterable[Any],
        _: Iterable[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        readers, writers = list(readers), list(writers)
        wire = next((each for each in (*readers, *writers) if isinstance(each, Wire)), None)
        if wire is not None and wire in readers and wire.pending():
            return [wire], [], []
        if wire is not None and not wire.greeted():
            timeout = self.patience if timeout is None else min(timeout, self.patience)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._check(wire)
            found = self._poll(readers, writers, until)
            ready = [each for each in readers if each.fileno() in found and (each is not wire or wire.fill())]
            able = [each for each in writers if each.fileno() in found]
            if ready or able or not found:
                return ready, able, []

    def _check(self, wire: Wire | None) -> None:
        """Raises TimeoutError for a connection that is to be given up."""
        if self._closing is not None and time.monotonic() > self._closing:
            raise TimeoutError("the server does not answer")
        if self._closing is None and self._hangs():
            self.over = True
            raise TimeoutError("the event loop stands still, so the session is given up")
        if wire is not None and wire.greeted() and self._lease.broken:
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
        # In this thread and at once.
        callback.func(*callback.args)
