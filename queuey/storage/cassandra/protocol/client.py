"""The client: connections of its own to the nodes of the local data centre, and requests over them.

Everything runs in the event loop's thread and never blocks. For the rules of a request see :mod:`.attempts`. If a
node does not know a statement, the client prepares it there and repeats the request. States of a node::

    connecting ──(logged in)──► up ──(the connection failed, or does not answer a heartbeat)──► broken
        ▲  └──(refused, or timed out)────────────────────────────────────────────────────────────▲ │
        └──(a pause, twice as long each time)──────────────────────────────────────────────────────┘

The nodes, and the rows that each has, come from the driver's metadata.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from cassandra.connection import ConnectionException
from cassandra.protocol import OptionsMessage, PreparedQueryNotFound

from queuey.model.errors import StoreUnavailable
from queuey.storage.cassandra.protocol.attempts import CHECK_INTERVAL, MAX_ATTEMPTS, CqlRequest, InFlight
from queuey.storage.cassandra.protocol.connection import NodeConnection
from queuey.storage.lasting_failures import Trouble

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 3.0
FIRST_PAUSE, MAX_PAUSE = 0.125, 1.0
"""Pauses between attempts to connect, in seconds."""
HEARTBEAT_INTERVAL = 3.0
"""Max seconds without an answer before a node is sent a heartbeat, and max seconds until it answers that."""
READ_DELAY = 0.001
"""Interval between a timer and its check for timeouts, in seconds."""
MAX_ROUTES = 10_000
"""Max routing keys with cached replicas: 2 MB. Finding the replicas of another key takes a few microseconds."""

Connect = Callable[..., Any]
"""Makes a connection, like ``create_connection`` of an event loop."""


class Node:
    """A node, and the connection to it.

    Attributes:
        connection: None unless the node is up.
        is_broken: The last attempt to connect failed, or the connection failed.
    """

    def __init__(self, client: CqlClient, cluster: Any, host: Any) -> None:  # noqa: ANN401 - the driver's
        self.address = address = str(host.address)
        self.connection: NodeConnection | None = None
        self.is_broken = False
        self._client = client
        self._cluster = cluster
        self._host = host
        self._trouble = Trouble(log, f"The event loop's connection to Cassandra node {address}", quiet=0.0)
        self._task = client.loop.create_task(self._stay_connected())

    def close(self) -> None:
        self._task.cancel()
        self._drop(ConnectionException("the connection was closed"))

    async def _stay_connected(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                self.connection = await self._connect()
                self.is_broken = False
                self._client.update_usable()
                self._trouble.record_success()
                pause = FIRST_PAUSE
                await self._wait_until_broken(self.connection)
                problem: Exception = ConnectionException("it broke")
            except Exception as error:  # noqa: BLE001 - every error is logged and followed by a retry
                problem = error
            except asyncio.CancelledError:
                self.close()  # The loop may be ending, and uvloop cannot close with an open connection.
                raise
            was_refused = self.connection is None
            self._drop(problem)
            if was_refused and self._host.is_up:  # The driver reports lost nodes: it sees all of them.
                text = str(problem) or type(problem).__name__
                self._trouble.record_failure("refused", f"{text}; retrying until it answers")
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)

    async def _connect(self) -> NodeConnection:
        client, cluster, port = self._client, self._cluster, self._host.endpoint.port
        connection = NodeConnection(client.loop, self.address, client.clock)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await client.connect(lambda: connection, self.address, port, ssl=cluster.ssl_context)
                await connection.start(cluster.auth_provider, client.keyspace)
        except BaseException:
            connection.fail(ConnectionException("the connection could not be made"))
            raise
        return connection

    async def _wait_until_broken(self, connection: NodeConnection) -> None:
        while not connection.ended.done():
            await asyncio.wait([connection.ended], timeout=HEARTBEAT_INTERVAL)
            if not connection.ended.done() and self._client.clock() - connection.received_at >= HEARTBEAT_INTERVAL:
                async with asyncio.timeout(HEARTBEAT_INTERVAL):
                    await connection.ask(OptionsMessage())

    def _drop(self, error: Exception) -> None:
        self.is_broken = True
        connection, self.connection = self.connection, None
        self._client.update_usable()
        if connection is not None:
            connection.fail(error)


class _Attempt:
    """A request at one node."""

    __slots__ = ("_client", "_connection", "_forgotten", "_request")

    def __init__(self, client: CqlClient, request: CqlRequest, connection: NodeConnection) -> None:
        self._client = client
        self._request = request
        self._connection = connection
        self._forgotten: tuple[bytes, ...] = ()

    def receive(self, answer: Any) -> None:  # noqa: ANN401 - see ``decode_answer``; or an exception
        request = self._request
        request.answered_at = self._connection.received_at
        if not isinstance(answer, PreparedQueryNotFound) or not self._prepare(answer.info):
            request.receive(answer)

    def _prepare(self, query_id: bytes) -> bool:
        cql = self._client.find_cql(query_id)
        if cql is None or query_id in self._forgotten:
            return False
        self._forgotten += (query_id,)
        self._connection.prepare(query_id, cql).add_done_callback(partial(self._repeat, query_id))
        return True

    def _repeat(self, query_id: bytes, prepared: asyncio.Future[Any]) -> None:
        request = self._request
        is_prepared = prepared.exception() is None and getattr(prepared.result(), "query_id", None) == query_id
        if request.is_answered:
            return
        if not (is_prepared and self._connection.send(request.opcode, request.body, self.receive, request.metadata)):
            request.fail_before_begin(prepared.exception() or ConnectionException("the statement is not prepared"))


class CqlClient:
    """Sends requests over an event loop. All methods except ``is_up`` are for the loop's thread.

    Args:
        keyspace: The keyspace of the rows. None to ask any node, for a keyspace that may not exist yet.
        patience: Seconds after which an idempotent request also goes to a second node.
        find_cql: Returns the statement of an id, or None.
        local_dc: Data centre of the nodes to ask; all nodes if None.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        keyspace: str | None,
        patience: float,
        find_cql: Callable[[bytes], str | None],
        *,
        local_dc: str | None = None,
        connect: Connect | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.loop = loop
        self.keyspace = keyspace
        self.find_cql = find_cql
        self.connect: Connect = connect or loop.create_connection
        self.clock = clock
        self.is_usable = False
        self._is_closed = False
        self._local_dc = local_dc
        self._cluster: Any = None
        self._nodes: dict[str, Node] = {}
        self._token_map: Any = None
        self._replicas_by_token: Any = None
        """The driver's token map and replicas when the nodes were last updated."""
        self._replicas: dict[bytes, tuple[Node, ...]] = {}
        """By routing key, the nodes that have the row."""
        self._turn = itertools.count()
        self._waiting: list[CqlRequest] = []
        """Requests that wait for the first connection to a node."""
        self._in_flight = InFlight(self._ask_next, lambda connection: connection.received_at, patience)
        self._timer: asyncio.TimerHandle | None = None

    # The nodes

    def adopt_cluster(self, cluster: Any) -> None:  # noqa: ANN401 - the driver's
        if cluster is not self._cluster:
            nodes, self._nodes = self._nodes, {}
            for node in nodes.values():
                node.close()
            self._cluster, self._replicas_by_token = cluster, None
        if cluster is None:
            return
        if self.keyspace is not None:
            token_map = cluster.metadata.token_map
            replicas_by_token = None if token_map is None else token_map.tokens_to_hosts_by_ks.get(self.keyspace)
            if replicas_by_token is None or replicas_by_token is self._replicas_by_token:
                return
            self._token_map, self._replicas_by_token = token_map, replicas_by_token
            self._replicas.clear()
        hosts = {
            str(host.address): host
            for host in cluster.metadata.all_hosts()
            if self._local_dc in {None, host.datacenter}
        }
        for address in self._nodes.keys() - hosts.keys():
            self._nodes.pop(address).close()
        for address, host in hosts.items():
            if address not in self._nodes:
                self._nodes[address] = Node(self, cluster, host)

    def update_usable(self) -> None:
        self.is_usable = any(node.connection is not None for node in self._nodes.values())
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            if not request.is_answered:
                self._begin(request)

    def is_up(self, address: str) -> bool | None:
        """Returns whether a node is up; None if that is not known yet. From any thread."""
        node = self._nodes.get(address)
        if node is None or (node.connection is None and not node.is_broken):
            return None
        return node.connection is not None

    def _nodes_for(self, request: CqlRequest) -> Iterator[Node]:
        """Yields the connected nodes that may be asked: those with the row, each call beginning with the next in turn.

        Then the others.
        """
        if request.address is not None:
            node = self._nodes.get(request.address)
            if node is not None and node.connection is not None:
                yield node
            return
        replicas: Sequence[Node] = ()
        if request.routing_key is not None:
            replicas = self._replicas.get(request.routing_key) or self._find_replicas(request.routing_key)
        first = next(self._turn)
        for nodes in (replicas, [*self._nodes.values()]):
            for step in range(len(nodes)):
                node = nodes[(first + step) % len(nodes)]
                if node.connection is not None and (nodes is replicas or node not in replicas):
                    yield node

    def _find_replicas(self, routing_key: bytes) -> tuple[Node, ...]:
        if len(self._replicas) >= MAX_ROUTES:
            self._replicas.clear()
        token_map = self._token_map
        if token_map is None:
            return ()
        hosts = token_map.get_replicas(self.keyspace, token_map.token_class.from_key(routing_key))
        nodes = [self._nodes.get(str(host.address)) for host in hosts]
        replicas = self._replicas[routing_key] = tuple(node for node in nodes if node is not None)
        return replicas

    # Requests

    def send(self, request: CqlRequest) -> None:
        request.ask_next = self._ask_next
        request.began = request.began or self.clock()
        self._begin(request)
        if not request.is_answered:
            self._in_flight.add(request)
            if self._timer is None:
                self._set_timer()

    def _begin(self, request: CqlRequest) -> None:
        request.nodes = self._nodes_for(request)
        if self._send_to_next(request):
            return
        if request.address is None:
            nodes, text = [*self._nodes.values()], "Cassandra cannot be reached (no node accepts requests)"
        else:
            nodes = [node for node in self._nodes.values() if node.address == request.address]
            text = f"Cassandra node {request.address} did not answer"
        if any(node.connection is None and not node.is_broken for node in nodes):
            self._waiting.append(request)
        else:
            request.refuse(StoreUnavailable(text))

    def close(self) -> None:
        """Ends all connections. Requests without an answer go over the next client, or end in doubt."""
        self._is_closed = True
        waiting, self._waiting = self._waiting, []
        self.adopt_cluster(None)
        for request in waiting:
            request.resend(request)
        if self._timer is not None:
            self._timer.cancel()

    def _ask_next(self, request: CqlRequest) -> bool:
        if self._is_closed:
            request.resend(request)
            return True
        return request.attempts < MAX_ATTEMPTS and self._send_to_next(request)

    def _send_to_next(self, request: CqlRequest) -> bool:
        for node in request.nodes:
            connection = node.connection
            attempt = _Attempt(self, request, connection)
            if connection.send(request.opcode, request.body, attempt.receive, request.metadata):
                request.begin_attempt(connection)
                return True
        return False

    def _set_timer(self) -> None:
        self._timer = self.loop.call_later(CHECK_INTERVAL, self._check_timeouts_after_reads)

    def _check_timeouts_after_reads(self) -> None:
        """Lets the loop read the answers that came during a long turn before they count as late."""
        self._timer = self.loop.call_later(READ_DELAY, self._check_timeouts)

    def _check_timeouts(self) -> None:
        self._timer = None
        try:
            self._in_flight.check(self.clock())
        except Exception:
            log.exception("The timeout of a request could not be delivered.")
        if self._in_flight:
            self._set_timer()
