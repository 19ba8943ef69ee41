"""Claims on the Cassandra store itself: the store that :mod:`tests.sim.storm` needs, on a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from queuey.model import ids
from queuey.model.deadletters import HEADER_PREFIX
from queuey.model.errors import QueueyError
from queuey.model.ids import Position
from queuey.model.messages import Location, Meta, NewMessage, Queue
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.catalogue.queue_cache import CachedQueue
from queuey.storage.cassandra.tables import applications, queues
from queuey.storage.cassandra.tables.messages import CassandraMessages
from queuey.storage.cassandra.time.bucketing import class_of
from tests.sim.availability import Stored
from tests.sim.cassandra import cql
from tests.sim.cassandra.cluster import Cluster, Machine, NetworkFaults, open_store
from tests.sim.cassandra.loops import ThreadedCore
from tests.sim.replicas import Faults, Log, ModelStore, Replicas
from tests.sim.web import Setup
from tests.sim.world import Process, SimulatedCore, World, begin

TTL = 3600


class ClusterReplicas:
    """The stored state, shared by all processes.

    Args:
        world: The source of time and chance.
        faults: The faults. They may be replaced at any time.
    """

    def __init__(self, world: World, faults: Faults) -> None:
        self.cluster = Cluster(world, NetworkFaults())
        self.faults = faults
        self.letters: dict[Position, float] = {}
        self.letter_places: dict[Position, set[Location]] = {}
        self.stored = Stored()
        self.logs: dict[tuple[int, int], Log] = {}
        self._posting: dict[Process, tuple[CassandraStore, SimulatedCore]] = {}
        """The store of each process, and the core that posts to it from outside its loop."""

    @property
    def faults(self) -> Faults:
        """The faults of the history. Assigning them gives the cluster those that it can have."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        lost = max(faults.lost, faults.failing / 10, faults.unread / 10)
        self.cluster.network_faults = NetworkFaults(faults.slow, lost, faults.stuck, faults.late)

    @property
    def wrong(self) -> Sequence[str]:
        """Forbidden actions of drivers."""
        return self.cluster.wrong

    @property
    def messages(self) -> dict[int, dict[Position, str]]:
        bodies: dict[int, dict[Position, str]] = {}
        for (table, key), partition in self.cluster.everything().items():
            if table.startswith("messages_") and key[0] == self.queue.qid:
                for row in partition.iter_rows(cql.TABLES[table], self.cluster.world.now):
                    bodies.setdefault(key[1], {})[ids.parse_position(row["id"].hex)] = row["body"]
        return bodies

    def hold(self, queue: Queue) -> None:
        """Inserts a queue that exists from the beginning."""
        self.queue = queue
        row = CachedQueue(queue=queue, home_class=class_of(TTL), longest_ttl=TTL, read_at=0.0)
        self._write_everywhere(applications._APPLICATIONS.change.cql, (0.0, 1, 0, queue.application, None))
        self._write_everywhere(queues._INSERT_QUEUE.cql, queues._values_of(row))

    def _write_everywhere(self, text: str, values: Sequence[Any]) -> None:
        """Applies a statement to all nodes, and to what conditions see."""
        for place, change in cql.command(text).changes(values, 1, self.cluster.world.now):
            self.cluster.committed[place].absorb(change)
            for node in self.cluster.nodes:
                node.data[place].absorb(change)

    def open(self, process: Process) -> CassandraStore:
        store = open_store(self.cluster, process, Machine(process))
        own: Any = store.messages
        store.messages = messages = WatchedMessages(store._parts, own._reader, own._counts, store._arrivals)
        messages.replicas = self
        self._posting[process] = store, SimulatedCore(process, 0.0)
        return store

    def write(
        self,
        process: Process,
        partition: int,
        body: str,
        done: Callable[[Position | None], None],
        delay: float = 0.0,
        meta: Meta | None = None,
    ) -> None:
        """Posts a message. Calls ``done`` with its position, or with None if it was not acknowledged."""
        store, core = self._posting[process]
        item = NewMessage(body, partition, TTL, meta, delay)

        def posted(positions: list[Position] | None, error: Exception | None) -> None:
            assert error is None or isinstance(error, QueueyError)
            done(positions[0] if positions else None)

        begin(core, store.messages.append(self.queue, [item]), posted)


class ClusterStore:
    """Opens the store of one life of a process.

    Args:
        replicas: The stored state.
        process: The process.
    """

    def __init__(self, replicas: ClusterReplicas, process: Process) -> None:
        self.store = replicas.open(process)


class WatchedMessages(CassandraMessages):
    """Records the dead letters that are written."""

    replicas: ClusterReplicas

    async def put(self, queue: Queue, locations: Sequence[Location], item: NewMessage) -> None:
        assert item.meta is not None
        was = ids.parse_position(dict(item.meta.headers)[f"{HEADER_PREFIX}id"])
        self.replicas.letters.setdefault(was, self.replicas.cluster.world.now)
        self.replicas.letter_places.setdefault(was, set()).update(locations)
        await super().put(queue, locations, item)


ON_CLUSTER = Setup(
    replicas=cast("Callable[[World, Faults], Replicas]", ClusterReplicas),
    store=cast("Callable[[Replicas, Process], ModelStore]", ClusterStore),
    core=ThreadedCore,
    kinds=("plain",),
    apart=0.4,
)
"""Storms over the Cassandra store."""
