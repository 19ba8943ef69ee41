"""One connection, from its first byte to its last. Requests are answered one at a time, in their order.

A task reads a head, has the gateway answer, writes, and waits for the next. Bytes that arrive meanwhile stay raw,
up to :data:`MAX_UNPARSED`, then reading pauses. So whatever a client sends, it has one request under way at a time, and
its disconnect is noticed while its request is served. Nobody cancels the task: deadlines end its waits.

States::

    idle ──(first byte)──► head ──(empty line)──► answering ──(answered)──► idle
      │ 75 s                │ 10 s, malformed         └──(last request, body left unread)──► lingering ──► closed
      └──► closed           └──► lingering

A lingering connection reads and drops what arrives, for at most two seconds: closing with unread bytes would reset the
connection and destroy the answer.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Literal, Protocol, cast

from queuey.web.http.heads import HEAD_END, MAX_HEAD_BYTES, HeadForm, HeadRefused, RequestHead, read_head
from queuey.web.responses import STATUS_LINES, Header, Response, with_cache_control

log = logging.getLogger(__name__)

MAX_UNPARSED = 64 * 1024
"""Max received bytes that wait to be parsed before reading pauses."""
MAX_UNSENT = 64 * 1024
"""Max bytes that wait to be sent before writing pauses."""
MAX_BUFFERED = 16 * 1024
"""Max bytes of answers that wait for the end of a turn of the loop."""
MAX_LINGER_BYTES = 256 * 1024
"""Max bytes that a lingering connection drops."""
MAX_TURN_SECONDS = 0.0004
"""Max time of a connection in one turn of the loop, in seconds."""
MAX_LINE = 256
"""Max bytes of a chunk's size line."""
DISCONNECTED: dict[str, Any] = {"type": "http.disconnect"}
HALF_CLOSED: dict[str, Any] = {"type": "http.disconnect", "half_closed": True}
"""The disconnect of a client that sends no more, but may still read."""
OPTIONS_OF_SERVER = Response(204, b"", ("Allow", "GET, HEAD, OPTIONS, POST, PUT, DELETE"))
"""The response to ``OPTIONS *``."""

_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_heads: dict[tuple[int, tuple[Header, ...]], bytes] = {}
_MAX_CACHED_HEADS = 1000

Answer = Callable[[RequestHead, "Connection"], Awaitable[None]]
WaitsFor = Literal["idle", "head", "full", "linger"]
"""What a connection waits for: a request, the rest of a head, room to send more, the end of lingering."""
TIMEOUTS: dict[WaitsFor, float] = {"idle": 75.0, "head": 10.0, "full": 30.0, "linger": 2.0}
"""Timeouts of connections, by what they wait for."""


class Broken(Exception):
    """A body that breaks off, or is malformed."""


class ConnectionSet(Protocol):
    """All connections of a process, as one of them uses them.

    Attributes:
        loop: The event loop.
        buffer: The receive buffer, which all connections share.
        scheme: ``http`` or ``https``.
        is_closing: Connections accept no further request.
        date: The Date header line of responses.
        answer: :meth:`queuey.web.gateway.Gateway.answer`, passed by :mod:`queuey.app.serve`.
        refusal: Makes the response to a malformed request from a status and a reason.
        answered: Connections with answers to be written after this turn of the loop.
        open: All connections, and what each waits for.
        waiting: Connections and their deadlines, in order of the deadlines, by what they wait for.
    """

    loop: asyncio.AbstractEventLoop
    buffer: memoryview
    scheme: str
    is_closing: bool
    date: bytes
    answer: Answer
    refusal: Callable[[int, str], Response]
    answered: list[Connection]
    open: dict[Connection, WaitsFor | None]
    waiting: dict[WaitsFor, dict[Connection, float]]

    def enter(self, connection: Connection) -> None:
        """Adds a new connection."""

    def leave(self, connection: Connection) -> None:
        """Removes a connection."""


