"""The clock, its comparison with the nodes', the times that a process goes by, and the ids that it makes."""
