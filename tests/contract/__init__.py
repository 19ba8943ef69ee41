"""One suite per abstraction, run unchanged on every implementation of it."""
