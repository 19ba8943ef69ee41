"""Guarantees under faults: real processes and nodes are killed and paused, and a checker judges the records."""
