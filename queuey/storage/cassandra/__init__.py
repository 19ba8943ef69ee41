"""The Cassandra store."""
