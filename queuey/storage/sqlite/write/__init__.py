"""Writes of messages: the writer's thread, its transactions, the removal of expired messages."""
