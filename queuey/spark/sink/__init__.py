"""Writes to queues: each row exactly once, even if Spark repeats a task."""
