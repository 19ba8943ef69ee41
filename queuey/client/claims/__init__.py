"""Queues as job queues: jobs that are claimed, kept while somebody works on them, and acknowledged."""
