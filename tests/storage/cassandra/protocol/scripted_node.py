"""Nodes that speak the native protocol over in-memory transports, with answers that the test decides."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from cassandra.auth import PlainTextAuthProvider

from queuey.model.errors import StoreUnavailable
from queuey.storage.cassandra.cluster import Done, Rows
from queuey.storage.cassandra.protocol import CqlClient, encoding
from queuey.storage.cassandra.protocol.attempts import CqlRequest
from tests.sim.cassandra.protocol.frames import (
    AUTH_RESPONSE,
    AUTH_SUCCESS,
    AUTHENTICATE,
    ERROR,
    INVALID,
    OPTIONS,
    PREPARE,
    QUERY,
    READY,
    STARTUP,
    SUPPORTED,
    VERSIONS,
    encode_prepared,
    encode_used_keyspace,
    error,
    frame,
    requests_in,
    text,
)
from tests.waiting import until_async

QUERY_ID, CQL = b"id", "SELECT a FROM t"
ROW = encoding.ROWS[0] + struct.pack(">iii", 1, 1, 1) + b"a"


def make_page(row: bytes, state: bytes) -> bytes:
    """Returns a page of one row with a description of its column; an empty state means that it is the last one."""
    paging = struct.pack(">iii", 1 | 2 * bool(state), 1, len(state))[: 12 if state else 8] + state
    column = text("k") + text("t") + text("a") + struct.pack(">H", 3)
    return struct.pack(">i", 2) + paging + column + struct.pack(">ii", 1, len(row)) + row


class Wire(asyncio.Transport):
    """One connection, as its node sees it.

    Attributes:
        unanswered_requests: Unanswered requests: stream, opcode and body.
        writes: How often the client has written.
        is_open: Whether neither side has ended it.
    """

    def __init__(self, node: ScriptedNode, client: Any) -> None:  # noqa: ANN401 - the client's protocol
        super().__init__()
        self.node, self.client = node, client
        self.unanswered_requests: list[tuple[int, int, bytes]] = []
        self.writes = 0
        self.is_open = True
        self._unread = bytearray()

    def write(self, data: Any) -> None:  # noqa: ANN401 - bytes
        if not self.is_open:
            return
        self.writes += 1
        self._unread += data
        for stream, opcode, body in requests_in(self._unread):
            self.node.take(self, stream, opcode, body)

    def answer(self, body: bytes = ROW, opcode: int = encoding.RESULT, *, at: int = 0) -> None:
        stream, _, _ = self.unanswered_requests.pop(at)
        self.send(frame(stream, opcode, body))

    def send(self, data: bytes) -> None:
        if self.is_open:
            self.client.data_received(data)

    def send_soon(self, data: bytes) -> None:
        asyncio.get_running_loop().call_soon(self.send, data)

    def abort(self) -> None:
        """Ends the connection, from either side."""
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().call_soon(self.client.connection_lost, None)


class ScriptedNode:
    """A node.

    Attributes:
        password: The required password; None admits every client.
        breaks_at: The handshake message at which the connection breaks, or None.
        is_silent: Whether it does not answer anything.
        wires: All connections that were made to it.
        prepared: Statements that it was asked to prepare.
        refused: Statements that it refuses to prepare.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.password: str | None = None
        self.is_reachable = True
        self.is_silent = False
        self.breaks_at: int | None = None
        self.prepared: list[str] = []
        self.refused: list[str] = []
        self.messages: list[int] = []
        self.wires: list[Wire] = []

    @property
    def wire(self) -> Wire:
        return self.wires[-1]

    @property
    def waiting(self) -> int:
        return sum(len(wire.unanswered_requests) for wire in self.wires if wire.is_open)

    def take(self, wire: Wire, stream: int, opcode: int, body: bytes) -> None:
        """Answers messages of the handshake, and keeps requests, or if silent all messages, for the test.

        The message in ``breaks_at`` ends the connection.
        """
        self.messages.append(opcode)
        if opcode == self.breaks_at:
            wire.abort()
        elif self.is_silent or opcode in {encoding.EXECUTE, encoding.BATCH}:
            wire.unanswered_requests.append((stream, opcode, body))
        else:
            wire.send_soon(frame(stream, *self._answer(opcode, body)))

    def _answer(self, opcode: int, body: bytes) -> tuple[int, bytes]:
        """Returns opcode and body of the answer to a message of the handshake, and to PREPARE, which it records."""
        if opcode == STARTUP and self.password is not None:
            return AUTHENTICATE, text("org.apache.cassandra.auth.PasswordAuthenticator")
        if opcode == AUTH_RESPONSE:
            right = body[4:] == f"\0user\0{self.password}".encode()
            return (AUTH_SUCCESS, struct.pack(">i", -1)) if right else (ERROR, error(0x100))
        if opcode == PREPARE:
            self.prepared.append(cql := body[4:].decode())
            if cql in self.refused:
                return ERROR, error(INVALID)
            return encoding.RESULT, encode_prepared(QUERY_ID if cql == CQL else cql.encode(), cql.count("?"))
        if opcode == QUERY:
            return encoding.RESULT, encode_used_keyspace("k")
        return {STARTUP: (READY, b""), OPTIONS: (SUPPORTED, VERSIONS)}[opcode]


