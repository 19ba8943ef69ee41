"""Queuey: a partitioned message store behind a REST API."""

__version__ = "0.2.0.dev0"
