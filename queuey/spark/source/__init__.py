"""Reads of queues, in batches and streams."""
