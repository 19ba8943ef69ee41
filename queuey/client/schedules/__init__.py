"""Schedules: what the client does with them, and what it returns."""
