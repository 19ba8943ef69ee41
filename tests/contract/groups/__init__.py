"""Consumer groups whose partitions the service divides: their state, sessions and owners."""
