"""Queuey: a partitioned message store behind a REST API."""

__version__ = "0.1.0"
