"""A worker: a function that is called with every message of a group's partitions, and everything around it."""
