"""The nodes, how many copies they keep, and how connections to them are secured."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

from queuey.storage.cassandra.options import CassandraOptions


class Host(NamedTuple):
    """A node as the driver knows it."""

    address: str
    dc: str
    up: bool


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
