"""The consumer: the partitions that are ours, read and committed."""
