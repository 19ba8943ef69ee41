"""One connection to a node, in the event loop's thread.

Requests are pipelined: each occupies a stream until its answer comes, even when its caller no longer waits. All
requests of one turn of the loop leave in one write. They are held here while the transport accepts no bytes. States::

    made ──(start: logged in)──► in use ──(it breaks, sends invalid bytes, is ended)──► failed

When it fails, every waiting request gets the error once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from cassandra import AuthenticationFailed, ConsistencyLevel
from cassandra import protocol as messages
from cassandra.connection import ConnectionException

from queuey.storage.cassandra.protocol.attempts import MAX_WAITING_BYTES
from queuey.storage.cassandra.protocol.encoding import (
    BrokenFrame,
    FrameReader,
    decode_answer,
    encode_body,
    encode_header,
)

log = logging.getLogger(__name__)

MAX_STREAMS = 1 << 15
_CQL_VERSION = "3.0.0"
_CLIENT = {"DRIVER_NAME": "queuey"}


Receive = Callable[[Any], None]
"""Called once with the answer (see ``decode_answer``), or with an exception. Never from within ``Connection.send``."""


class NodeConnection(asyncio.Protocol):
    """A connection to a node.

    Attributes:
        ended: Done once the connection has failed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str, clock: Callable[[], float]) -> None:
        self.address = address
        self.received_at = clock()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._waiting: dict[int, tuple[Receive, Any]] = {}
        self._free: list[int] = []
        self._used = 0
        """Number of streams ever used. Free ones are reused first."""
        self._out: list[bytes] = []
        self._out_size = 0
        self._is_paused = False
        self._preparing: dict[bytes, asyncio.Future[Any]] = {}

    # Requests

    def send(self, opcode: int, body: bytes, receive: Receive, metadata: Any = None) -> bool:  # noqa: ANN401 - the driver's
        """Sends a request with all others of this turn of the loop; returns False if it cannot.

        ``metadata``: the result's columns, for an answer that does not describe them.
        """
        if self.ended.done() or self._out_size > MAX_WAITING_BYTES:
            return False
        if self._free:
            stream = self._free.pop()
        elif self._used < MAX_STREAMS:
            stream = self._used
            self._used += 1
        else:
            return False
        self._waiting[stream] = receive, metadata
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += (encode_header(opcode, body, stream), body)
        self._out_size += len(body)
        return True

    def ask(self, message: Any) -> asyncio.Future[Any]:  # noqa: ANN401 - of the driver
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self.send(message.opcode, encode_body(message), partial(_settle, future)):
            _settle(future, ConnectionException(f"the connection to Cassandra node {self.address} accepts no requests"))
        return future

    def prepare(self, query_id: bytes, cql: str) -> asyncio.Future[Any]:
        """Prepares a forgotten statement, only once for all requests that need it."""
        future = self._preparing.get(query_id)
        if future is None:
            future = self._preparing[query_id] = self.ask(messages.PrepareMessage(cql))
            future.add_done_callback(lambda _: self._preparing.pop(query_id))
        return future

    async def start(self, auth: Any, keyspace: str | None) -> None:  # noqa: ANN401 - the driver's plug-in
        """Opens a session: logs in, and selects a keyspace.

        Args:
            keyspace: The keyspace of the driver's own connections; with another one, ids of prepared statements would
                differ.

        Raises:
            DriverException, ErrorMessage: The node refused.
        """
        answer = await self.ask(messages.StartupMessage(_CQL_VERSION, _CLIENT))
        if isinstance(answer, messages.AuthenticateMessage):
            await self._log_in(auth)
        elif not isinstance(answer, messages.ReadyMessage):
            raise ConnectionException(f"Cassandra node {self.address} answered STARTUP with {answer!r}")
        if keyspace is not None:
            await self.ask(messages.QueryMessage(f'USE "{keyspace}"', ConsistencyLevel.ONE))

    async def _log_in(self, auth: Any) -> None:  # noqa: ANN401 - as above
        if auth is None:
            raise AuthenticationFailed(f"Cassandra node {self.address} requires a user and a password")
        response = auth.new_authenticator(self.address).initial_response()
        answer = await self.ask(messages.AuthResponseMessage(response))
        if not isinstance(answer, messages.AuthSuccessMessage):
            raise ConnectionException(f"Cassandra node {self.address} answered a login with {answer!r}")

    def fail(self, error: Exception) -> None:
        if self.ended.done():
            return
        self.ended.set_result(None)
        if self._transport is not None:
            self._transport.abort()
        self._out.clear()
        waiting, self._waiting = self._waiting, {}
        for receive, _ in waiting.values():
            _deliver(receive, error)

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.ended.done():
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "" if exc is None else f" ({exc})"
        self.fail(ConnectionException(f"the connection to Cassandra node {self.address} broke{reason}"))

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        self.received_at = self._clock()
        try:
            for stream, flags, opcode, body in self._reader.feed(data):
                self._deliver_answer(stream, flags, opcode, body)
                if self.ended.done():
                    return
        except BrokenFrame as error:
            log.warning("Cassandra node %s: %s; the connection is replaced.", self.address, error)
            self.fail(error)

    def _deliver_answer(self, stream: int, flags: int, opcode: int, body: bytes) -> None:
        waiting = self._waiting.pop(stream, None)
        if waiting is None:
            raise BrokenFrame(f"an answer is for stream {stream}, which has no request")
        receive, metadata = waiting
        self._free.append(stream)
        try:
            answer = decode_answer(flags, opcode, body, metadata)
        except Exception as error:  # noqa: BLE001 - the request gets it
            answer = error
        _deliver(receive, answer)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._flush()

    def _flush(self) -> None:
        if self._out and self._transport is not None and not self._is_paused:
            out, self._out = self._out, []
            self._out_size = 0
            self._transport.write(b"".join(out))


def _settle(future: asyncio.Future[Any], answer: Any) -> None:  # noqa: ANN401 - a message of the driver, or an exception
    if future.done():
        return
    if isinstance(answer, messages.ErrorMessage):
        answer = answer.to_exception()
    if isinstance(answer, Exception):
        future.set_exception(answer)
        future.exception()  # Marks it as retrieved: its caller may be gone.
    else:
        future.set_result(answer)


def _deliver(receive: Receive, answer: Any) -> None:  # noqa: ANN401 - as above
    try:
        receive(answer)
    except Exception:
        log.exception("An answer of Cassandra could not be delivered.")
