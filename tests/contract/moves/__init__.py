"""Tests of moves between queues, on every store."""
