"""Reading messages: slices of a partition, whole ranges, and how much there is."""
