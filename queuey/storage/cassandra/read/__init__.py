"""Reads messages: slices of partitions, and whole ranges as Arrow columns."""
