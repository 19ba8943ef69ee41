"""Claims in a simulated world: many processes, clients and faults, from a seed; what decides is the real code."""
