"""Servers, attempts, retries and connections."""
