"""Decisions of Qdo, without any I/O."""
