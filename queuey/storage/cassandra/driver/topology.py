"""The nodes, how many copies they keep, and how connections to them are secured."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

from cassandra.policies import HostStateListener

from queuey.storage.cassandra.options import CassandraOptions
from queuey.storage.troubles import Trouble

log = logging.getLogger(__name__)


class Host(NamedTuple):
    """A node as the driver knows it."""

    address: str
    dc: str
    up: bool


class Watchman(HostStateListener):  # type: ignore[misc] # the driver has no types
    """Tells of nodes that are lost and of those that are back, each once."""

    def __init__(self) -> None:
        self._nodes: dict[str, Trouble] = {}

    def on_down(self, host: Any) -> None:  # noqa: ANN401 - the driver's
        """Is called by the driver when it has lost a node."""
        address = str(host.address)
        node = self._nodes.setdefault(address, Trouble(log, f"Cassandra node {address}", quiet=0.0))
        node.met("down", f"lost (data centre {host.datacenter}); it is tried again until it answers")

    def on_up(self, host: Any) -> None:  # noqa: ANN401 - the driver's
        """Is called by the driver when a node is back."""
        node = self._nodes.get(str(host.address))
        if node is not None:
            node.passed()

    def on_add(self, host: Any) -> None:  # noqa: ANN401 - the driver's
        """Is called by the driver for a node that it has not known before."""

    def on_remove(self, host: Any) -> None:  # noqa: ANN401 - the driver's
        """Is called by the driver when a node has left the cluster: it is not lost any more."""
        self._nodes.pop(str(host.address), None)


def copies_of(strategy: Any) -> Mapping[str, int]:  # noqa: ANN401 - the driver's
    """Returns what the driver's strategy of a keyspace means: copies by data centre."""
    factors = getattr(strategy, "dc_replication_factors_info", None)
    if factors is None:
        return {"": int(strategy.replication_factor)}
    return {str(dc): int(info.all_replicas) for dc, info in factors.items()}


def tls(options: CassandraOptions) -> ssl.SSLContext | None:
    """Returns how connections are encrypted, None if they are not."""
    if not (options.tls or options.tls_ca or options.tls_cert):
        return None
    context = ssl.create_default_context(cafile=None if options.tls_ca is None else str(options.tls_ca))
    context.check_hostname = options.tls_hostname  # The name is the node's address: the driver connects by it.
    if options.tls_cert is not None and options.tls_key is not None:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    return context
