"""Statistics and lag."""
