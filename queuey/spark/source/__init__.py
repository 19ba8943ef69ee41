"""Reads of queues: batches and streams."""
