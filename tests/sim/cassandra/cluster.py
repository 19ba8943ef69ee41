"""A Cassandra cluster in simulated time, and the driver that sends requests to it.

Three nodes have a copy of everything. A write reaches them one after another, some of them late, and is answered when
as many nodes have it as its level requires. A read merges the data of as many nodes and repairs them. A conditional
write is decided at one instant against what was committed before. If its answer is lost, it may stay pending until the
next one arrives. Clocks of nodes differ, nodes are away for a while, answers are lost, and processes stop before they
send a request.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from cassandra.auth import PlainTextAuthProvider
from cassandra.query import PreparedStatement

from queuey.model import ids
from queuey.model.errors import StoreClosed, StoreUnavailable
from queuey.storage.cassandra import CassandraOptions, CassandraStore
from queuey.storage.cassandra.cluster import Done, Driver, Encoded, Rows, Statement, StatementRequest
from queuey.storage.cassandra.cluster.options import DataCentreTarget
from queuey.storage.cassandra.protocol import CqlClient
from queuey.storage.cassandra.time.clock import SteadyClock
from queuey.storage.cassandra.time.clock_watch import SELECT_NOW
from queuey.storage.deadlines import Deadline
from tests.sim.cassandra import cql
from tests.sim.cassandra.cql import Change, Partition, Place
from tests.sim.cassandra.loops import SimulatedCalls, SimulatedLoop
from tests.sim.cassandra.pace import PATIENT, Pace
from tests.sim.cassandra.protocol import frames
from tests.sim.cassandra.protocol.wires import PASSWORD, USER, connector
from tests.sim.world import Process, ProcessLoop, World

TARGET = DataCentreTarget(("127.0.0.1",), "queuey")
NODES = 3
NEEDED = {"ONE": 1, "LOCAL_ONE": 1, "TWO": 2, "QUORUM": 2, "LOCAL_QUORUM": 2, "EACH_QUORUM": 2, "THREE": 3, "ALL": 3}
SERIAL = {"SERIAL", "LOCAL_SERIAL"}
Calls = Sequence[tuple[cql.Command, Sequence[Any]]]
"""Statements with the values of their markers."""
Answer = Callable[[Rows], None]


@dataclass
class NetworkFaults:
    """The kinds of faults, and how often each occurs."""

    slow: float = 0.003
    """Mean seconds of one trip through the network."""
    lost: float = 0.0
    """Fraction of lost answers."""
    stuck: float = 0.0
    """Fraction of conditional writes that stay pending for a while."""
    late: float = 0.0
    """Fraction of writes that reach some node seconds late."""
    stalls: float = 0.0
    """Fraction of requests before which their process, or one of its threads, stops."""


class Node:
    """One node.

    Args:
        number: The number of the node.
        offset: Seconds by which its clock is ahead.
    """

    def __init__(self, number: int, offset: float) -> None:
        self.address = f"127.0.0.{number}"
        self.offset = offset
        self.away_until = 0.0
        self.data: defaultdict[Place, Partition] = defaultdict(Partition)
        self.forgotten: set[bytes] = set()
        """The ids of statements that must be prepared again."""


class Cluster:
    """The nodes.

    Args:
        world: The source of time and chance.
        network_faults: The faults. They may be replaced at any time.
        pace: The timing of the stores.
        nodes: Number of nodes. Each has everything.
    """

    def __init__(self, world: World, network_faults: NetworkFaults, pace: Pace = PATIENT, nodes: int = NODES) -> None:
        self.world = world
        self.network_faults = network_faults
        self.pace = pace
        wrong = 0.05 * pace.clocks
        self.nodes = [Node(number, world.rng.uniform(-wrong, wrong)) for number in range(1, nodes + 1)]
        self.committed: defaultdict[Place, Partition] = defaultdict(Partition)
        """The effects of conditional writes, by partition."""
        self.sent = 0
        self.statements: dict[bytes, Statement] = {}
        """Prepared statements by id."""
        self.faults: Counter[str] = Counter()
        """Counts of what happened to requests on connections."""
        self.wrong: list[str] = []
        """Forbidden actions of drivers."""
        self._appends: Counter[tuple[Any, ...]] = Counter()
        """Appends given to a driver and not yet begun by a node, by content."""
        self._pending_writes: defaultdict[Place, list[Callable[[], None]]] = defaultdict(list)
        self._stamp = 0

    def up(self) -> list[Node]:
        return [node for node in self.nodes if node.away_until <= self.world.now]

    def happens(self, chance: float) -> bool:
        return self.world.rng.random() < chance

    def note_append(self, request: StatementRequest | Encoded, count: int) -> None:
        """Counts an append to a log: 1 when a driver receives it, -1 when it is sent or begun by a node."""
        if isinstance(request, StatementRequest) and request.further:
            calls = [(request.statement, request.values), *request.further]
            content = tuple((statement.cql, *values) for statement, values in calls)
            self._appends[content] += count
            if self._appends[content] < 0:
                self.wrong.append(f"sent: {content} was begun more often than it was asked for")

    def everything(self) -> Mapping[Place, Partition]:
        """Returns the merged data of all nodes, also of those that are away."""
        merged: defaultdict[Place, Partition] = defaultdict(Partition)
        for node in self.nodes:
            for place, partition in node.data.items():
                merged[place].absorb(partition)
        return merged

    def ask(self, request: StatementRequest | Encoded, end: Done) -> None:
        """Handles a read, a conditional or a plain write. Calls back when its answer leaves the cluster, or never.

        Fails with StoreUnavailable if fewer nodes are up than its level needs. A request to one host that is away, and
        a conditional write that stays pending, are never answered.
        """
        self.sent += 1
        reads = request.statement.reads
        if request.host is not None:
            [node] = [node for node in self.nodes if node.address == request.host]
            if node in self.up():
                self._ask_one(node, request, end)
            return
        calls = _statements_of(request)
        needed = min(len(self.nodes), 2 if request.consistency in SERIAL else NEEDED[request.consistency])
        if len(self.up()) < needed:
            end(None, StoreUnavailable("too few nodes are up"))
        elif reads:
            self._read(request, calls[0][1], needed, lambda rows: end(rows, None))
        elif any(command.conditional for command, _ in calls):
            self._decide(calls, needed, lambda rows: end(rows, None))
        else:
            self._write(self._changes(calls), needed, lambda: end([], None))

    # Reads

    def _ask_one(
        self, node: Node, request: StatementRequest | Encoded, end: Done, values: Sequence[Any] | None = None
    ) -> None:
        if request.statement == SELECT_NOW:
            end(self._encode_rows(request, [(_uuid(self.world.now + node.offset),)]), None)
            return
        command = cql.command(request.statement.cql)
        if values is None:
            [(_, values)] = _statements_of(request)
        end(self._answer(request, values, {place: node.data[place] for place in self._places(command, values)}), None)

    def _read(self, request: StatementRequest | Encoded, values: Sequence[Any], needed: int, end: Answer) -> None:
        """Reads from random nodes and merges their data.

        Repairs these nodes; a serial read first finishes pending writes.
        """
        command = cql.command(request.statement.cql)
        places = self._places(command, values)
        merged = {place: Partition() for place in places}

        if request.consistency in SERIAL:
            for place in places:
                self._resolve_pending(place)
                merged[place].absorb(self.committed[place])
        asked, wanted = self.world.rng.sample(self.up(), needed), command.row_filter(values)
        missing = [needed]

        def take(node: Node) -> None:
            for place in places:
                merged[place].absorb(node.data[place], wanted)
            missing[0] -= 1
            if not missing[0]:
                for node_ in asked:
                    for place in places:
                        node_.data[place].absorb(merged[place])
                end(self._answer(request, values, merged))

        for node in asked:
            self.world.after(self.world.random_time(self.network_faults.slow), partial(take, node))

    def _answer(
        self, request: StatementRequest | Encoded, values: Sequence[Any], there: Mapping[Place, Partition]
    ) -> Rows:
        command = cql.command(request.statement.cql)
        return self._encode_rows(request, command.rows(values, there, self.world.now))

    def _encode_rows(self, request: StatementRequest | Encoded, rows: Rows) -> Rows:
        if isinstance(request, Encoded) and request.decode is not None:
            return request.decode(cql.command(request.statement.cql).encode_result(rows))
        return rows

    def _places(self, command: cql.Command, values: Sequence[Any]) -> list[Place]:
        """Returns the partitions to read. A scan goes through a table in the order of keys, not of hashes."""
        if not command.scans:
            return command.places(values)
        return sorted({place for node in self.nodes for place in node.data if place[0] == command.table.name})

    # Writes

    def _changes(self, calls: Calls) -> list[Change]:
        now, decided = self.world.now, any(command.conditional for command, _ in calls)
        # A batch has one timestamp. It is the last of one for each call, so that old seeds keep their histories.
        stamp = max(self._next_stamp() for _ in (calls[:1] if decided else calls))
        return [change for command, values in calls for change in command.changes(values, stamp, now, decided=decided)]

    def _next_stamp(self) -> int:
        """Returns the next timestamp, by the clock of a random node. Timestamps ascend."""
        offset = self.world.rng.choice(self.nodes).offset
        self._stamp = max(self._stamp + 1, round((self.world.now + offset) * 1e6))
        return self._stamp

    def _write(self, changes: Sequence[Change], needed: int, end: Callable[[], None]) -> None:
        """Sends changes to all nodes, some late. Calls ``end`` once ``needed`` of them have the changes.

        A node that is away gets them when it is back.
        """
        missing = [needed]

        def take(node: Node) -> None:
            for place, change in changes:
                node.data[place].absorb(change)
            missing[0] -= 1
            if not missing[0]:
                end()

        rng, weather, now, scale = self.world.rng, self.network_faults, self.world.now, self.pace.scale
        far = rng.random() < weather.late
        for node in self.nodes:
            seconds = self.world.random_time(
                rng.choice((weather.slow, 3.0 * scale, 9.0 * scale)) if far else weather.slow
            )
            # A node that is away gets the write when it is back.
            self.world.after(max(seconds, node.away_until - now), partial(take, node))

    # Conditional writes

    def _decide(self, calls: Calls, needed: int, end: Answer) -> None:
        """Carries out a conditional write, after it has resolved the pending ones of its partition.

        Some stay pending: these never answer, and take effect later or not at all.
        """
        rng, weather = self.world.rng, self.network_faults
        [place] = {place for command, values in calls for place in command.places(values)}
        self._resolve_pending(place)
        if rng.random() < weather.stuck:
            lying = partial(self._apply, place, calls, needed, lambda _rows: None)
            self._pending_writes[place].append(lying)
            if rng.random() < 0.7:
                self.world.after(self.world.random_time(self.pace.scale), partial(self._apply_pending, place, lying))
            return
        self._apply(place, calls, needed, end)

    def _apply(self, place: Place, calls: Calls, needed: int, end: Answer) -> None:
        committed, now = self.committed[place], self.world.now
        for command, values in calls:
            if not command.conditional:
                continue
            refusal = command.refusal(values, committed, now, [called for called, _ in calls])
            if refusal is not None:
                end([refusal])
                return
        changes = self._changes(calls)
        for _, change in changes:
            committed.absorb(change)
        self._write(changes, needed, lambda: end([(True,)]))

    def _resolve_pending(self, place: Place) -> None:
        """Applies each pending write of a partition with a probability of a half, and drops the others."""
        for pending_write in self._pending_writes.pop(place, ()):
            if self.world.rng.random() < 0.5:
                pending_write()

    def _apply_pending(self, place: Place, pending_write: Callable[[], None]) -> None:
        if pending_write in self._pending_writes[place]:
            self._pending_writes[place].remove(pending_write)
            pending_write()


def _statements_of(request: StatementRequest | Encoded) -> list[tuple[cql.Command, Sequence[Any]]]:
    if isinstance(request, Encoded):
        return [(cql.command(request.statement.cql), values) for values in cql.values_of(request)]
    return [
        (cql.command(statement.cql), values)
        for statement, values in [(request.statement, request.values), *request.further]
    ]


def _uuid(seconds: float) -> UUID:
    return UUID(hex=ids.to_hex((ids.seconds_to_ticks(seconds), 0)))


class Machine:
    """The clocks of a process's machine. All of them stop while the virtual machine does.

    Args:
        process: The process on it.
        pace: The timing of its store.
        node: The Cassandra node on it, if any: its clock stops as well, and it answers before others.
    """

    def __init__(self, process: Process, pace: Pace = PATIENT, node: Node | None = None) -> None:
        self._process = process
        self.node = node
        self._node_apart = 0.0 if node is None else node.offset
        self._pace = pace
        self._apart = process.offset
        self._behind = 0.0
        """Seconds for which it has stood still."""
        self._still_until = 0.0

    def boottime(self) -> int:
        return round((self._process.world.now + 100 - self._behind) * 1e9)

    def wall(self) -> int:
        return round((self._process.clock() - self._behind) * 1e9)

    def stand_still(self, seconds: float) -> None:
        """Stops for some seconds: its process pauses and its clocks fall behind. Corrects them later, as NTP does."""
        world = self._process.world
        self._behind += seconds
        if self.node is not None:
            self.node.offset -= seconds
        self._still_until = max(self._still_until, world.now) + seconds
        self._process.pause(self._still_until - world.now)
        world.after(self._still_until - world.now + world.random_time(3.0 * self._pace.scale), self.set_clock)

    def set_clock(self, wrong: float = 0.0) -> None:
        """Sets the wall clock to the right time plus ``wrong`` seconds."""
        self._process.offset = self._apart + self._behind + wrong
        if self.node is not None:
            self.node.offset = self._node_apart + wrong


class SimulatedHost:
    """A node as the driver sees it."""

    datacenter = "dc1"
    endpoint = SimpleNamespace(port=9042)

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self.address = node.address
        self._cluster = cluster
        self._node = node

    @property
    def is_up(self) -> bool:
        return self._node in self._cluster.up()


class PreparedStatements(dict[Statement, PreparedStatement]):
    """All statements, each prepared when it is first needed; their ids are entered in the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def __contains__(self, _statement: object) -> bool:
        return True

    def __missing__(self, statement: Statement) -> PreparedStatement:
        prepared = self[statement] = frames.prepared_statement(statement, TARGET.keyspace)
        self._cluster.statements[prepared.query_id] = statement
        return prepared


