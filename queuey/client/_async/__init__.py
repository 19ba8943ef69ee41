"""The client for async code, and the source of the one for threads: run ``python deploy/unasync.py`` after a change."""
