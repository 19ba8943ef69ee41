"""The nodes, how many copies they keep, and how connections to them are made and secured."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster
from cassandra.policies import ConstantReconnectionPolicy, HostStateListener

from queuey.storage.cassandra.driver import policies
from queuey.storage.cassandra.driver.buffered_connection import BufferedConnection
from queuey.storage.cassandra.driver.cql.protocol import PROTOCOL
from queuey.storage.cassandra.options import CassandraOptions, DataCentreTarget
from queuey.storage.troubles import Trouble

log = logging.getLogger(__name__)

RETRY_EVERY = 1.0
"""Interval between attempts to connect, in seconds."""
CONNECT_TIMEOUT = 3.0


class Host(NamedTuple):
    address: str
    dc: str
    up: bool


class Watchman(HostStateListener):  # type: ignore[misc] # the driver has no types
    """Reports nodes that are lost and nodes that are back, each once."""

    def __init__(self) -> None:
        self._nodes: dict[str, Trouble] = {}

    def on_down(self, host: Any) -> None:  # noqa: ANN401 - the driver's
        address = str(host.address)
        node = self._nodes.setdefault(address, Trouble(log, f"Cassandra node {address}", quiet=0.0))
        node.met("down", f"lost (data centre {host.datacenter}); it is tried again until it answers")

    def on_up(self, host: Any) -> None:  # noqa: ANN401 - the driver's
        node = self._nodes.get(str(host.address))
        if node is not None:
            node.passed()

    def on_add(self, host: Any) -> None:  # noqa: ANN401 - the driver's
        """Called by the driver for a node that it has not known before."""

    def on_remove(self, host: Any) -> None:  # noqa: ANN401 - the driver's
        self._nodes.pop(str(host.address), None)


def addresses_of(target: DataCentreTarget) -> frozenset[str]:
    """Returns the addresses that the hosts' names stand for now; empty: none is known."""
    addresses: set[str] = set()
    for host in target.hosts:
        with suppress(OSError):
            addresses |= {str(info[4][0]) for info in socket.getaddrinfo(host, target.port, type=socket.SOCK_STREAM)}
    return frozenset(addresses)


def copies_of(strategy: Any) -> Mapping[str, int]:  # noqa: ANN401 - the driver's
    """Returns what the driver's strategy of a keyspace means: copies by data centre."""
    factors = getattr(strategy, "dc_replication_factors_info", None)
    if factors is None:
        return {"": int(strategy.replication_factor)}
    return {str(dc): int(info.all_replicas) for dc, info in factors.items()}


def tls(options: CassandraOptions) -> ssl.SSLContext | None:
    if not (options.tls or options.tls_ca or options.tls_cert):
        return None
    context = ssl.create_default_context(cafile=None if options.tls_ca is None else str(options.tls_ca))
    context.check_hostname = options.tls_hostname  # The name is the node's address: the driver connects by it.
    if options.tls_cert is not None and options.tls_key is not None:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    return context


def new_cluster(target: DataCentreTarget, options: CassandraOptions) -> Cluster:
    auth = None
    if options.user is not None:
        auth = PlainTextAuthProvider(options.user, options.password or "")
    return Cluster(
        target.hosts,
        port=target.port,
        protocol_version=PROTOCOL,
        connection_class=BufferedConnection,
        auth_provider=auth,
        ssl_context=tls(options),
        # Without it a batch of 100 messages waits for a delayed acknowledgement of TCP: 48 times slower.
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        execution_profiles={EXEC_PROFILE_DEFAULT: policies.profile(options)},
        connect_timeout=CONNECT_TIMEOUT,
        control_connection_timeout=CONNECT_TIMEOUT,
        reconnection_policy=ConstantReconnectionPolicy(RETRY_EVERY, max_attempts=None),
        idle_heartbeat_interval=3,
        idle_heartbeat_timeout=3,
        compression=False,
        application_name="queuey",
    )
