"""Queues as job queues: jobs that are claimed, renewed during the work, and acknowledged."""
