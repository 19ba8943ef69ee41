"""A client for Cassandra's native protocol, version 4, on an event loop: all requests of the store go over it.

It has connections of its own. Topology, schema, authentication and schema changes stay with cassandra-driver.
"""

from queuey.storage.cassandra.protocol.client import CqlClient

__all__ = ["CqlClient"]
