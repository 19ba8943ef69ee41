"""All connections of one process: taken in, swept once a second by their deadlines, and ended in order.

Connections wait in lists by what they wait for. All of one list have the same time, so the first one's deadline comes
first, and no connection needs a timer of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from time import monotonic

from queuey.web.http.connection import Answer, Connection, WaitsFor
from queuey.web.responses import Response

log = logging.getLogger(__name__)

TAKEN, GREETED = 32, 4
"""Connections that are taken in in one turn of the loop, plain ones and those that cost a handshake.

A turn may take long: with one each, many new connections would wait for as many turns.
"""
MAX_REFUSED = 64
"""Max connections answered at a time with "too many connections"."""
READ_BYTES = 64 * 1024
"""Max bytes read from a connection at a time."""
SECONDS: dict[WaitsFor, float] = {"idle": 75.0, "head": 10.0, "full": 30.0, "linger": 2.0}
"""Timeouts of connections, by what they wait for."""
HANDSHAKE, SHUTDOWN = 10.0, 2.0
"""Seconds of TLS, at the beginning and at the end."""
ACCEPT_RETRY = 1.0
"""Interval before accepting again when there were too few file handles, in seconds."""
CERTIFICATE_INTERVAL = 60.0
"""Interval between checks of the certificate, and between reports of failed handshakes, in seconds."""
TCP_NOTSENT_LOWAT = 25
"""Number of the option on Linux; Python has it from 3.12 on."""
UNSENT_BYTES = 128 * 1024
"""Max bytes that the system buffers for a connection beyond the other end's window."""


class Certificate:
    """A certificate and its key, loaded again when the files change.

    Args:
        chain: File of the certificate, with those that it was signed by.
        key: File of its key, without a password.

    Raises:
        OSError: They cannot be used (``ssl.SSLError``: they do not belong together).
    """

    def __init__(self, chain: Path, key: Path) -> None:
        self._files = chain, key
        self._seen = self._stamps()
        self.context = self._load()

    def look(self, *, anyway: bool = False) -> None:
        """Loads the files if they have changed; if they are bad, the one in force stays."""
        try:
            seen = self._stamps()
            if seen != self._seen or anyway:
                self._seen = seen
                self.context = self._load()
                log.info("The certificate was loaded again.")
        except OSError as error:
            log.error("The new certificate cannot be used, the old one stays: %s", error)  # noqa: TRY400 - says why

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(*self._files, password=lambda: "")
        return context

    def _stamps(self) -> list[tuple[int, int, int]]:
        found = [path.stat() for path in self._files]
        return [(one.st_mtime_ns, one.st_size, one.st_ino) for one in found]


