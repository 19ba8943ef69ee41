"""Prefetching: requests to the service, and the messages held until they are polled."""
