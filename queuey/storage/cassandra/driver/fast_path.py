"""The fast path to a node, for frequent requests: writes of rows, reads of one page, appends to claim logs.

The driver costs some 150 us of CPU a request and several a row. Here requests are encoded by their callers
and go over the driver's own connections, past its futures, plans and timers. Only frequent requests take it;
the rest goes through the driver, with all its rules::

    sent ──(result)──────────────────────────────► answered
      ├──(no answer for a while)──► sent to another node as well *; the first result counts. Of requests to nodes
      │                             that do answer others only a tenth: what is slow everywhere must not become more
      ├──(an error that asking again would not change, of all that were asked)──► answered
      ├──(no answer in time)──► answered: timed out
      ├──(a connection that broke, a node that is overloaded or had no time)──► through the driver * ──► answered
      └──(no connection; a node that is starting or has forgotten the statement)──► through the driver ──► answered

* only what is idempotent. Anything else is answered: it is in doubt.

Requests and answers are bytes of the native protocol, version 4. Values come serialized, each behind its length, as
their caller packs them; see the protocol's specification, sections 4.1.6 (EXECUTE), 4.1.7 (BATCH) and 4.2.5 (RESULT).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cassandra import OperationTimedOut
from cassandra.cluster import Cluster, Session
from cassandra.protocol import (
    ErrorMessage,
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    PreparedQueryNotFound,
    ProtocolHandler,
    ReadTimeoutErrorMessage,
    ServerError,
    TruncateError,
)
from cassandra.query import BatchStatement

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.driver.errors import translate
from queuey.storage.cassandra.driver.requests import UNSET, Decode, Done, Rows

PROTOCOL = 4
EXECUTE, BATCH, RESULT = 0x0A, 0x0D, 0x08
VOID = struct.pack(">i", 1)
"""A result without rows."""
ROWS = struct.pack(">ii", 2, 4), struct.pack(">ii", 2, 5)
"""How a result begins that has rows, no further page and no description of its columns (of one table or not)."""

_HEADER = struct.Struct(">BBhBi")
_short = struct.Struct(">H").pack
_size = struct.Struct(">i").pack
_size_at = struct.Struct(">i").unpack_from
_values_and_no_description = b"\x03"
_no_flags = b"\0"
_serial = b"\x10"
_unlogged = b"\x01"
_prepared = b"\x01"


def frame(opcode: int, body: bytes, stream: int) -> bytes:
    return _HEADER.pack(PROTOCOL, 0, stream, opcode, len(body)) + body


def execute(query_id: bytes, count: int, values: bytes, consistency: int) -> bytes:
    """Returns the body of an EXECUTE whose answer is one page without a description of its columns."""
    return b"".join(
        (
            _short(len(query_id)),
            query_id,
            _short(consistency),
            _values_and_no_description,
            _short(count),
            values,
        )
    )


def batch(query_id: bytes, count: int, rows: Sequence[bytes], consistency: int) -> bytes:
    each = _prepared + _short(len(query_id)) + query_id + _short(count)
    return b"".join((_unlogged, _short(len(rows)), each, each.join(rows), _short(consistency), _no_flags))


def conditional_batch(request: BatchStatement) -> bytes:
    """Returns the body of an unlogged BATCH of several statements with a condition, as the driver has bound them."""
    statements = request._statements_and_parameters  # noqa: SLF001 - the driver has no name for it
    parts = [_unlogged, _short(len(statements))]
    for _, query_id, values in statements:
        parts += [_prepared, _short(len(query_id)), query_id, _short(len(values)), *map(_value, values)]
    levels = _short(request.consistency_level), _serial, _short(request.serial_consistency_level)
    return b"".join([*parts, *levels])


def _value(data: Any) -> bytes:  # noqa: ANN401 - bytes, None or the mark for nothing
    if data is None or data is UNSET:
        return _size(-1 if data is None else -2)
    return _size(len(data)) + bytes(data)


def values_of(encoded: bytes) -> list[Any]:
    """Returns serialized values without their lengths, as the driver's own requests take them."""
    found: list[Any] = []
    at = 0
    while at < len(encoded):
        (size,) = _size_at(encoded, at)
        at += 4
        found.append(encoded[at : at + size] if size >= 0 else (None if size == -1 else UNSET))
        at += max(0, size)
    return found


log = logging.getLogger(__name__)

LOOK_EVERY = 0.02
"""Interval between checks for requests whose time is over, in seconds."""

_NOT_BEGUN = (IsBootstrappingErrorMessage, PreparedQueryNotFound)
_PERHAPS_DONE = (OverloadedErrorMessage, ReadTimeoutErrorMessage, ServerError, TruncateError)

DriverFallback = Callable[[Done, int, float], None]
"""Sends through the driver: the callback, how many nodes may have the request already, and the timeout in seconds."""


SPARED, MOST_SPARE = 0.1, 20.0
"""Max part of requests that are sent to another node as well although their node answers others, and max at once."""
MOST_WAITING = 64 << 20
"""Max bytes that wait for one connection; further requests are refused."""


