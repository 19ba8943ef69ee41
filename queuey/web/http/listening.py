"""All connections of one process: accepted, swept once a second by their deadlines, and ended in order.

Connections wait in lists by what they wait for. All connections of a list have the same timeout, so the first deadline
comes first, and no connection needs its own timer.
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

from queuey.web.http.connection import TIMEOUTS, Answer, Connection, WaitsFor
from queuey.web.responses import Response

log = logging.getLogger(__name__)

MAX_ACCEPTED, MAX_TLS_ACCEPTED = 32, 4
"""Max connections accepted in one turn of the loop, without and with TLS.

A turn may take long: with one connection a turn, many new ones would wait for as many turns.
"""
MAX_REFUSED = 64
"""Max connections at a time that are answered with "too many connections"."""
MAX_READ_BYTES = 64 * 1024
"""Max bytes read from a connection at a time."""
HANDSHAKE_TIMEOUT, SHUTDOWN_TIMEOUT = 10.0, 2.0
"""Timeouts of a TLS handshake and of a TLS shutdown, in seconds."""
ACCEPT_RETRY_PAUSE = 1.0
"""Pause before accepting again after the process ran out of file handles, in seconds."""
CERTIFICATE_INTERVAL = 60.0
"""Interval between checks of the certificate, and between reports of failed handshakes, in seconds."""
TCP_NOTSENT_LOWAT = 25
"""Code of the socket option on Linux; the socket module has it from Python 3.12 on."""
MAX_UNSENT_BYTES = 128 * 1024
"""Max bytes that the system buffers for a connection beyond the other end's window."""


class Certificate:
    """A certificate and its key, loaded again when the files change.

    Args:
        chain: File with the certificate and its intermediate certificates.
        key: File with its key, without a password.

    Raises:
        OSError: The files cannot be used (``ssl.SSLError`` if they do not belong together).
    """

    def __init__(self, chain: Path, key: Path) -> None:
        self._files = chain, key
        self._seen = self._stamps()
        self.context = self._load()

    def reload_if_changed(self, *, force: bool = False) -> None:
        """Loads the files if they have changed, or ``force``. If they cannot be used, the old certificate stays."""
        try:
            stamps = self._stamps()
            if stamps != self._seen or force:
                self._seen = stamps
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
        stats = [path.stat() for path in self._files]
        return [(s.st_mtime_ns, s.st_size, s.st_ino) for s in stats]


