"""Cassandra nodes for a measure: fresh, on a real disk, and warm.

A JVM that has just started is several times slower than one that has run for a while, so whoever uses these nodes must
let both sides run for some seconds first.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from bench.baselines.cassandra_table import Address, connect
from bench.harness import Bench, Node, Skip, Void
from bench.started.processes import TICKS
from deploy.local import CannotFetch, CassandraCluster, CassandraOptions, NoJava, ServersError, start_cassandra

Sync = Literal["periodic", "batch"]
HEAP = {1: "2g", 3: "1g"}
"""Of each node, by how many there are."""
START_SECONDS = 300.0


class Nodes:
    """One or three running nodes."""

    def __init__(self, cluster: CassandraCluster | Node) -> None:
        self.servers = cluster.nodes if isinstance(cluster, CassandraCluster) else []
        self.address = Address(tuple(cluster.contact_points), cluster.port)
        self._keyspaces: set[str] = set()

    def url(self, keyspace: str) -> str:
        """Returns a keyspace as the service's ``store`` setting names it."""
        self._keyspaces.add(keyspace)
        return f"cassandra://{self.address.text}/{keyspace}"

    def cpu_seconds(self) -> float:
        """Returns user and system time spent so far by all nodes that were started here."""
        total = 0
        for node in self.servers:
            fields = Path(f"/proc/{node.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS

    def drop_keyspaces(self) -> None:
        """Removes what a measure has made on nodes that it shares with others."""
        session = connect(self.address, None)
        for keyspace in self._keyspaces:
            session.execute(f"DROP KEYSPACE IF EXISTS {keyspace}", timeout=START_SECONDS)
        session.cluster.shutdown()

    def environment(self) -> dict[str, str]:
        """Returns what tells a baseline where the nodes are."""
        return {**os.environ, "BENCH_CASSANDRA": self.address.text}


@contextlib.contextmanager
def cassandra(bench: Bench, count: int = 1, sync: Sync = "periodic") -> Iterator[Nodes]:
    """Runs nodes whose data lies beside that of the other sides, and ends them with the block; or the one to share.

    Args:
        bench: Says where the data goes.
        count: One or three.
        sync: ``periodic`` acknowledges a write before its fsync, as Cassandra does by default, ``batch`` after it.

    Raises:
        Skip: There is no Java here, or no way to Cassandra's jars.
        Void: A node did not start.
    """
    if bench.node is not None and (count, sync) == (1, "periodic"):
        shared = Nodes(bench.node)
        try:
            yield shared
        finally:
            shared.drop_keyspaces()
        return
    options = CassandraOptions(heap=HEAP[count], commitlog_sync=sync, quick_start=False)
    try:
        cluster = start_cassandra(count, options, keep=bench.fresh("cassandra"), seconds=START_SECONDS)
    except (CannotFetch, NoJava) as error:
        raise Skip(f"needs Cassandra: {error}") from error
    except ServersError as error:
        raise Void(str(error)) from error
    with cluster:
        bench.say(f"{count} node(s) up in {cluster.start_seconds:.0f} s")
        yield Nodes(cluster)
