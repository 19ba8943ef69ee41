"""Curator's recipes: the queues, and elections."""
