"""Credentials, principals, limited keys and rate limits."""
