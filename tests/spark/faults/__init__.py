"""Processes that fail or are killed while the pipeline runs."""
