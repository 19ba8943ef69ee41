"""The nodes and their copies, and how the driver connects to them."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import (
    ConstantReconnectionPolicy,
    DCAwareRoundRobinPolicy,
    FallthroughRetryPolicy,
    HostStateListener,
    RoundRobinPolicy,
)

from queuey.storage.cassandra.cluster.options import CassandraOptions, DataCentreTarget
from queuey.storage.cassandra.protocol.encoding import PROTOCOL
from queuey.storage.lasting_failures import Trouble

log = logging.getLogger(__name__)

RETRY_INTERVAL = 1.0
"""Interval between attempts to connect, in seconds."""
CONNECT_TIMEOUT = 3.0


class Host(NamedTuple):
    address: str
    dc: str
    up: bool


class HostLogger(HostStateListener):  # type: ignore[misc] # the driver has no types
    """Logs when a node is lost and when it is back, once each."""

    def __init__(self) -> None:
        self._nodes: dict[str, Trouble] = {}

    def on_down(self, host: Any) -> None:  # noqa: ANN401 - the driver's
        address = str(host.address)
        node = self._nodes.setdefault(address, Trouble(log, f"Cassandra node {address}", quiet=0.0))
        node.record_failure("down", f"lost (data centre {host.datacenter}); retrying until it answers")

    def on_up(self, host: Any) -> None:  # noqa: ANN401 - the driver's
        node = self._nodes.get(str(host.address))
        if node is not None:
            node.record_success()

    def on_add(self, host: Any) -> None:  # noqa: ANN401 - the driver's
        pass

    def on_remove(self, host: Any) -> None:  # noqa: ANN401 - the driver's
        self._nodes.pop(str(host.address), None)


def resolve_addresses(target: DataCentreTarget) -> frozenset[str]:
    addresses: set[str] = set()
    for host in target.hosts:
        with suppress(OSError):
            addresses |= {str(info[4][0]) for info in socket.getaddrinfo(host, target.port, type=socket.SOCK_STREAM)}
    return frozenset(addresses)


def count_copies(strategy: Any) -> Mapping[str, int]:  # noqa: ANN401 - the driver's
    """Returns the number of copies by data centre; with the key ``""`` if the strategy knows no data centres."""
    factors = getattr(strategy, "dc_replication_factors_info", None)
    if factors is None:
        return {"": int(strategy.replication_factor)}
    return {str(dc): int(info.all_replicas) for dc, info in factors.items()}


def make_tls_context(options: CassandraOptions) -> ssl.SSLContext | None:
    if not (options.tls or options.tls_ca or options.tls_cert):
        return None
    context = ssl.create_default_context(cafile=None if options.tls_ca is None else str(options.tls_ca))
    context.check_hostname = options.tls_hostname  # Checks the node's address, by which the driver connects.
    if options.tls_cert is not None and options.tls_key is not None:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    return context


def new_cluster(target: DataCentreTarget, options: CassandraOptions) -> Cluster:
    auth = None
    if options.user is not None:
        auth = PlainTextAuthProvider(options.user, options.password or "")
    routing = RoundRobinPolicy() if options.local_dc is None else DCAwareRoundRobinPolicy(options.local_dc)
    # The driver sends schema changes alone. By default it would repeat one whose connection broke.
    profile = ExecutionProfile(load_balancing_policy=routing, retry_policy=FallthroughRetryPolicy())
    return Cluster(
        target.hosts,
        port=target.port,
        protocol_version=PROTOCOL,
        auth_provider=auth,
        ssl_context=make_tls_context(options),
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        connect_timeout=CONNECT_TIMEOUT,
        control_connection_timeout=CONNECT_TIMEOUT,
        reconnection_policy=ConstantReconnectionPolicy(RETRY_INTERVAL, max_attempts=None),
        idle_heartbeat_interval=3,
        idle_heartbeat_timeout=3,
        compression=False,
        application_name="queuey",
    )
