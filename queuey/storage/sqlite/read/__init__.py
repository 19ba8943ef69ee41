"""Reads of messages: slices, whole ranges, statistics."""
