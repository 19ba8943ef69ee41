"""Who owns a partition, and what is recorded of it."""
