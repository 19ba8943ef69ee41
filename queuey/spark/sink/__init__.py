"""Writes to queues: each row once, however often Spark tries."""