class BufferedConnection(Cluster.connection_class):  # type: ignore[misc] # the driver ships no types
    """A connection that sends a request as one piece and receives in larger ones."""

    in_buffer_size = 1 << 16
    out_buffer_size = 1 << 22
    _takes_all = True

    @property
    def _socket_writable(self) -> bool:
        """Requests may wait, up to a limit.

        The driver refuses all while the socket accepts no bytes, which is so for a moment after each long body.
        """
        return self._takes_all or self._waiting() < MOST_WAITING

    @_socket_writable.setter
    def _socket_writable(self, value: bool) -> None:
        self._takes_all = value

    def handle_write(self, *event: Any) -> Any:  # noqa: ANN401 - the event loop's
        """Notes when all is sent, which the driver only does if it refused requests."""
        sent = super().handle_write(*event)
        if not self._takes_all and not self._waiting():
            self._takes_all = True
        return sent

    def _waiting(self) -> int:
        with self._deque_lock:
            return sum(map(len, self.deque))


@dataclass(slots=True, kw_only=True, eq=False)
class FastRequest:
    """One request, and how its attempts fare. The thread that acquires ``claim`` answers it.

    Attributes:
        opcode, body: As they are sent.
        nodes: Connection pools of the nodes to ask in turn: those with a row (:meth:`FastPath.nodes_with`), or one.
        metadata: The result's columns, for answers of an unusual shape.
        timeout: Timeout in seconds.
        decode: Makes rows of a result of the usual shape.
        done: Called once with the result, in any thread.
        driver_fallback: Sends it again through the driver.
        reads: It changes nothing.
        idempotent: It may be sent twice: to another node as well when the first keeps it waiting.
        asked: Nodes that may have got it.
        host: The node that was asked last.
    """

    opcode: int
    body: bytes
    nodes: Iterator[Any]
    timeout: float
    done: Done
    driver_fallback: DriverFallback
    reads: bool
    metadata: Any = None
    decode: Decode = lambda _body: []
    idempotent: bool = True
    claim: threading.Lock = field(default_factory=threading.Lock)
    lock: threading.Lock = field(default_factory=threading.Lock)
    asked: int = 0
    flying: int = 0
    host: Any = None
    turned: bool = False
    began: float = field(default_factory=time.monotonic)

    def succeed(self, answer: Any) -> None:  # noqa: ANN401 - a result's body, or the driver's message
        if isinstance(answer, bytes):
            try:
                rows = self.decode(answer)
            except Exception as error:  # noqa: BLE001 - of another shape than expected
                self.lose(error)
                return
        else:
            rows = answer.parsed_rows or []
        self.tell(rows, None)

    def refuse(self, error: BaseException) -> None:
        """Answers with the error of an attempt unless another attempt may still succeed."""
        with self.lock:
            self.flying -= 1
            last = not self.flying and not self.turned
        if last:
            self.tell(None, translate(error, reads=self.reads, attempts=self.asked))

    def lose(self, error: BaseException) -> None:
        """Finds out by another attempt what became of this one, or answers as in doubt."""
        if self.idempotent:
            self.turn()
        else:
            self.refuse(error)

    def turn(self) -> None:
        """Sends it through the driver in the time that is left, unless that was done or it is answered."""
        with self.lock:
            turned, self.turned = self.turned, True
        if not turned and not self.claim.locked():
            left = self.timeout - (time.monotonic() - self.began)
            self.driver_fallback(self.tell, self.asked, max(LOOK_EVERY, left))

    def tell(self, rows: Rows | None, error: StoreUnavailable | None) -> None:
        if self.claim.acquire(blocking=False):
            self.done(rows, error)


class _Attempt:
    __slots__ = ("connection", "heard", "pool", "request")

    def __init__(self, request: FastRequest, pool: Any, connection: Any, heard: dict[Any, float]) -> None:  # noqa: ANN401 - the driver's
        self.request = request
        self.pool = pool
        self.connection = connection
        self.heard = heard

    def answered(self, answer: Any) -> None:  # noqa: ANN401 - a result's body, a message of the driver, an exception
        """Called once, by the connection."""
        self.heard[self.pool.host] = time.monotonic()
        try:
            self.pool.return_connection(self.connection)
        finally:
            self._pass_on(answer)

    def _pass_on(self, answer: Any) -> None:  # noqa: ANN401
        request = self.request
        if isinstance(answer, bytes) or hasattr(answer, "parsed_rows"):
            request.succeed(answer)
        elif isinstance(answer, _NOT_BEGUN):
            request.turn()
        elif not isinstance(answer, ErrorMessage):
            request.lose(answer)
        elif isinstance(answer, _PERHAPS_DONE):
            request.lose(answer.to_exception())
        else:
            request.refuse(answer.to_exception())


