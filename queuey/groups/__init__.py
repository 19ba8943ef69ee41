"""Consumer groups: their offsets in queues, and groups whose partitions the service assigns to members."""
