"""The request of each call, and its answer as a value."""
