"""The nodes and their copies, and the driver's rules for connecting, routing and retrying.

The driver's default retry policy resends any statement when a connection breaks, even a lightweight transaction. This
one never resends a statement that is not idempotent, and resends others once, to another node.
"""

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
    ConstantSpeculativeExecutionPolicy,
    DCAwareRoundRobinPolicy,
    HostStateListener,
    LoadBalancingPolicy,
    NoSpeculativeExecutionPolicy,
    RetryPolicy,
    RoundRobinPolicy,
    TokenAwarePolicy,
)
from cassandra.query import tuple_factory

from queuey.storage.cassandra.cluster.options import CassandraOptions, DataCentreTarget
from queuey.storage.cassandra.protocol.encoding import PROTOCOL
from queuey.storage.cassandra.protocol.fast_request import MAX_WAITING_BYTES
from queuey.storage.lasting_failures import Trouble

log = logging.getLogger(__name__)

RETRY_INTERVAL = 1.0
"""Interval between attempts to connect, in seconds."""
CONNECT_TIMEOUT = 3.0


class BufferedConnection(Cluster.connection_class):  # type: ignore[misc] # the driver ships no types
    """A connection that sends each request in one piece and receives in larger ones."""

    in_buffer_size = 1 << 16
    out_buffer_size = 1 << 22
    _socket_accepts = True

    @property
    def _socket_writable(self) -> bool:
        """Lets requests wait, up to a limit.

        The driver refuses all requests while the socket accepts no bytes, which happens briefly after each long body.
        """
        return self._socket_accepts or self._count_waiting_bytes() < MAX_WAITING_BYTES

    @_socket_writable.setter
    def _socket_writable(self, value: bool) -> None:
        self._socket_accepts = value

    def handle_write(self, *event: Any) -> Any:  # noqa: ANN401 - the event loop's
        # Marks the socket writable once nothing waits: the driver does so only after it has refused requests.
        sent = super().handle_write(*event)
        if not self._socket_accepts and not self._count_waiting_bytes():
            self._socket_accepts = True
        return sent

    def _count_waiting_bytes(self) -> int:
        with self._deque_lock:
            return sum(map(len, self.deque))


Decision = tuple[int, None]


class OnlyIdempotent(RetryPolicy):  # type: ignore[misc] # the driver ships no types
    """Resends an idempotent request once, to another node, when its coordinator broke off or timed out."""

    def on_read_timeout(self, query: Any, *_args: Any, retry_num: int, **_named: Any) -> Decision:  # noqa: ANN401
        # Also called for a conditional write whose read timed out. That is not idempotent, so it is not sent again.
        return _retry_once(query, retry_num)

    def on_write_timeout(self, *_args: Any, **_named: Any) -> Decision:  # noqa: ANN401
        # The coordinator has waited as long as this process would.
        return self.RETHROW, None

    def on_unavailable(self, *_args: Any, **_named: Any) -> Decision:  # noqa: ANN401
        # Another coordinator would find the same replicas.
        return self.RETHROW, None

    def on_request_error(self, query: Any, consistency: int, error: Any, retry_num: int) -> Decision:  # noqa: ANN401, ARG002
        # The connection broke, or the node is overloaded or starting.
        return _retry_once(query, retry_num)


def _retry_once(query: Any, retry_num: int) -> Decision:  # noqa: ANN401 - the driver's statement
    if retry_num == 0 and query.is_idempotent:
        return RetryPolicy.RETRY_NEXT_HOST, None
    return RetryPolicy.RETHROW, None


def _make_routing_policy(options: CassandraOptions) -> LoadBalancingPolicy:
    near = RoundRobinPolicy() if options.local_dc is None else DCAwareRoundRobinPolicy(options.local_dc)
    return TokenAwarePolicy(near)


def _make_profile(options: CassandraOptions) -> ExecutionProfile:
    speculative = (
        ConstantSpeculativeExecutionPolicy(options.speculative, 1)
        if options.speculative > 0
        else NoSpeculativeExecutionPolicy()
    )
    return ExecutionProfile(
        load_balancing_policy=_make_routing_policy(options),
        retry_policy=OnlyIdempotent(),
        row_factory=tuple_factory,
        request_timeout=options.timeout,
        speculative_execution_policy=speculative,
    )


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
    """Resolves the host names now; those that do not resolve are left out."""
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
    return Cluster(
        target.hosts,
        port=target.port,
        protocol_version=PROTOCOL,
        connection_class=BufferedConnection,
        auth_provider=auth,
        ssl_context=make_tls_context(options),
        # Without it a batch of 100 messages waits for a delayed TCP acknowledgement, which is 48 times slower.
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        execution_profiles={EXEC_PROFILE_DEFAULT: _make_profile(options)},
        connect_timeout=CONNECT_TIMEOUT,
        control_connection_timeout=CONNECT_TIMEOUT,
        reconnection_policy=ConstantReconnectionPolicy(RETRY_INTERVAL, max_attempts=None),
        idle_heartbeat_interval=3,
        idle_heartbeat_timeout=3,
        compression=False,
        application_name="queuey",
    )
