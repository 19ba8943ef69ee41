"""Admission of requests, and the event loop."""
