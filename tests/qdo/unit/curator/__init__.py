"""Units of the queues of Apache Curator."""
