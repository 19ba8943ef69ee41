"""Moves all messages of a queue to another one."""
