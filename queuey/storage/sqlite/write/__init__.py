"""Writes of messages: the writer's thread, its transactions, the removal of what has expired."""
