"""Consumer groups: their offsets, their members, who gets which partitions, and in which data centre."""