class ProcessConnections:
    """The connections of a process, and its listening socket.

    Args:
        loop: The event loop.
        listener: A listening socket; the parent process has it, too.
        max_connections: Max connections. Beyond that, the one that has been idle or in its handshake for longest is
            closed; if no connection can be closed, the new one is told to try again.
        answer: Answers a request.
        refusal: Makes the response to an invalid request from a status and a reason.
        certificate: The certificate for TLS, or None for plain HTTP.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        max_connections: int,
        answer: Answer,
        refusal: Callable[[int, str], Response],
        certificate: Certificate | None = None,
    ) -> None:
        self.loop = loop
        self.answer = answer
        self.refusal = refusal
        self.buffer = memoryview(bytearray(MAX_READ_BYTES))
        self.scheme = "http" if certificate is None else "https"
        self.is_closing = False
        self.date = b""
        self.answered: list[Connection] = []
        self.waiting: dict[WaitsFor, dict[Connection, float]] = {what: {} for what in TIMEOUTS}
        self.open: dict[Connection, WaitsFor | None] = {}
        self._listener = listener
        self._max_connections = max_connections
        self._certificate = certificate
        self._set_up_tasks: set[asyncio.Task[None]] = set()
        self._pending: dict[Connection, tuple[float, asyncio.Task[None] | None]] = {}
        """Connections being set up: when that began, and its task."""
        self._failed = 0
        self._checked_at = 0.0
        self._gone = asyncio.Event()
        listener.setblocking(False)  # noqa: FBT003 - positional only

    def start(self) -> None:
        """Starts to accept connections. From now on, :meth:`sweep` must be called every second."""
        self.loop.add_reader(self._listener, self._accept)

    async def stop(self) -> None:
        """Stops accepting, ends idle connections, and waits until all others have ended.

        A connection whose head has not arrived counts as idle. There is no timeout.
        """
        self.is_closing = True
        self.loop.remove_reader(self._listener)
        self._listener.close()
        for connection in [*self.waiting["idle"], *self.waiting["head"]]:
            connection.expire()
        while self.open or self._set_up_tasks:
            self._gone.clear()
            await self._gone.wait()

    def reload(self) -> None:
        if self._certificate is not None:
            self._certificate.reload_if_changed(force=True)

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTED if self._certificate is None else MAX_TLS_ACCEPTED):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                log.error("No connection can be accepted for a moment: %s", error)  # noqa: TRY400 - says why
                self.loop.remove_reader(self._listener)
                self.loop.call_later(ACCEPT_RETRY_PAUSE, self._listen_again)
                return
            task = self.loop.create_task(self._set_up(accepted))
            self._set_up_tasks.add(task)
            task.add_done_callback(self._on_set_up)

    def _listen_again(self) -> None:
        if not self.is_closing:
            self.loop.add_reader(self._listener, self._accept)

    async def _set_up(self, accepted: socket.socket) -> None:
        """Sets up a connection, with TLS if there is a certificate.

        If there are too many, an idle one is closed for it; else it is answered with 503, or closed if it uses TLS.
        """
        accepted.setblocking(False)  # noqa: FBT003 - positional only
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(TIMEOUTS["full"] * 1000))
            accepted.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
        connection = Connection(self)
        self._pending[connection] = monotonic(), asyncio.current_task()
        count = len(self.open) + len(self._pending)
        if count > self._max_connections and not self._make_room():
            connection.is_refused = True
            if self._certificate or count > self._max_connections + MAX_REFUSED:
                del self._pending[connection]
                accepted.close()
                return
        certificate = self._certificate
        try:
            if certificate is None:
                await self.loop.connect_accepted_socket(lambda: connection, accepted)
            else:
                await self.loop.connect_accepted_socket(
                    lambda: connection,
                    accepted,
                    ssl=certificate.context,
                    ssl_handshake_timeout=HANDSHAKE_TIMEOUT,
                    ssl_shutdown_timeout=SHUTDOWN_TIMEOUT,
                )
        except OSError:  # TLS errors and timeouts included.
            self._failed += 1
        finally:
            self._pending.pop(connection, None)

    def _on_set_up(self, task: asyncio.Task[None]) -> None:
        self._set_up_tasks.discard(task)
        self._gone.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("A connection could not be set up.", exc_info=error)

    def _make_room(self) -> bool:
        idle = next(iter(self.waiting["idle"]), None)
        since, task = next(iter(self._pending.values()))
        if idle is not None and self.waiting["idle"][idle] - TIMEOUTS["idle"] <= since:
            self.leave(idle)  # Frees its place now; connection_lost comes later.
            idle.transport.abort()
            return True
        if self._certificate is None or task is asyncio.current_task():
            return False
        return task is not None and task.cancel()

    # Called by connections

    def enter(self, connection: Connection) -> None:
        self._pending.pop(connection, None)
        self.open[connection] = None

    def leave(self, connection: Connection) -> None:
        connection.wait_for(None)
        self.open.pop(connection, None)
        self._gone.set()

    def sweep(self) -> None:
        """Expires connections that have waited too long, and renews the date. Called every second.

        Once a minute it reloads a changed certificate and reports failed handshakes.
        """
        self.date = f"date: {formatdate(usegmt=True)}\r\n".encode()
        now = monotonic()
        for waiting in self.waiting.values():
            for connection, deadline in list(waiting.items()):
                if deadline > now:
                    break
                connection.wait_for(None)
                connection.expire()
        if now - self._checked_at > CERTIFICATE_INTERVAL:
            self._checked_at = now
            if self._failed:
                log.warning("%d connections ended before they were set up.", self._failed)
                self._failed = 0
            if self._certificate is not None:
                self._certificate.reload_if_changed()
