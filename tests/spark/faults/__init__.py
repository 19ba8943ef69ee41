"""Processes that fail and are killed while the pipeline runs."""
