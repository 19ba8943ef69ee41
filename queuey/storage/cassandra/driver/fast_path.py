"""The fast path to a node from any thread: requests go over the driver's own connections.

The driver costs some 150 us of CPU a request and several a row. Here requests are encoded by their callers, and go past
the driver's futures, plans and timers. Only frequent requests take it: writes of rows, reads of one page, appends to
claim logs. The rest goes through the driver, with all its rules. What becomes of an attempt: :mod:`.fast_request`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

from cassandra.cluster import Cluster, Session

from queuey.storage.cassandra.driver.cql.protocol import answer_of, header
from queuey.storage.cassandra.driver.fast_request import LOOK_EVERY, MOST_WAITING, FastRequest, InFlight

log = logging.getLogger(__name__)


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


class _Attempt:
    __slots__ = ("answered_at", "connection", "pool", "request")

    def __init__(self, request: FastRequest, pool: Any, connection: Any, answered_at: dict[Any, float]) -> None:  # noqa: ANN401 - the driver's
        self.request = request
        self.pool = pool
        self.connection = connection
        self.answered_at = answered_at

    def answered(self, answer: Any) -> None:  # noqa: ANN401 - a result's body, a message of the driver, an exception
        """Called once, by the connection."""
        self.answered_at[self.pool.host] = time.monotonic()
        try:
            self.pool.return_connection(self.connection)
        finally:
            self.request.receive(answer)


class FastPath:
    """The short way over the connections of a session."""

    def __init__(self, session: Session, keyspace: str, patience: float) -> None:
        self._session = session
        self._replicas_of = session.cluster.metadata.get_replicas
        self._keyspace = keyspace
        self._turn = itertools.count()
        self._pools: dict[str, Any] = {}
        """Of nodes that were asked by their address."""
        self._answered: dict[Any, float] = {}
        """When each node has last answered anything."""
        self._in_flight = InFlight(self._ask, lambda host: self._answered.get(host, 0.0), patience)
        self._some = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._look, name="queuey-express", daemon=True)
        self._thread.start()

    def send(self, request: FastRequest) -> None:
        if not self._ask(request):
            request.turn()
            return
        self._in_flight.add(request)
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
            attempt = _Attempt(request, pool, connection, self._answered)
            request.begin_attempt(pool.host)
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
            while self._in_flight and not self._closed:
                time.sleep(LOOK_EVERY)
                try:
                    self._in_flight.check(time.monotonic())
                except Exception:
                    log.exception("The timeout of a request could not be delivered.")
            self._some.clear()
            if self._in_flight:
                self._some.set()


def _encode(message: tuple[int, bytes], stream: int, _version: int, **_named: Any) -> bytes:  # noqa: ANN401
    opcode, body = message
    return header(opcode, body, stream) + body


def _decode(_version: int, _types: object, _stream: int, flags: int, opcode: int, body: bytes, *rest: Any) -> Any:  # noqa: ANN401
    _decompressor, metadata = rest
    return answer_of(flags, opcode, body, metadata)
