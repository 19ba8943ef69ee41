"""Attempts: what counts as one, and how long a job waits for the next."""
