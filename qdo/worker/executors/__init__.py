"""Executors, which run handlers in threads, tasks of an event loop, or child processes."""
