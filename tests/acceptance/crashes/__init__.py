"""Services and writers that are killed."""
