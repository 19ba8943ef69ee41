"""New Cassandra nodes for a measure, on a real disk.

A JVM that has just started is several times slower than a warm one. So measures must run both sides for some seconds
before they take samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bench.baselines.cassandra_table import Address, connect
from bench.harness import Bench, Node, Skip, Void
from bench.started.processes import TICKS_PER_SECOND
from deploy.local import CannotFetch, CassandraCluster, CassandraOptions, NoJava, ServersError, start_cassandra

HEAP = {1: "2g", 3: "1g"}
"""Heap of each node, by the number of nodes."""
START_SECONDS = 300.0


class Nodes:
    """The nodes of a measure; ``servers`` has only nodes that were started for it, not the shared one."""

    def __init__(self, cluster: CassandraCluster | Node) -> None:
        self.servers = cluster.nodes if isinstance(cluster, CassandraCluster) else []
        self.address = Address(tuple(cluster.contact_points), cluster.port)
        self._keyspaces: set[str] = set()

    def store_url(self, keyspace: str) -> str:
        """Returns the ``store`` setting for a keyspace, which :meth:`drop_keyspaces` will drop."""
        self._keyspaces.add(keyspace)
        return f"cassandra://{self.address.text}/{keyspace}"

    def cpu_seconds(self) -> float:
        total = 0
        for node in self.servers:
            fields = Path(f"/proc/{node.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS_PER_SECOND

    def drop_keyspaces(self) -> None:
        session = connect(self.address)
        for keyspace in self._keyspaces:
            session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}", timeout=START_SECONDS)
        session.cluster.shutdown()


@contextlib.contextmanager
def cassandra(bench: Bench, count: int = 1) -> Iterator[Nodes]:
    """Runs nodes with their data next to that of the other sides; they are stopped after the block.

    A quick run of one node uses the shared node, whose new keyspaces are dropped afterwards.


    Args:
        bench: Environment of the measure.
        count: One or three nodes.

    Raises:
        Skip: This machine has no Java, or Cassandra's jars could not be fetched.
        Void: A node did not start.
    """
    if bench.node is not None and count == 1:
        shared = Nodes(bench.node)
        try:
            yield shared
        finally:
            shared.drop_keyspaces()
        return
    options = CassandraOptions(heap=HEAP[count], quick_start=False)
    try:
        cluster = start_cassandra(count, options, keep=bench.new_directory("cassandra"), seconds=START_SECONDS)
    except (CannotFetch, NoJava) as error:
        raise Skip(f"needs Cassandra: {error}") from error
    except ServersError as error:
        raise Void(str(error)) from error
    with cluster:
        bench.print_progress(f"{count} node(s) up in {cluster.start_seconds:.0f} s")
        yield Nodes(cluster)
