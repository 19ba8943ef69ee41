"""Members of consumer groups while web processes and nodes are killed and paused, and what they saw."""