class Scene:
    """Nodes, a client, and the results of its requests.

    Attributes:
        now: The client's clock.
        resent: Requests that were passed to the next client.
        ended: Rows and error of each request, in the order in which they ended.
    """

    def __init__(self, nodes: int = 2, patience: float = 0.0, password: str | None = None) -> None:
        self.nodes = [ScriptedNode(f"10.0.0.{number}") for number in range(1, nodes + 1)]
        self.now = 100.0
        self.resent: list[CqlRequest] = []
        self.ended: list[tuple[Rows | None, StoreUnavailable | None]] = []
        self.loop = asyncio.get_running_loop()
        self.dcs: dict[str, str] = {}
        self.auth = None if password is None else PlainTextAuthProvider("user", password)
        self.cluster = self.new_cluster(self.nodes)
        self.client = CqlClient(
            self.loop, "k", patience, {QUERY_ID: CQL}.get, local_dc="dc", connect=self.connect, clock=lambda: self.now
        )
        self.client.adopt_cluster(self.cluster)

    async def connect(self, make: Callable[[], Any], address: str, port: int, ssl: None) -> tuple[Wire, Any]:
        assert (port, ssl) == (9042, None)
        node = next(node for node in self.nodes if node.address == address)
        if not node.is_reachable:
            raise ConnectionRefusedError
        client = make()
        node.wires.append(Wire(node, client))
        client.connection_made(node.wire)
        return node.wire, client

    def new_cluster(self, nodes: Iterable[ScriptedNode]) -> Any:  # noqa: ANN401 - what the client uses of the driver's
        def hosts() -> list[Any]:
            return [
                SimpleNamespace(
                    address=node.address,
                    endpoint=SimpleNamespace(port=9042),
                    datacenter=self.dcs.get(node.address, "dc"),
                    is_up=True,
                )
                for node in nodes_now
            ]

        nodes_now = list(nodes)
        metadata = SimpleNamespace(all_hosts=hosts, get_replicas=lambda *_: hosts(), token_map=_token_map(hosts))
        return SimpleNamespace(metadata=metadata, auth_provider=self.auth, ssl_context=None, known=nodes_now)

    def change_nodes(self, nodes: list[ScriptedNode]) -> None:
        self.cluster.known[:] = self.nodes = nodes
        self.cluster.metadata.token_map = _token_map(self.cluster.metadata.all_hosts)
        self.client.adopt_cluster(self.cluster)

    async def await_wires(self) -> None:
        """Waits until any client has logged in at all nodes."""
        await until_async(lambda: all(QUERY in node.messages for node in self.nodes))
        await self.turn()

    async def await_connected(self) -> None:
        await until_async(lambda: all(self.client.is_up(node.address) for node in self.nodes))

    def send(
        self,
        *,
        idempotent: bool = True,
        timeout: float = 60.0,
        reads: bool = False,
        only: str | None = None,
        body: bytes = b"body",
        decodes: bool = True,
        done: Done | None = None,
    ) -> CqlRequest:
        """Sends a request through the client. Its end goes to ``ended``, or to ``done``."""
        request = CqlRequest(
            opcode=encoding.EXECUTE,
            body=body,
            routing_key=b"key",
            address=only,
            timeout=timeout,
            done=done or (lambda *end: self.ended.append(end)),
            resend=self.resent.append,
            decode=(lambda answer: [(answer[-1:],)]) if decodes else None,
            reads=reads,
            idempotent=idempotent,
        )
        self.client.send(request)
        return request

    async def turn(self, count: int = 3) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def await_requests(self, count: int = 1) -> list[Wire]:
        """Waits until exactly ``count`` requests are unanswered; returns their connections."""
        await until_async(lambda: sum(node.waiting for node in self.nodes) == count, every=0)
        return [wire for node in self.nodes for wire in node.wires if wire.is_open and wire.unanswered_requests]

    async def await_ended(self, count: int = 1) -> None:
        await until_async(lambda: len(self.ended) >= count)

    @property
    def outcomes(self) -> list[str | None]:
        return [None if error is None else error.outcome for _, error in self.ended]


def _token_map(hosts: Callable[[], list[Any]]) -> Any:  # noqa: ANN401 - what the client uses of the driver's
    return SimpleNamespace(
        tokens_to_hosts_by_ks={"k": object()},
        token_class=SimpleNamespace(from_key=bytes),
        get_replicas=lambda *_: hosts(),
    )
