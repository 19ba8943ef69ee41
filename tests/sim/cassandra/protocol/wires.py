"""Connections to the simulated nodes that carry bytes, for the client on a process's loop.

Bytes travel both ways, in order and with a delay, split anywhere. A node answers requests in any order. The faults are
the driver's, :class:`.cluster.NetworkFaults`. A lost answer never arrives, or arrives after its request was given up,
or the connection breaks: before the request arrived, after it was carried out, or within its answer. A node that is
away reads and sends nothing until it is back.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from queuey.model.errors import StoreUnavailable
from queuey.storage.cassandra.cluster import Encoded, Rows, StatementRequest
from queuey.storage.cassandra.protocol.encoding import BATCH, EXECUTE, RESULT, VOID
from queuey.storage.cassandra.time.clock_watch import SELECT_NOW
from tests.sim.cassandra.protocol import frames
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.cassandra.cluster import Cluster, Node
    from tests.sim.world import ProcessLoop

USER, PASSWORD = "queuey", "secret"
RARE_FAULT_FACTOR = 0.1
"""Factor for faults other than lost answers to requests: a lost answer of a handshake, a connection that breaks before
a request arrives, a statement that a node has forgotten."""
SPLIT_PROBABILITY = 0.2
"""Probability that an answer arrives in two pieces."""
TIME_TOLERANCE = 1e-9
"""Tolerance in seconds, because times are sums."""


class Direction:
    """One of the two directions of a connection.

    Args:
        world: The source of time.
        later: Schedules a call after a number of seconds.
        deliver: Called with everything that has arrived, as one piece. None is the end.
    """

    def __init__(
        self,
        world: World,
        later: Callable[[float, Callable[[], None]], object],
        deliver: Callable[[bytes | None], None],
    ) -> None:
        self._world = world
        self._later = later
        self._deliver = deliver
        self._last = 0.0
        self._chunks: deque[tuple[float, bytes | None]] = deque()

    def send(self, seconds: float, data: bytes | None) -> None:
        """Sends bytes that arrive after ``seconds``, and never before earlier ones. None ends the direction."""
        now = self._world.now
        self._last = max(self._last, now + seconds)
        self._chunks.append((self._last, data))
        self._later(self._last - now, self._arrive)

    def lose(self) -> None:
        self._chunks.clear()

    def _arrive(self) -> None:
        """Delivers all bytes that are due as one piece. After the end of the direction nothing more arrives."""
        chunks, now, arrived = self._chunks, self._world.now + TIME_TOLERANCE, bytearray()
        while chunks and chunks[0][0] <= now:
            _, data = chunks.popleft()
            if data is None:
                self.lose()
                if arrived:
                    self._deliver(bytes(arrived))
                self._deliver(None)
                return
            arrived += data
        if arrived:
            self._deliver(bytes(arrived))


class Wire(asyncio.Transport):
    """A connection of a process to a node, and the node's handling of its requests.

    Args:
        cluster: Carries out the requests.
        node: The node.
        loop: The loop of the process.
        client: The protocol at the process's end.
        distance: Factor for the time that a trip takes.
    """

    def __init__(
        self, cluster: Cluster, node: Node, loop: ProcessLoop, client: asyncio.Protocol, distance: float
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._world = cluster.world
        self._node = node
        self._loop = loop
        self._client = client
        self._distance = distance
        self._is_open, self._is_aborted = True, False
        self._requests = bytearray()
        self._to_node = Direction(self._world, self._world.after, self._read)
        self._to_client = Direction(self._world, loop.call_later, self._pass_on)

    # The client's side

    def write(self, data: Any) -> None:  # noqa: ANN401 - bytes
        if self._is_open:
            if self._cluster.happens(RARE_FAULT_FACTOR * self._cluster.network_faults.lost):
                self._cluster.faults["unsent"] += 1
                self._to_node.lose()
                self._break()
            else:
                self._to_node.send(self._transport_time(), bytes(data))

    def abort(self) -> None:
        """Ends the connection and notifies the client soon. Written bytes may still arrive; answers are ignored."""
        self._is_aborted = True
        if self._is_open:
            self._is_open = False
            self._loop.call_soon(self._client.connection_lost, None)

    def _pass_on(self, data: bytes | None) -> None:
        """Passes bytes on to the client unless it has aborted, and always reports the end."""
        if data is None:
            self._client.connection_lost(ConnectionResetError("reset by the simulated node"))
        elif not self._is_aborted:
            self._client.data_received(data)

    # The node's side

    def _read(self, data: bytes | None) -> None:
        assert data is not None
        self._requests += data
        self._work()

    def _work(self) -> None:
        """Handles the requests that have arrived, once the node is back.

        By chance a statement of the store fails as forgotten or its answer is lost; a request that prepares is rarely
        lost.
        """
        if (away := self._time_away()) > 0.0:
            self._world.after(away, self._work)
            return
        for stream, opcode, body in frames.requests_in(self._requests):
            if opcode in {EXECUTE, BATCH}:
                self._carry_out(stream, frames.parse_sent(opcode, body))
            else:
                self._answer(stream, *self._answer_to(opcode, body), often=RARE_FAULT_FACTOR)

    def _answer_to(self, opcode: int, body: bytes) -> tuple[int, bytes]:
        if opcode == frames.STARTUP:
            return frames.AUTHENTICATE, frames.text("org.apache.cassandra.auth.PasswordAuthenticator")
        if opcode == frames.AUTH_RESPONSE:
            assert body[4:] == f"\0{USER}\0{PASSWORD}".encode()
            return frames.AUTH_SUCCESS, struct.pack(">i", -1)
        if opcode == frames.PREPARE:
            query_id = frames.id_of(body[4:].decode())
            self._node.forgotten.discard(query_id)
            return RESULT, frames.encode_prepared(query_id)
        if opcode == frames.QUERY:
            return RESULT, frames.encode_used_keyspace("queuey")
        assert opcode == frames.OPTIONS
        return frames.SUPPORTED, frames.VERSIONS

    def _carry_out(self, stream: int, sent: frames.Sent) -> None:
        forgotten = self._node.forgotten
        if self._cluster.happens(RARE_FAULT_FACTOR * self._cluster.network_faults.lost):
            self._cluster.faults["forgotten"] += 1
            forgotten.add(sent.rows[0][0])
        for query_id, _ in sent.rows:
            if query_id in forgotten:
                body = frames.error(frames.UNPREPARED, frames.short_bytes(query_id))
                self._answer(stream, frames.ERROR, body)
                return
        request = sent.request(self._cluster.statements)
        if request.statement == SELECT_NOW:
            request = request._replace(host=self._node.address)
        self._cluster.note_append(request, -1)
        self._cluster.ask(request, partial(self._send_result, stream, request))

    def _send_result(
        self, stream: int, request: StatementRequest | Encoded, rows: Rows | None, failure: StoreUnavailable | None
    ) -> None:
        if failure is not None:
            self._answer(stream, frames.ERROR, frames.error(frames.UNAVAILABLE, struct.pack(">Hii", 4, 2, 1)))
        elif isinstance(request, Encoded):
            self._answer(stream, RESULT, rows if request.decode else VOID)  # type: ignore[arg-type]
        else:
            self._answer(
                stream, RESULT, VOID if request.serial is None else frames.encode_decision(request, rows or [])
            )

    def _answer(self, stream: int, opcode: int, body: bytes, *, often: float = 1.0) -> None:
        """Sends an answer, unless it is lost. ``often`` is a factor for the probability of that.

        A lost one never comes, comes late, or the connection breaks before it or within it.
        """
        data, rng, cluster = frames.frame(stream, opcode, body), self._world.rng, self._cluster
        if not cluster.happens(often * cluster.network_faults.lost):
            self._send(data)
            return
        fate = rng.choice(("none", "late", "late", "half", "broken"))
        cluster.faults[fate] += 1
        if fate == "late":
            self._world.after(rng.choice((1.0, 4.0, 9.0)) * cluster.pace.scale, partial(self._send, data))
        elif fate == "half" and self._is_open:
            self._to_client.send(self._transport_time(), data[: self._inside(data)])
        if fate in {"half", "broken"}:
            self._break()

    def _send(self, data: bytes) -> None:
        """Sends bytes once the node is back, sometimes in two pieces. Drops them if the connection was closed."""
        if not self._is_open:
            return
        if (away := self._time_away()) > 0.0:
            self._world.after(away, partial(self._send, data))
            return
        rng = self._world.rng
        if rng.random() < SPLIT_PROBABILITY:
            split = self._inside(data)
            self._to_client.send(self._transport_time(), data[:split])
            data = data[split:]
        self._to_client.send(self._transport_time(), data)

    # The network

    def _transport_time(self) -> float:
        return self._distance * self._world.random_time(self._cluster.network_faults.slow)

    def _inside(self, data: bytes) -> int:
        """Returns a random index within data. Draws once for any length, so a seed's history does not depend on it."""
        return 1 + int(self._world.rng.random() * (len(data) - 1))

    def _time_away(self) -> float:
        return self._node.away_until - self._world.now

    def _break(self) -> None:
        if self._is_open:
            self._is_open = False
            self._to_client.send(self._transport_time(), None)


def connector(cluster: Cluster, loop: ProcessLoop, near: str | None = None) -> Callable[..., Any]:
    """Returns a replacement of ``create_connection`` for the loop of a process.

    Args:
        cluster: The cluster to connect to.
        loop: The loop of the process.
        near: Address of the node on its machine. Connections to others are made later, and their trips take longer.
    """
    opened = cluster.world.now + (0.0 if near is None else 0.3 * cluster.pace.scale)

    async def connect(
        make: Callable[[], asyncio.Protocol], address: str, _port: int, *, ssl: None
    ) -> tuple[Wire, asyncio.Protocol]:
        node = next(node for node in cluster.nodes if node.address == address)
        await asyncio.sleep(cluster.world.random_time(cluster.network_faults.slow))
        if node not in cluster.up() or (address != near and cluster.world.now < opened):
            raise ConnectionRefusedError("the simulated node is away")
        client = make()
        wire = Wire(cluster, node, loop, client, 0.1 if address == near else 1.0)
        client.connection_made(wire)
        return wire, client

    return connect
