"""Consumer groups whose partitions the service divides, in simulated time."""
