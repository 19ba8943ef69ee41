"""The worker: calls a handler with the messages of partitions or claims, and records progress."""
