"""Decisions of the Cassandra store, without a server."""
