"""A client for Cassandra's native protocol, version 4, on an event loop: for frequent requests alone.

It has connections of its own. Topology, the schema, authentication and everything rare stay with cassandra-driver.
"""

from queuey.storage.cassandra.driver.cql.client import CqlClient

__all__ = ["CqlClient"]
