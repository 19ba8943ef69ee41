"""Histories of queues whose expired messages become dead letters."""
