# Do not edit: python deploy/unasync.py writes this file from queuey/client/_async/__init__.py.
"""The client for threads, which ``python deploy/unasync.py`` writes from the one for async code."""