class Connection(asyncio.BufferedProtocol):
    """One connection. It is also the exchange of each of its requests.

    A stream is sent in chunks, to a client of HTTP/1.0 until the connection ends. After the connection is lost, what is
    sent is dropped.

    Args:
        connections: All connections of this process.
    """

    __slots__ = (
        "_body_left",
        "_body_started",
        "_disconnect",
        "_dropped",
        "_form",
        "_has_body",
        "_is_chunked",
        "_is_paused",
        "_open_ended",
        "_raw",
        "_room",
        "_searched",
        "_task",
        "_turn_began",
        "_unfinished",
        "_waiter",
        "connections",
        "has_ended",
        "is_kept",
        "is_late",
        "is_lingering",
        "is_lost",
        "is_refused",
        "peer",
        "scheme",
        "transport",
        "unsent",
    )

    def __init__(self, connections: ConnectionSet) -> None:
        self.connections = connections
        self.scheme = connections.scheme
        self.transport: asyncio.Transport
        self.is_kept = True
        """Another request may follow."""
        self.is_late = False
        """The deadline of the present wait is over."""
        self.has_ended = False
        """The client sends no more."""
        self.is_lingering = False
        self.is_refused = False
        """There are too many connections; it is answered with 503."""
        self.peer = ""
        """The address of the other end, without the port; blank if unknown."""
        self._raw = b""
        self.unsent = b""
        """Short answers that are not written yet."""
        self._searched = 0
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._disconnect: asyncio.Future[dict[str, Any]] | None = None
        self.is_lost = self._is_paused = False
        self._has_body = self._is_chunked = self._body_started = self._open_ended = self._unfinished = False
        self._body_left = 0
        self._turn_began = 0.0
        self._dropped = 0
        self._form: HeadForm | None = None
        self._task: asyncio.Task[None]

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else ""
        self.transport.set_write_buffer_limits(MAX_UNSENT, MAX_UNSENT // 4)
        self.connections.enter(self)
        self._task = self.connections.loop.create_task(self._serve_requests())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.connections.buffer  # It is emptied at once, so all connections share it.

    def buffer_updated(self, nbytes: int) -> None:
        """Keeps received bytes and wakes the task; pauses reading above a limit.

        A lingering connection drops the bytes, and is aborted if there are too many.
        """
        if self.is_lingering:
            self._dropped += nbytes
            if self._dropped > MAX_LINGER_BYTES:
                self.transport.abort()
            return
        data = bytes(self.connections.buffer[:nbytes])
        self._raw = self._raw + data if self._raw else data
        if len(self._raw) > (MAX_HEAD_BYTES if self._form is None else MAX_UNPARSED):
            self._is_paused = True
            self.transport.pause_reading()
        self._turn_began = monotonic()
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def eof_received(self) -> bool:
        """Notes that the client sends no more; requests received whole are still answered.

        Returns whether the connection stays open: not if it lingers, nor over TLS, which has no half-closed
        connections.
        """
        self.has_ended = True
        self._wake()
        self._notify_disconnect(HALF_CLOSED)
        return not self.is_lingering and self.connections.scheme == "http"  # TLS has no half-closed connections.

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = self.has_ended = True
        self._wake()
        self._notify_disconnect(DISCONNECTED)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self.connections.leave(self)

    def pause_writing(self) -> None:
        if self._room is None:
            self._room = self.connections.loop.create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def expire(self) -> None:
        """Ends a wait whose deadline is over.

        Aborts if the client does not read or the connection lingers; otherwise wakes the task with ``is_late`` set.
        """
        if self._room is not None or self.is_lingering or self.transport.is_closing():
            self.transport.abort()
        else:
            self.is_late = True
            self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def wait_for(self, what: WaitsFor | None) -> None:
        connections = self.connections
        previous = connections.open.get(self)
        if previous != what and self in connections.open:
            if previous is not None:
                del connections.waiting[previous][self]
            if what is not None:
                connections.waiting[what][self] = monotonic() + TIMEOUTS[what]
                self.is_late = False
            connections.open[self] = what

    def _notify_disconnect(self, message: dict[str, Any]) -> None:
        disconnect, self._disconnect = self._disconnect, None
        if disconnect is not None and not disconnect.done():
            disconnect.set_result(message)

    def _wait_for_bytes(self) -> asyncio.Future[None]:
        """Resumes reading. Returns a future that ends when bytes arrive, the client ends, or the deadline is over."""
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()
        self._waiter = self.connections.loop.create_future()
        return self._waiter

    # From the first request to the last

    async def _serve_requests(self) -> None:  # noqa: C901 - a hot loop, in which calls cost time
        """Answers requests until the connection ends, then lingers; a malformed head is answered and ends it.

        A body may arrive while its request is answered. Lets other connections run when a turn takes too long.
        """
        try:
            while self.is_kept and (head := self._next_head()) is not False:
                if head is None:
                    await self._wait_for_bytes()
                    continue
                if head.path == b"*" and head.method == "OPTIONS":
                    self.send_response(OPTIONS_OF_SERVER, head=False)
                else:
                    await self.connections.answer(head, self)
                if self._unfinished:
                    self.transport.abort()  # The client sees that the response broke off.
                    self.is_kept = False
                elif self._room is not None:
                    await self._drain()
                if self._raw and monotonic() - self._turn_began > MAX_TURN_SECONDS:
                    await asyncio.sleep(0)
                    self._turn_began = monotonic()
            self._linger(idle=self.is_kept)
        except HeadRefused as refused:
            self._refuse(refused)
        except ConnectionError:
            pass
        except Exception:
            log.exception("A connection has failed.")
        finally:
            if not self.is_lingering:
                self.transport.abort()

    def _next_head(self) -> RequestHead | Literal[False] | None:
        """Returns the next head, or False if there will be none, or None if more bytes have to arrive.

        Drops one empty line before the head.

        Raises:
            HeadRefused: The head is malformed, too long or too late, or there are too many connections.
        """
        self._form = None
        if self.is_refused:
            raise HeadRefused("There are too many connections; try again later", 503)
        if self.is_lost:
            return False
        raw = received = self._raw
        if raw[:2] == b"\r\n" and not self._searched:
            raw = self._raw = raw[2:]  # One empty line before a request is allowed.
        end = raw.find(HEAD_END, self._searched) + len(HEAD_END)
        if len(HEAD_END) <= end <= MAX_HEAD_BYTES:
            self.wait_for(None)
            self._raw, self._searched = raw[end:], 0
            head = read_head(raw[:end])
            form = self._form = head.form
            self.is_kept = form.keeps_alive
            self._is_chunked = form.length is None
            self._body_left = form.length or 0
            self._has_body = form.length != 0
            self._body_started = self._open_ended = False
            return head
        if raw:
            self._check_unfinished_head(raw)
        if self.has_ended or (self.is_late and not received) or self.connections.is_closing:
            return False
        if self.is_late:
            raise HeadRefused("The head has not arrived in time", 408)
        self.wait_for("head" if received else "idle")
        return None

    def _check_unfinished_head(self, raw: bytes) -> None:
        if len(raw) >= MAX_HEAD_BYTES:
            raise HeadRefused(f"The head is longer than {MAX_HEAD_BYTES} bytes", 431)
        if raw.count(b"\n", self._searched) != raw.count(b"\r\n", max(0, self._searched - 1)):
            raise HeadRefused("A line ends without a carriage return")
        self._searched = max(0, len(raw) - len(HEAD_END) + 1)

    def _refuse(self, refused: HeadRefused) -> None:
        self.is_kept = self._has_body = False
        self.send_response(self.connections.refusal(refused.status, str(refused)), head=False)
        self._linger()

    def _linger(self, *, idle: bool = False) -> None:
        """Ends the connection once the other end has had time to read.

        Ends it at once if it was idle, sends no more, or uses TLS.
        """
        if self.is_lost:
            return
        _write_answers([self])
        self.is_lingering = True
        if self._is_paused:
            self.transport.resume_reading()
        is_sent = not self.transport.get_write_buffer_size()
        if idle or self.has_ended or not self.transport.can_write_eof():
            self.wait_for("full")
            self.transport.close()
        else:
            self.wait_for("linger" if is_sent else "full")
            try:
                self.transport.write_eof()
            except OSError:  # It is gone, and connection_lost was not called yet.
                self.transport.abort()

    # The body

    def take_whole(self, size: int) -> bytes | None:
        """Takes a body of ``size`` bytes that has arrived; returns None if not all has, or if reading it began."""
        raw = self._raw
        if self._body_started or len(raw) < size:
            return None
        self._raw, self._body_left, self._has_body = raw[size:], 0, False
        return raw[:size]

    def receive(self) -> Awaitable[dict[str, Any]]:
        """Waits for the next piece of the body, or for the disconnect if the body has been read."""
        if self._has_body:
            return self._receive()
        disconnect = self._disconnect = self.connections.loop.create_future()
        if self.has_ended:
            self._notify_disconnect(DISCONNECTED if self.is_lost else HALF_CLOSED)
        return disconnect

    async def _receive(self) -> dict[str, Any]:
        form = self._form
        if form is not None and form.expects and not (self._body_started or self._raw or self.is_lost):
            _write_answers([self])
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._body_started = True
        try:
            piece = await (self._read_chunked_piece() if self._is_chunked else self._read_piece())
        except Broken:
            self.is_kept = self._has_body = False
            return DISCONNECTED
        return {"type": "http.request", "body": piece, "more_body": self._has_body}

    async def _read_piece(self) -> bytes:
        while not self._raw:
            if self.has_ended:
                raise Broken
            await self._wait_for_bytes()
        piece = self._raw[: self._body_left]
        self._raw = self._raw[len(piece) :]
        self._body_left -= len(piece)
        self._has_body = self._body_left > 0 or self._is_chunked
        return piece

    async def _read_chunked_piece(self) -> bytes:
        """Reads a piece of a chunk; returns ``b""`` after the last chunk. Raises ``Broken`` for trailers."""
        if not self._body_left:
            size = _CHUNK.fullmatch(await self._read_line())
            if size is None:
                raise Broken
            self._body_left = int(size[1], 16)
            if not self._body_left:
                if await self._read_line():
                    raise Broken  # Trailers would be lost.
                self._has_body = False
                return b""
        piece = await self._read_piece()
        if not self._body_left and await self._read_line():
            raise Broken
        return piece

    async def _read_line(self) -> bytes:
        while (end := self._raw.find(b"\r\n")) < 0:
            if self.has_ended or len(self._raw) > MAX_LINE or b"\n" in self._raw:
                raise Broken
            await self._wait_for_bytes()
        line = self._raw[:end]
        if end > MAX_LINE or b"\n" in line:
            raise Broken
        self._raw = self._raw[end + 2 :]
        return line

    # The answer. Short ones are written together after a turn of the loop, because each write wakes the other end.

    def send_response(self, response: Response, *, head: bool) -> None:
        if self.is_lost:
            return
        size, body = response.length_and_body(head=head)
        if not self.unsent:
            answered = self.connections.answered
            if not answered:
                self.connections.loop.call_soon(_write_answers, answered)
            answered.append(self)
        self.unsent += self._make_head(response, size) + body
        if len(self.unsent) > MAX_BUFFERED:
            _write_answers([self])

    async def send_head(self, response: Response, size: int | None) -> None:
        self._open_ended = size is None
        self._unfinished = True
        _write_answers([self])
        if not self.is_lost:
            self.transport.write(self._make_head(response, size))

    async def send_piece(self, piece: bytes, *, more: bool) -> None:
        self._unfinished = more
        if self._open_ended and self._form is not None and not self._form.is_old:
            piece = b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
            piece += b"" if more else b"0\r\n\r\n"
        _write_answers([self])
        if piece and not self.is_lost:
            self.transport.write(piece)
        await self._drain()

    async def _drain(self) -> None:
        """Waits until there is room to send more, or the connection is lost; the deadline is that of ``full``."""
        if self._room is not None and not self.is_lost:
            self.wait_for("full")
            await self._room
            self.wait_for(None)

    def _make_head(self, response: Response, size: int | None) -> bytes:
        """Makes the head of a response, and drops the rest of the request's body if that has arrived.

        The response is the last one if the body has not arrived or is chunked and unread, if its stream ends with the
        connection, and while the set is closing.
        """
        form = self._form
        if self._has_body and not self._drop_arrived_body():
            self.is_kept = False
        if self._open_ended and (form is None or form.is_old):
            self.is_kept = False
        key = response.status, response.headers
        lines = _heads.get(key) or _build_head(*key)
        length = b"" if size is None else b"content-length: %d\r\n" % size
        if self._open_ended and form is not None and not form.is_old:
            length = b"transfer-encoding: chunked\r\n"
        if not self.is_kept or self.connections.is_closing:
            self.is_kept = False
            length += b"connection: close\r\n"
        elif form is not None and form.is_old:
            length += b"connection: keep-alive\r\n"
        return b"%b%b%b\r\n" % (lines, length, self.connections.date)

    def _drop_arrived_body(self) -> bool:
        """Drops the rest of the body if all of it has arrived; returns False if not, and for a chunked body.

        Returns False also for a client that still waits for ``100 Continue``.
        """
        form = self._form
        waits_for_continue = form is not None and form.expects and not self._raw
        if self._is_chunked or len(self._raw) < self._body_left or waits_for_continue:
            return False
        self._raw, self._body_left, self._has_body = self._raw[self._body_left :], 0, False
        return True


def _write_answers(answered: list[Connection]) -> None:
    """Writes the answers of these connections, and empties the list. One that cannot be written ends its connection."""
    for connection in answered:
        data, connection.unsent = connection.unsent, b""
        if data and not connection.is_lost:
            try:
                connection.transport.write(data)
            except Exception:
                log.exception("An answer could not be written.")
                connection.transport.abort()
    answered.clear()


def _build_head(status: int, headers: tuple[Header, ...]) -> bytes:
    all_headers = with_cache_control(headers)
    lines = "".join([f"{name.lower()}: {value}\r\n" for name, value in all_headers])
    if not lines.count("\n") == lines.count("\r") == len(all_headers) or "\0" in lines:
        raise ValueError(f"a header of {headers!r} has a line break")
    if len(_heads) >= _MAX_CACHED_HEADS:
        _heads.clear()
    head = _heads[status, headers] = f"HTTP/1.1 {STATUS_LINES[status]}\r\n{lines}".encode("latin-1")
    return head
