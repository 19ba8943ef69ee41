"""Where handlers run: threads, tasks of an event loop, or child processes."""
