"""A driver of the store whose session of cassandra-driver has scripted answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

from queuey.storage.cassandra.cluster import Driver, Encoded, Statement, StatementRequest, connection
from queuey.storage.cassandra.cluster.options import CassandraOptions, DataCentreTarget
from queuey.storage.cassandra.cluster.topology import RETRY_INTERVAL, new_cluster, resolve_addresses
from tests.replacing import replace_in
from tests.storage.cassandra.protocol.scripted_node import CQL
from tests.waiting import PATIENCE_SECONDS

STATEMENT = Statement(CQL)
CHANGE = Statement("UPDATE t SET a = ? IF a = ?", idempotent=False)
ENCODED = Encoded(STATEMENT, 1, [b"\0\0\0\1a"], b"key", "QUORUM", lambda body: [(body[-1:],)])
CONDITIONAL = StatementRequest(CHANGE, (b"a", b"b"), "QUORUM", "SERIAL", further=[(CHANGE, (b"c", b"d"))])


class ScriptedSession:
    """A session that changes the schema, in whatever thread, and records it in ``asked_in``."""

    attempted_hosts: Sequence[str] = ("one",)

    def __init__(self) -> None:
        self.asked_in: list[int] = []

    def set_keyspace(self, _keyspace: str) -> None:
        """Does nothing: there is one."""

    def execute_async(self, *_request: object, **_how: object) -> ScriptedSession:
        self.asked_in.append(threading.get_ident())
        return self

    def result(self) -> list[str]:
        return []


def cluster_of(*dcs: str) -> Any:  # noqa: ANN401 - what the driver uses of a cluster
    """Returns a cluster of one node in each of these data centres."""
    hosts = [SimpleNamespace(address=f"10.0.0.{number}", datacenter=dc, is_up=True) for number, dc in enumerate(dcs, 1)]
    metadata = SimpleNamespace(all_hosts=lambda: hosts, get_replicas=lambda *_: hosts, token_map=None)
    return SimpleNamespace(metadata=metadata)


@contextmanager
def scripted_driver(
    session: ScriptedSession,
    cluster: Any = None,  # noqa: ANN401 - a cluster
    *,
    ready: bool = True,
    **arguments: Any,  # noqa: ANN401 - as the driver takes them
) -> Iterator[Driver]:
    """Opens a driver whose cluster connects to the session; it looks after the cluster every 10 ms."""
    cluster = cluster or cluster_of("dc")
    cluster.metadata.keyspaces = {"k": None}
    cluster.connect, cluster.register_listener = lambda: session, lambda _: None
    cluster.shutdown = lambda: None
    options = CassandraOptions(timeout=60.0)
    with (
        replace_in(connection, new_cluster, lambda *_: cluster),
        replace_in(connection, resolve_addresses, lambda *_: frozenset()),
        replace_in(connection, RETRY_INTERVAL, 0.01),
        closing(Driver(DataCentreTarget(("10.0.0.1",), "k"), options, **arguments)) as driver,
    ):
        if ready:
            assert driver.ready(PATIENCE_SECONDS), driver.problem()
        yield driver
