"""The baselines' keyspace, used through cassandra-driver as its documentation advises, plus TCP_NODELAY."""

from __future__ import annotations

import socket
from typing import NamedTuple

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session

KEYSPACE = "baseline"
CREATE_KEYSPACE = f"""CREATE KEYSPACE IF NOT EXISTS {KEYSPACE}
WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"""


class Address(NamedTuple):
    hosts: tuple[str, ...]
    port: int

    @property
    def text(self) -> str:
        return f"{','.join(self.hosts)}:{self.port}"


def connect(address: Address) -> Session:
    """Opens a session that reads and writes at QUORUM."""
    profile = ExecutionProfile(consistency_level=ConsistencyLevel.QUORUM, request_timeout=30)
    cluster = Cluster(
        list(address.hosts),
        port=address.port,
        protocol_version=5,
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    return cluster.connect()
