"""Consumer groups whose partitions the service assigns, in simulated time."""
