"""Queue rows, in Cassandra and in memory; the index of queue names; and pending deletes."""