class SimulatedDriver(Driver):
    """One process's driver. Its requests travel as bytes.

    Args:
        cluster: The cluster to send to.
        process: The process that it belongs to.
        machine: The machine of the process.
        deadline: The deadline of calls.
        timeout: Default timeout of a request, in seconds.
    """

    def __init__(
        self, cluster: Cluster, process: Process, machine: Machine, deadline: Deadline, timeout: float
    ) -> None:
        self.target = TARGET
        self._cluster_of_world = cluster
        self._process = process
        self._life = process.life
        self._near = None if machine.node is None else machine.node.address
        self._deadline = deadline
        self._options = CassandraOptions(timeout=timeout)
        self._closed = threading.Event()
        self._client: CqlClient | None = None
        self.loop = SimulatedLoop(process, self._enter_loop)
        self.calls: SimulatedCalls = SimulatedCalls(self.loop, deadline)
        self._cluster = _driver_cluster(cluster)
        self._prepared = PreparedStatements(cluster)
        self.requests = 0

    def _enter_loop(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        assert isinstance(loop, ProcessLoop)
        client = self._client = CqlClient(
            loop,
            TARGET.keyspace,
            self._options.speculative,
            self._find_cql,
            connect=connector(self._cluster_of_world, loop, self._near),
            clock=self._deadline.clock,
        )
        self._pass_cluster_to_client()
        loop.at_end[self.calls.close_new] = None
        return partial(self._end_client, client)

    def send(self, request: StatementRequest | Encoded, done: Done) -> None:
        """Sends a request, at once or after a random stall of the loop's process or of the other thread.

        Fails with StoreClosed once it is closed.
        """
        if self._closed.is_set():
            done(None, StoreClosed("the store is closed"))
            return
        done = self._checked_callback(request, done)
        self._cluster_of_world.note_append(request, 1)
        cluster, world = self._cluster_of_world, self._process.world
        stalls = cluster.network_faults.stalls
        if stalls and world.rng.random() < stalls:
            seconds = world.rng.choice((0.2, 2.0, 5.5)) * cluster.pace.scale
            writes_here = self.loop.is_here and not request.statement.reads
            if writes_here:
                self._process.pause(seconds)
            if not self.loop.is_here or (writes_here and isinstance(request, Encoded)):
                # Its ids were made before this delay, and its timeout starts after it.
                self._process.soon(seconds, partial(super().send, request, done), self._life)
                return
        super().send(request, done)

    def _checked_callback(self, request: StatementRequest | Encoded, done: Done) -> Done:
        """Returns a callback that passes on the first answer, and records further ones as violations."""
        answers: list[object] = []

        def tell(rows: Rows | None, error: StoreUnavailable | None) -> None:
            answers.append((rows, error))
            if len(answers) == 1:
                done(rows, error)
            else:
                self._cluster_of_world.wrong.append(f"answers: {request.statement.cql} was answered with {answers}")

        return tell

    def _require_session(self) -> None:
        """The simulated cluster needs no session."""

    def ready(self, timeout: float) -> bool:
        return True

    def problem(self) -> str | None:
        return "the store is closed" if self._closed.is_set() else None

    def replication(self) -> Mapping[str, int]:
        return {"dc1": NODES}

    def prepare(self, statements: Any) -> None:  # noqa: ANN401 - nothing is done with them
        pass

    def close(self) -> None:
        self._closed.set()
        self.loop.close()


def _driver_cluster(cluster: Cluster) -> Any:  # noqa: ANN401 - what the client uses of the driver's cluster
    hosts = [SimulatedHost(cluster, node) for node in cluster.nodes]
    metadata = SimpleNamespace(
        all_hosts=lambda: hosts,
        token_map=SimpleNamespace(
            tokens_to_hosts_by_ks={TARGET.keyspace: object()},
            token_class=SimpleNamespace(from_key=bytes),
            get_replicas=lambda *_: hosts,
        ),
    )
    return SimpleNamespace(metadata=metadata, auth_provider=PlainTextAuthProvider(USER, PASSWORD), ssl_context=None)


def open_store(
    cluster: Cluster, process: Process, machine: Machine, kind: type[CassandraStore] = CassandraStore
) -> CassandraStore:
    """Opens a store on the cluster, with the machine's clocks. It records no arrivals, as there are no watchers."""

    def driver(
        _target: DataCentreTarget, options: CassandraOptions, *, verify: object, deadline: Deadline
    ) -> SimulatedDriver:
        return SimulatedDriver(cluster, process, machine, deadline, options.timeout)

    store = kind(
        "cassandra://127.0.0.1/queuey",
        cluster.pace.options(),
        SteadyClock(machine.boottime, machine.wall),
        driver=driver,
    )
    # There are no watchers here, so recording for them only costs time.
    arrivals = store._arrivals
    arrivals.notify_appended = lambda *_: None  # type: ignore[method-assign]
    arrivals.notify_rewritten = lambda *_: None  # type: ignore[method-assign]
    return store
