"""Claims while web processes and nodes are killed and paused: many clients, and what they saw."""
