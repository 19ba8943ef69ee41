"""Prefetching: what to ask the service for, and what is held until it is polled."""
