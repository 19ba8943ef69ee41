"""Claims while web processes and nodes are killed and paused: many clients, and the records of what they saw."""
