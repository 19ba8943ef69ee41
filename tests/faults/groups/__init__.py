"""Members of consumer groups while web processes and nodes are killed and paused, and the records of what they saw."""
