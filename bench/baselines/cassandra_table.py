"""The baselines' keyspace: one table like the service's, used through cassandra-driver.

The driver is used as its documentation advises, plus TCP_NODELAY, which it does not set. Without that, batches of 100
messages wait for delayed acknowledgements of TCP and are about fifty times slower.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import RoundRobinPolicy, TokenAwarePolicy
from cassandra.query import tuple_factory

KEYSPACE = "baseline"
TTL = 259_200
QUEUE = 1
PARTITION = 1

CREATE_KEYSPACE = f"""CREATE KEYSPACE IF NOT EXISTS {KEYSPACE}
WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': %d}}"""
CREATE_TABLE = f"""CREATE TABLE IF NOT EXISTS {KEYSPACE}.messages (
    queue bigint, partition int, id timeuuid, body text, PRIMARY KEY ((queue, partition), id)
) WITH compaction = {{'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'HOURS',
                      'compaction_window_size': 3}}"""
INSERT = f"INSERT INTO messages (queue, partition, id, body) VALUES (?, ?, ?, ?) USING TTL {TTL}"
SELECT = "SELECT id, body FROM messages WHERE queue = ? AND partition = ? AND id >= ? LIMIT ?"


class Address(NamedTuple):
    hosts: tuple[str, ...]
    port: int

    @classmethod
    def from_environment(cls) -> Address:
        """Parses ``BENCH_CASSANDRA``: ``host,host:port``."""
        hosts, _, port = os.environ["BENCH_CASSANDRA"].rpartition(":")
        return cls(tuple(hosts.split(",")), int(port))

    @property
    def text(self) -> str:
        return f"{','.join(self.hosts)}:{self.port}"


def connect(address: Address, keyspace: str | None = KEYSPACE) -> Session:
    """Opens a session that reads and writes at QUORUM and returns rows as tuples, the cheapest format."""
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(RoundRobinPolicy()),
        consistency_level=ConsistencyLevel.QUORUM,
        row_factory=tuple_factory,
        request_timeout=30,
    )
    cluster = Cluster(
        list(address.hosts),
        port=address.port,
        protocol_version=5,
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        compression=False,
    )
    return cluster.connect(keyspace)


def prepare(address: Address, copies: int = 1) -> None:
    """Creates the keyspace and the table unless they exist, and empties the table."""
    session = connect(address, None)
    session.execute(CREATE_KEYSPACE % copies)
    session.execute(CREATE_TABLE)
    session.execute(f"TRUNCATE {KEYSPACE}.messages")
    session.cluster.shutdown()
