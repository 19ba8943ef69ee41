"""Writes: the writer's thread, its transactions, and the sweep of expired messages."""
