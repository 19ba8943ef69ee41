"""Processes that a measure starts: servers, the service, and workers."""
