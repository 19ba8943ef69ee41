"""Baselines of the comparisons: small, careful programs that do the same work without the service."""