class FastPath:
    """The short way over the connections of a session."""

    def __init__(self, session: Session, keyspace: str, patience: float) -> None:
        self._session = session
        self._replicas_of = session.cluster.metadata.get_replicas
        self._keyspace = keyspace
        self._patience = round(patience / LOOK_EVERY)
        self._turn = itertools.count()
        self._pools: dict[str, Any] = {}
        """Of nodes that were asked by their address."""
        self._sent: defaultdict[int, deque[FastRequest]] = defaultdict(deque)
        """By how many looks they wait before another node is asked; few different numbers."""
        self._late: deque[FastRequest] = deque()
        self._heard: dict[Any, float] = {}
        """When each node has last answered anything."""
        self._spare = MOST_SPARE
        """Second requests to nodes that do answer, which may be sent at once."""
        self._some = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._look, name="queuey-express", daemon=True)
        self._thread.start()

    def send(self, request: FastRequest) -> None:
        if not self._ask(request):
            request.turn()
            return
        self._spare = min(MOST_SPARE, self._spare + SPARED)
        waits = min(self._patience, int(request.timeout / 4 / LOOK_EVERY))
        queue = self._sent[waits] if request.idempotent and waits else self._late
        queue.append(request)
        if not self._some.is_set():
            self._some.set()

    def close(self) -> None:
        self._closed = True
        self._some.set()
        self._thread.join(1.0)

    def nodes_with(self, routing_key: bytes) -> Iterator[Any]:
        replicas = self._replicas_of(self._keyspace, routing_key)
        first = next(self._turn)
        for step in range(len(replicas)):
            host = replicas[(first + step) % len(replicas)]
            pool = self._session._pools.get(host) if host.is_up else None  # noqa: SLF001 - the driver has no name for it
            if pool is not None and not pool.is_shutdown:
                yield pool

    def only(self, address: str) -> Iterator[Any]:
        pool = self._pools.get(address)
        if pool is None or pool.is_shutdown:
            pools = list(self._session._pools.items())  # noqa: SLF001 - likewise
            pool = next((pool for host, pool in pools if str(host.address) == address), None)
            self._pools[address] = pool
        if pool is not None and not pool.is_shutdown:
            yield pool

    def _ask(self, request: FastRequest) -> bool:
        """Sends a request to the next of its nodes; returns whether there was one that took it."""
        for pool in request.nodes:
            try:
                connection, stream = pool.borrow_connection(0)
            except Exception:  # noqa: BLE001, S112 - that node is busy or going away
                continue
            attempt = _Attempt(request, pool, connection, self._heard)
            request.host = pool.host
            with request.lock:
                request.asked += 1
                request.flying += 1
            try:
                connection.send_msg(
                    (request.opcode, request.body), stream, attempt.answered, _encode, _decode, request.metadata
                )
            except Exception as error:  # noqa: BLE001 - the driver knows what to do about it
                # The connection may have failed all its requests by now, this one with them: then it was returned.
                if connection._requests.pop(stream, None) is not None:  # noqa: SLF001 - as the driver's future does
                    with contextlib.suppress(Exception):  # the session may be closed
                        pool.return_connection(connection)
                request.lose(error)
            return True
        return False

    def _look(self) -> None:
        while not self._closed:
            self._some.wait()
            while (self._late or any(self._sent.values())) and not self._closed:
                time.sleep(LOOK_EVERY)
                try:
                    self._see_to_late()
                except Exception:
                    log.exception("The timeout of a request could not be delivered.")
            self._some.clear()
            if self._late or any(self._sent.values()):
                self._some.set()

    def _may_ask_another(self, request: FastRequest) -> bool:
        """Returns whether a request that waits is sent to another node as well: a silent node is not spared."""
        if self._heard.get(request.host, 0.0) < request.began:
            return True
        if self._spare < 1.0:
            return False
        self._spare -= 1.0
        return True

    def _see_to_late(self) -> None:
        now = time.monotonic()
        for waits, sent in list(self._sent.items()):
            while sent and (sent[0].claim.locked() or sent[0].began < now - waits * LOOK_EVERY):
                request = sent.popleft()
                if not request.claim.locked():
                    self._late.append(request)
                    if self._may_ask_another(request):
                        self._ask(request)
        for _ in range(len(self._late)):
            request = self._late.popleft()
            if request.claim.locked() or request.turned:
                continue
            if now - request.began < request.timeout:
                self._late.append(request)
            else:
                error = OperationTimedOut("no answer in time")
                request.tell(None, translate(error, reads=request.reads, attempts=request.asked))


def _encode(message: tuple[int, bytes], stream: int, _version: int, **_named: Any) -> bytes:  # noqa: ANN401
    return frame(*message, stream)


def _decode(version: int, types: Any, stream: int, flags: int, opcode: int, body: bytes, *rest: Any) -> Any:  # noqa: ANN401
    """Returns the bytes of usual results, which their callers decode; the driver decodes everything else."""
    if opcode == RESULT and not flags and (body.startswith(ROWS) or body == VOID):
        return body
    return ProtocolHandler.decode_message(version, types, stream, flags, opcode, body, *rest)