class Connections:
    """The connections of a process, and where new ones come from.

    Args:
        loop: The event loop.
        listener: A listening socket; its parent has it, too.
        most: Connections at a time. Beyond that the one that has been idle, or shaking hands, for longest is closed; if
            there is none, the new one is told to come again.
        answer: Answers a request.
        refusal: Makes the answer to what is no request, of a status and a reason.
        certificate: For TLS.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        most: int,
        answer: Answer,
        refusal: Callable[[int, str], Response],
        certificate: Certificate | None = None,
    ) -> None:
        self.loop = loop
        self.answer = answer
        self.refusal = refusal
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.scheme = "http" if certificate is None else "https"
        self.is_closing = False
        self.date = b""
        self.waiting: dict[WaitsFor, dict[Connection, float]] = {what: {} for what in SECONDS}
        """Connections with their deadlines, in order, by what they wait for."""
        self._where: dict[Connection, WaitsFor | None] = {}
        self._listener = listener
        self._most = most
        self._certificate = certificate
        self._greeting: set[asyncio.Task[None]] = set()
        self._coming: dict[Connection, tuple[float, asyncio.Task[None] | None]] = {}
        """Those that are being set up, since when, and by what."""
        self._failed = 0
        self._looked = 0.0
        self._gone = asyncio.Event()
        self._written: list[Connection] = []
        listener.setblocking(False)  # noqa: FBT003 - takes it so

    def start(self) -> None:
        """Starts to accept connections. From now on :meth:`sweep` is to be called every second."""
        self.loop.add_reader(self._listener, self._accept)

    async def stop(self) -> None:
        """Stops accepting, closes idle connections and waits for the others."""
        self.is_closing = True
        self.loop.remove_reader(self._listener)
        self._listener.close()
        for connection in [*self.waiting["idle"], *self.waiting["head"]]:
            connection.expire()
        while self._where or self._greeting:
            self._gone.clear()
            await self._gone.wait()

    def reload(self) -> None:
        """Loads the certificate again."""
        if self._certificate is not None:
            self._certificate.look(anyway=True)

    def _accept(self) -> None:
        """Accepts waiting connections."""
        for _ in range(TAKEN if self._certificate is None else GREETED):
            try:
                taken, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                log.error("Connections cannot be taken in for a moment: %s", error)  # noqa: TRY400 - says why
                self.loop.remove_reader(self._listener)
                self.loop.call_later(ACCEPT_RETRY, self._listen_again)
                return
            task = self.loop.create_task(self._greet(taken))
            self._greeting.add(task)
            task.add_done_callback(self._greeted)

    def _listen_again(self) -> None:
        if not self.is_closing:
            self.loop.add_reader(self._listener, self._accept)

    async def _greet(self, taken: socket.socket) -> None:
        """Makes a connection of a socket that was taken in."""
        taken.setblocking(False)  # noqa: FBT003 - takes it so
        with contextlib.suppress(OSError):
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SECONDS["full"] * 1000))
            taken.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        connection = Connection(self)
        self._coming[connection] = monotonic(), asyncio.current_task()
        count = len(self._where) + len(self._coming)
        if count > self._most and not self._make_room():
            connection.is_refused = True
            if self._certificate or count > self._most + MAX_REFUSED:
                del self._coming[connection]
                taken.close()
                return
        certificate = self._certificate
        try:
            if certificate is None:
                await self.loop.connect_accepted_socket(lambda: connection, taken)
            else:
                await self.loop.connect_accepted_socket(
                    lambda: connection,
                    taken,
                    ssl=certificate.context,
                    ssl_handshake_timeout=HANDSHAKE,
                    ssl_shutdown_timeout=SHUTDOWN,
                )
        except OSError:  # Also of TLS, and of time.
            self._failed += 1
        finally:
            self._coming.pop(connection, None)

    def _greeted(self, task: asyncio.Task[None]) -> None:
        self._greeting.discard(task)
        self._gone.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("A connection could not be set up.", exc_info=error)

    def _make_room(self) -> bool:
        """Closes the connection that has waited longest, idle or in its handshake; returns whether there is one."""
        idle = next(iter(self.waiting["idle"]), None)
        since, task = next(iter(self._coming.values()))
        if idle is not None and self.waiting["idle"][idle] - SECONDS["idle"] <= since:
            self.leave(idle)  # Its end comes later, and its place is free now.
            idle.transport.abort()
            return True
        if self._certificate is None or task is asyncio.current_task():
            return False
        return task is not None and task.cancel()

    # Called by connections

    def enter(self, connection: Connection) -> None:
        """Knows a connection from now on."""
        self._coming.pop(connection, None)
        self._where[connection] = None

    def leave(self, connection: Connection) -> None:
        """Forgets a connection."""
        self.wait(connection, None)
        self._where.pop(connection, None)
        self._gone.set()

    def wait(self, connection: Connection, what: WaitsFor | None) -> None:
        """Moves a connection to the list of what it waits for, or to no list."""
        before = self._where.get(connection)
        if before != what and connection in self._where:
            if before is not None:
                del self.waiting[before][connection]
            if what is not None:
                self.waiting[what][connection] = monotonic() + SECONDS[what]
                connection.late = False
            self._where[connection] = what

    def flush_soon(self, connection: Connection) -> None:
        """Flushes a connection at the end of the turn, with all others."""
        if not self._written:
            self.loop.call_soon(self._flush)
        self._written.append(connection)

    def _flush(self) -> None:
        written, self._written = self._written, []
        for connection in written:
            connection.flush()

    def sweep(self) -> None:
        """Ends what has waited for too long."""
        self.date = f"date: {formatdate(usegmt=True)}\r\n".encode()
        now = monotonic()
        for waiting in self.waiting.values():
            for connection, deadline in list(waiting.items()):
                if deadline > now:
                    break
                self.wait(connection, None)
                connection.expire()
        if now - self._looked > CERTIFICATE_INTERVAL:
            self._looked = now
            if self._failed:
                log.warning("%d connections ended before they were set up.", self._failed)
                self._failed = 0
            if self._certificate is not None:
                self._certificate.look()
