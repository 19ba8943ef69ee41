"""A client for Cassandra's native protocol, version 4, on an event loop, for frequent requests only.

It has connections of its own. Topology, schema, authentication and all rare requests stay with cassandra-driver.
"""

from queuey.storage.cassandra.protocol.client import CqlClient

__all__ = ["CqlClient"]
