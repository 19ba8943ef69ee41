"""Tests of decisions of the Cassandra store, without a server."""
