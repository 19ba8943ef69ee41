"""Rows of queues, in Cassandra and in memory; the index of their names; and what is to be deleted."""
